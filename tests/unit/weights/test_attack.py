"""Bad input, strangers in the store, disks without room: words, never a traceback."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from glmspark.weights import gc, verify, view
from glmspark.weights import manifest as manifests
from glmspark.weights.manifest import Manifest
from glmspark.weights.store import MARKER, Store

from tests.unit.weights import fakehub
from tests.unit.weights.conftest import (
    REPO,
    REV,
    Kit,
    blob,
    checkpoint,
    contents,
    locked,
    manifest_of,
    write_tree,
)

Filled = tuple[Store, Manifest, dict[str, bytes]]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("fetch", "--workers", "0"), 2),
        (("fetch", "--attempts", "-1"), 2),
        (("share", "--connections", "0"), 2),
        (("lock", "../../etc/passwd"), 3),
        (("lock", "a b/c"), 3),
        (("fetch", "nobody/nothing"), 3),
        (("fetch", "nothing.lock.json"), 3),
        (("pin", "target", "a=/dev/zero"), 3),
        (("pin", "target", "no-pair"), 3),
        (("share", "--to", "nonsense"), 3),
        (("import", "/dev"), 0),  # devices are not read
        (("verify",), 3),
        (("link", "target"), 7),
        (("forget", "target"), 3),
        (("nfs-exports", "--subnet", "0.0.0.0/0", "--address", "10.0.0.1"), 3),
    ],
)
def test_bad_input_is_answered_in_words(
    kit: Kit, store: Store, words: tuple[str, ...], code: int
) -> None:
    ran = kit.run(*words)
    assert ran.code == code, ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("page", ["<html>log in</html>", '{"detail": "x"}', "[1]"])
def test_a_page_that_is_no_answer_of_a_hub_is_said_so(
    kit: Kit, hub: fakehub.Hub, page: str
) -> None:
    hub.page_instead = page
    ran = kit.run("lock", REPO)
    assert ran.code == 5, ran.err
    assert "is no file list" in ran.err
    ran = kit.run("fetch", locked(kit, hub), "--attempts", "1")
    assert ran.code in (5, 7), ran.err
    assert "Traceback" not in ran.err
    assert Store.open(kit.store).blobs() == []


@pytest.mark.parametrize("endpoint", ["nonsense", "http://", "http://[::1", "ftp://x"])
def test_an_endpoint_that_is_no_address_is_said_so(
    kit: Kit, hub: fakehub.Hub, endpoint: str
) -> None:
    lock = locked(kit, hub)
    for words in (("fetch", lock), ("lock", REPO)):
        ran = kit.run(*words, HF_ENDPOINT=endpoint)
        assert ran.code == 3, ran.err
        assert "is no address of a Hub" in ran.err


def test_strangers_in_the_store_disturb_nobody(filled: Filled) -> None:
    store, manifest, files = filled
    view.link(store, manifest)
    base = store.root / "blobs" / "sha256"
    (base / ".DS_Store").write_text("x")
    (base / "lost+found").mkdir()
    (base / "zz").mkdir()
    (base / "zz" / ("g" * 64)).write_text("no hash")
    (base / "ab").mkdir(exist_ok=True)
    (base / "ab" / ("c" * 64)).write_text("in the wrong folder")
    with (store.root / "journal.jsonl").open("ab") as journal:
        journal.write(b"\xff\xfe[[[[\n{}\n[1]\n")
    fresh = Store.open(store.root)
    assert len(fresh.blobs()) == len(files)
    assert verify.verify(fresh, deep=True).is_ok
    gc.collect(fresh)
    assert verify.verify(fresh, deep=True).is_ok
    assert gc.inventory(fresh)[0]["missing_files"] == 0


@pytest.mark.parametrize(
    ("text", "word"), [('{"format": 2}', "has format 2"), ("", "is damaged")]
)
def test_a_store_of_another_format_is_left_alone(
    kit: Kit, store: Store, text: str, word: str
) -> None:
    (store.root / MARKER).write_text(text)
    for words in (("list",), ("gc",), ("fetch",)):
        ran = kit.run(*words)
        assert (ran.code, word in ran.err) == (3, True), ran.err


@pytest.mark.parametrize("below", ["", "bundle"])
def test_a_bundle_is_never_written_into_the_store(
    kit: Kit, filled: Filled, below: str
) -> None:
    before = contents(kit.store)
    ran = kit.run("export", kit.store / below)
    assert ran.code == 3, ran.err
    assert contents(kit.store).keys() == before.keys()


def test_a_locale_that_cannot_write_the_names_changes_nothing(
    kit: Kit, hub: fakehub.Hub
) -> None:
    hub.add(REPO, REV, {"модель.json": b"{}", "语.safetensors": blob(1, 5000)})
    env = {"LC_ALL": "C", "LANG": "C"}
    lock = kit.tmp / "x.lock.json"
    for words in (("lock", REPO, "-o", lock), ("fetch", lock), ("link",)):
        ran = kit.run(*words, **env)
        assert ran.code == 0, ran.err
    made = view.link(Store.open(kit.store), manifests.load(lock))
    assert set(contents(made.folder)) == {"модель.json", "语.safetensors"}


# -- kill -9 -------------------------------------------------------------------


@pytest.mark.parametrize("command", ["import", "pin", "export"])
def test_kill_9_at_any_point_leaves_a_store_that_verifies(
    kit: Kit, tmp_path: Path, command: str
) -> None:
    """Killed later each time, until it gets through; then all is as if never killed."""
    files = checkpoint() | {"big.safetensors": blob(7, 4 << 20)}
    source = write_tree(tmp_path / "source", files)
    lock = kit.lock(manifest_of(files))
    template = tmp_path / "t.jinja"
    template.write_bytes(blob(5, 2 << 20))
    words: tuple[str | Path, ...] = ("import", source, lock)
    if command != "import":
        kit.ok(*words)
        words = ("pin", REPO, f"t.jinja={template}")
    if command == "export":
        words = ("export", tmp_path / "disk")
    for turn in range(16):
        process = kit.start(*words)
        time.sleep(0.1 + 0.06 * turn)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if (kit.store / MARKER).is_file() and Store.open(kit.store).manifests():
            report = verify.verify(Store.open(kit.store), deep=True)
            assert report.damaged == []
        if process.returncode == 0:
            break
    kit.ok(*words)
    if command == "export":
        shutil.rmtree(kit.store)
        kit.ok("apply", tmp_path / "disk")
    kit.ok("gc")
    store = Store.open(kit.store)
    assert verify.verify(store, deep=True).is_ok
    assert not any((store.root / "partial").iterdir())
    left = [p for p in store.root.rglob(".*") if p.name.endswith(".tmp")]
    assert left == []


def test_a_waiter_takes_over_from_a_fetch_that_is_killed(
    kit: Kit, hub: fakehub.Hub
) -> None:
    big = blob(7, 6 << 20)
    hub.add(REPO, REV, {"big.safetensors": big})
    lock = locked(kit, hub)
    hub.fail("big.safetensors", "drip")
    first = kit.start("fetch", lock)
    deadline = time.monotonic() + 20
    while hub.sent["big.safetensors"] < 2 << 20 and time.monotonic() < deadline:
        time.sleep(0.02)
    second = kit.start("fetch", lock)
    time.sleep(0.8)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    output, _ = second.communicate(timeout=60)
    assert second.returncode == 0, output
    # What the first one had is not asked for again.
    ranges = [s.range for s in hub.gets("big.safetensors") if "/cdn/" in s.path]
    assert len(ranges) == 2
    assert int(ranges[1].removeprefix("bytes=").rstrip("-")) >= 1 << 20
    made = view.link(Store.open(kit.store), manifests.load(lock))
    assert contents(made.folder) == {"big.safetensors": big}
