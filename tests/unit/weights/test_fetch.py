"""Fetch and lock against a local Hub over real HTTP, by the real huggingface_hub."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from glmspark.errors import IntegrityError
from glmspark.weights import manifest as manifests
from glmspark.weights import view
from glmspark.weights.store import Store

from tests.unit.weights import fakehub
from tests.unit.weights.conftest import (
    REPO,
    REV,
    Kit,
    blob,
    checkpoint,
    contents,
    manifest_of,
    wait_for,
)

SHARD = "model-00001-of-00003.safetensors"
FAST = ("--stall", "1", "--attempts", "2")
OTHER_REV = "f" * 40


def locked(kit: Kit, hub: fakehub.Hub, repo: str = REPO) -> Path:
    """The lock that ``weights lock`` would write (test_lock_... runs the command)."""
    revision = hub.refs[repo, "main"]
    entries = []
    for path, data in hub.repos[repo, revision].items():
        large = len(data) >= fakehub.LFS_FROM
        hashes = {"sha256": fakehub.sha256(data)} if large else {}
        hashes = hashes or {"git_oid": fakehub.git_oid(data)}
        entries.append(manifests.FileEntry(path, len(data), **hashes))
    return kit.lock(manifests.make_manifest(repo, revision, entries))


def view_of(kit: Kit, lock: Path) -> dict[str, bytes]:
    made = view.link(Store.open(kit.store), manifests.load(lock))
    return contents(made.folder)


# -- lock ----------------------------------------------------------------------


def test_lock_names_a_commit_and_every_file(kit: Kit, hub: fakehub.Hub) -> None:
    hub.page = 2  # the tree comes in pages, as it does for many files
    lock = kit.tmp / "asked.lock.json"
    kit.ok("lock", REPO, "-o", lock)
    manifest = manifests.load(lock)
    assert manifest == manifests.load(locked(kit, hub))
    files = checkpoint()
    assert (manifest.repo, manifest.revision) == (REPO, REV)
    assert {e.path: e.size for e in manifest.files} == {
        p: len(d) for p, d in files.items()
    }
    shard = next(e for e in manifest.files if e.path == SHARD)
    config = next(e for e in manifest.files if e.path == "config.json")
    assert shard.sha256 == fakehub.sha256(files[SHARD])
    assert (config.sha256, config.git_oid) == (
        "",
        fakehub.git_oid(files["config.json"]),
    )


@pytest.mark.cases(51)
def test_a_moved_branch_changes_nothing_that_is_locked(
    kit: Kit, hub: fakehub.Hub
) -> None:
    lock = locked(kit, hub)
    hub.add(REPO, OTHER_REV, checkpoint(shards=2))
    kit.ok("fetch", lock)
    assert view_of(kit, lock) == checkpoint()
    assert all(REV in s.path for s in hub.gets() if "/resolve/" in s.path)


@pytest.mark.cases(57)
def test_lock_waits_as_long_as_a_rate_limit_asks(kit: Kit, hub: fakehub.Hub) -> None:
    hub.fail("tree", "429")
    hub.retry_after = "1"
    assert "Rate limited" in kit.ok("lock", REPO).err


@pytest.mark.cases(51)
def test_an_absent_revision_fails_closed(kit: Kit, hub: fakehub.Hub) -> None:
    ran = kit.run("lock", f"{REPO}@{OTHER_REV}")
    assert ran.code == 5
    assert "has no revision" in ran.err


@pytest.mark.cases(52)
def test_an_unknown_revision_says_which_are_known_and_downloads_nothing(
    kit: Kit, hub: fakehub.Hub
) -> None:
    kit.ok("fetch", locked(kit, hub))
    before = len(hub.seen)
    ran = kit.run("fetch", f"{REPO}@{OTHER_REV[:8]}")
    assert ran.code == 3
    assert f"{REPO}@{REV}" in ran.err
    assert "weights lock" in ran.err
    assert len(hub.seen) == before


# -- fetch ---------------------------------------------------------------------


def test_fetch_brings_every_file_and_writes_nothing_but_the_store(
    kit: Kit, hub: fakehub.Hub
) -> None:
    lock = locked(kit, hub)
    before = {p for p in kit.tmp.rglob("*") if kit.store not in p.parents}
    ran = kit.ok("fetch", lock, "--json").json
    assert ran[0]["fetched"] == len(checkpoint())
    assert view_of(kit, lock) == checkpoint()
    after = {p for p in kit.tmp.rglob("*") if kit.store not in p.parents}
    assert after - before == {kit.store}
    assert list(kit.home.rglob("*")) == []
    assert list((kit.store / "partial").iterdir()) == []


def test_blobs_are_read_only_and_group_readable(kit: Kit, hub: fakehub.Hub) -> None:
    kit.ok("fetch", locked(kit, hub))
    store = Store.open(kit.store)
    modes = {store.blob_path(b).stat().st_mode & 0o777 for b in store.blobs()}
    assert modes == {0o444}


@pytest.mark.cases(48)
def test_a_complete_store_needs_no_downloader_and_no_network(
    kit: Kit, hub: fakehub.Hub
) -> None:
    lock = locked(kit, hub)
    kit.ok("fetch", lock)
    before = len(hub.seen)
    poison = kit.tmp / "poison" / "huggingface_hub"
    poison.mkdir(parents=True)
    (poison / "__init__.py").write_text("raise SystemExit('imported')")
    path = f"{poison.parent}:{kit.env['PYTHONPATH']}"
    ran = kit.ok("fetch", lock, PYTHONPATH=path, HF_ENDPOINT="http://127.0.0.1:9")
    assert "already complete" in ran.out
    assert len(hub.seen) == before
    # The guard can fire: with a blob missing, the library is what fails now.
    shutil.rmtree(kit.store / "blobs" / "sha256")
    (kit.store / "blobs" / "sha256").mkdir()
    assert "imported" in kit.run("fetch", lock, PYTHONPATH=path).err


def test_only_missing_blobs_travel(kit: Kit, hub: fakehub.Hub) -> None:
    lock = locked(kit, hub)
    kit.ok("fetch", lock)
    store = Store.open(kit.store)
    store.blob_path(fakehub.sha256(checkpoint()[SHARD])).unlink()
    hub.sent.clear()
    kit.ok("fetch", lock)
    assert hub.sent == {SHARD: len(checkpoint()[SHARD])}


def test_two_repositories_with_the_same_bytes_cost_one_copy(
    kit: Kit, hub: fakehub.Hub
) -> None:
    hub.add("kit/mirror", OTHER_REV, {"renamed.safetensors": checkpoint()[SHARD]})
    kit.ok("fetch", locked(kit, hub))
    hub.sent.clear()
    ran = kit.ok("fetch", locked(kit, hub, "kit/mirror"))
    assert "already complete" in ran.out
    assert not hub.sent


@pytest.mark.parametrize("kind", ["truncate", "reset", "stall"])
@pytest.mark.cases(57)
def test_a_broken_transfer_is_resumed_at_the_byte(
    kit: Kit, hub: fakehub.Hub, kind: str
) -> None:
    big = blob(7, 6 << 20)
    hub.add(REPO, REV, {"big.safetensors": big})
    lock = locked(kit, hub)
    hub.fail("big.safetensors", kind)
    ran = kit.ok("fetch", lock, *FAST, "--json")
    first, second = [s for s in hub.gets("big.safetensors") if "/cdn/" in s.path]
    assert first.range == ""
    start = int(second.range.removeprefix("bytes=").rstrip("-"))
    assert start >= 2 << 20  # half was sent; less than a receive chunk of it is lost
    assert view_of(kit, lock) == {"big.safetensors": big}
    assert "hub:" in ran.err or "again in" in ran.err


@pytest.mark.cases(57)
def test_a_trickle_is_cut_and_what_came_is_kept(kit: Kit, hub: fakehub.Hub) -> None:
    """A byte now and then: each read is in time, and the file would never be done."""
    lock = locked(kit, hub)
    hub.fail(SHARD, "trickle")
    ran = kit.ok("fetch", lock, *FAST)
    assert "stalled: it trickled" in ran.err
    _, second = [s for s in hub.gets(SHARD) if "/cdn/" in s.path]
    assert int(second.range.removeprefix("bytes=").rstrip("-")) > 0
    assert view_of(kit, lock) == checkpoint()


def test_a_slow_line_is_no_trickle(kit: Kit, hub: fakehub.Hub) -> None:
    hub.add(REPO, REV, {"big.safetensors": blob(7, 3 << 20)})
    lock = locked(kit, hub)
    hub.fail("big.safetensors", "drip")  # 48 pieces, a twentieth of a second each
    kit.ok("fetch", lock, *FAST)
    assert len([s for s in hub.gets("big.safetensors") if "/cdn/" in s.path]) == 1


def test_a_server_that_ignores_ranges_costs_a_restart_not_the_file(
    kit: Kit, hub: fakehub.Hub
) -> None:
    big = blob(7, 6 << 20)
    hub.add(REPO, REV, {"big.safetensors": big})
    lock = locked(kit, hub)
    hub.fail("big.safetensors", "truncate", "ignore-range")
    kit.ok("fetch", lock, *FAST)
    assert view_of(kit, lock) == {"big.safetensors": big}


@pytest.mark.cases(56)
def test_wrong_bytes_never_get_a_name(kit: Kit, hub: fakehub.Hub) -> None:
    lock = locked(kit, hub)
    hub.always[SHARD] = "wrong"
    ran = kit.run("fetch", lock, *FAST)
    assert ran.code == 7
    assert f"gave wrong bytes for {SHARD}" in ran.err
    store = Store.open(kit.store)
    assert fakehub.sha256(checkpoint()[SHARD]) not in store.blobs()
    assert all(
        fakehub.sha256(store.blob_path(b).read_bytes()) == b for b in store.blobs()
    )
    with pytest.raises(IntegrityError, match=SHARD):
        view.link(store, manifests.load(lock))


def test_wrong_bytes_of_a_small_file_are_caught_by_its_git_id(
    kit: Kit, hub: fakehub.Hub
) -> None:
    lock = locked(kit, hub)
    hub.always["config.json"] = "wrong"
    ran = kit.run("fetch", lock, *FAST)
    assert ran.code == 7
    assert "gave wrong bytes for config.json" in ran.err


def test_a_source_that_says_it_has_other_bytes_is_not_read(
    kit: Kit, hub: fakehub.Hub
) -> None:
    lock = locked(kit, hub)
    hub.repos[REPO, REV] = checkpoint() | {SHARD: blob(55, 300_001)}
    ran = kit.run("fetch", lock, *FAST)
    assert ran.code == 7
    assert "says that its" in ran.err
    assert not hub.gets(f"/cdn/{REPO}/{REV}/{SHARD}")


def test_a_part_longer_than_the_file_is_started_anew(
    kit: Kit, hub: fakehub.Hub
) -> None:
    lock = locked(kit, hub)
    store = Store.open(kit.store, create=True)
    store.part_path(fakehub.sha256(checkpoint()[SHARD])).write_bytes(b"x" * 400_000)
    kit.ok("fetch", lock)
    assert view_of(kit, lock) == checkpoint()


@pytest.mark.cases(56)
def test_a_wrong_part_is_found_out_and_fetched_again(
    kit: Kit, hub: fakehub.Hub
) -> None:
    lock = locked(kit, hub)
    store = Store.open(kit.store, create=True)
    part = store.part_path(fakehub.sha256(checkpoint()[SHARD]))
    part.write_bytes(b"\0" * len(checkpoint()[SHARD]))
    kit.ok("fetch", lock)
    assert view_of(kit, lock) == checkpoint()


def test_416_restarts_the_file(kit: Kit, hub: fakehub.Hub) -> None:
    lock = locked(kit, hub)
    store = Store.open(kit.store, create=True)
    part = store.part_path(fakehub.sha256(checkpoint()[SHARD]))
    part.write_bytes(checkpoint()[SHARD][:1000])
    hub.fail(SHARD, "416")
    ran = kit.ok("fetch", lock)
    assert "(416)" in ran.err
    assert view_of(kit, lock) == checkpoint()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("500", "failed on"),
        ("404", "(404)"),
        ("403", "may not read it (403)"),
        ("truncate", "closed|broke"),
        ("stall", "stalled: nothing came"),
        ("trickle", "stalled: it trickled"),
        ("long", "sends more than the"),
    ],
)
def test_a_lasting_failure_is_told_apart_and_ends(
    kit: Kit, hub: fakehub.Hub, kind: str, words: str
) -> None:
    lock = locked(kit, hub)
    hub.always[SHARD] = kind
    ran = kit.run("fetch", lock, *FAST)
    assert ran.code == (7 if kind == "long" else 5)
    last = [line for line in ran.err.splitlines() if line.startswith("error:")]
    assert any(word in last[0] for word in words.split("|")), ran.err
    store = Store.open(kit.store)
    assert all(
        fakehub.sha256(store.blob_path(b).read_bytes()) == b for b in store.blobs()
    )


@pytest.mark.cases(57)
def test_a_rate_limit_is_waited_out(kit: Kit, hub: fakehub.Hub) -> None:
    lock = locked(kit, hub)
    hub.fail(SHARD, "429")
    hub.retry_after = "2"
    ran = kit.ok("fetch", lock)
    assert "(429)" in ran.err
    assert "it asks to wait 2 s; again in 2 s" in ran.err
    assert view_of(kit, lock) == checkpoint()


@pytest.mark.cases(57)
def test_a_fault_of_the_service_is_tried_again(kit: Kit, hub: fakehub.Hub) -> None:
    lock = locked(kit, hub)
    hub.fail(SHARD, "503", "500")
    ran = kit.ok("fetch", lock)
    assert "again in" in ran.err


@pytest.mark.cases(64)
def test_401_says_that_the_token_was_not_accepted(kit: Kit, hub: fakehub.Hub) -> None:
    lock = locked(kit, hub)
    hub.token = "hf_right"
    ran = kit.run("fetch", lock, *FAST, HF_TOKEN="hf_wrong")
    assert ran.code == 5
    assert "the token was not accepted (401)" in ran.err
    assert "HF_TOKEN" in ran.err
    anonymous = kit.run("fetch", lock, *FAST)
    assert "a request without token was not accepted (401)" in anonymous.err


@pytest.mark.cases(64)
def test_403_says_that_the_terms_were_not_accepted(kit: Kit, hub: fakehub.Hub) -> None:
    lock = locked(kit, hub)
    hub.token = "hf_right"
    hub.gated.add(REPO)
    ran = kit.run("fetch", lock, *FAST, HF_TOKEN="hf_right")
    assert ran.code == 5
    assert "terms of kit/model were not accepted" in ran.err
    assert f"{hub.url}/{REPO}" in ran.err


def test_an_unreachable_hub_is_said_so(kit: Kit, hub: fakehub.Hub) -> None:
    lock = locked(kit, hub)
    ran = kit.run("fetch", lock, *FAST, HF_ENDPOINT="http://127.0.0.1:9")
    assert ran.code == 5
    assert "cannot reach http://127.0.0.1:9" in ran.err


def test_offline_mode_is_said_so(kit: Kit, hub: fakehub.Hub) -> None:
    lock = locked(kit, hub)
    ran = kit.run("fetch", lock, HF_HUB_OFFLINE="1")
    assert ran.code == 5
    assert "HF_HUB_OFFLINE" in ran.err


def test_the_mirror_is_taken_when_the_origin_is_gone(
    kit: Kit, hub: fakehub.Hub
) -> None:
    origin = manifest_of(
        checkpoint(),
        "kit/gone",
        OTHER_REV,
        mirrors=(manifests.Mirror(REPO, REV, "same bytes"),),
    )
    lock = kit.lock(origin)
    ran = kit.ok("fetch", lock, HF_TOKEN="hf_any")
    assert f"trying the mirror {REPO}@" in ran.err
    assert view_of(kit, lock) == checkpoint()


def test_a_mirror_with_other_bytes_is_not_taken(kit: Kit, hub: fakehub.Hub) -> None:
    files = checkpoint()
    origin = manifest_of(
        files,
        "kit/gone",
        OTHER_REV,
        mirrors=(manifests.Mirror(REPO, REV, "same bytes?"),),
    )
    hub.repos[REPO, REV] = files | {SHARD: blob(3, len(files[SHARD]))}
    assert kit.run("fetch", kit.lock(origin), *FAST, HF_TOKEN="hf_any").code == 5
    assert fakehub.sha256(files[SHARD]) not in Store.open(kit.store).blobs()


# -- secrets -------------------------------------------------------------------


@pytest.mark.parametrize("how", ["variable", "file"])
def test_the_token_goes_to_the_hub_alone(kit: Kit, hub: fakehub.Hub, how: str) -> None:
    secret = "hf_S3cretS3cret"
    hub.token = secret
    if how == "file":
        (kit.home / "token").write_text(secret)
        env = {"HF_TOKEN_PATH": str(kit.home / "token")}
    else:
        env = {"HF_TOKEN": secret}
    lock = kit.tmp / "kit.lock.json"
    ran = kit.run("lock", REPO, "-o", lock, **env)
    assert ran.code == 0, ran.err
    hub.fail(SHARD, "500")
    ran = kit.run("fetch", lock, **env)
    assert ran.code == 0, ran.err
    at_hub = [s for s in hub.seen if "/cdn/" not in s.path]
    at_cdn = [s for s in hub.seen if "/cdn/" in s.path]
    assert at_hub and all(s.authorization == f"Bearer {secret}" for s in at_hub)
    assert at_cdn and not any(s.authorization for s in at_cdn)
    assert secret not in ran.out + ran.err
    assert "Sig=" not in ran.out + ran.err  # signed addresses are keys as well
    for path in kit.tmp.rglob("*"):
        if path.is_file() and kit.home not in path.parents:
            assert secret.encode() not in path.read_bytes(), path


# -- crashes and company -------------------------------------------------------


def test_kill_9_loses_at_most_the_part(kit: Kit, hub: fakehub.Hub) -> None:
    big = blob(7, 8 << 20)
    files = checkpoint() | {"big.safetensors": big}
    hub.add(REPO, REV, files)
    lock = locked(kit, hub)
    hub.fail("big.safetensors", "drip")
    process = kit.start("fetch", lock)
    part = kit.store / "partial" / f"{fakehub.sha256(big)}.part"
    wait_for(
        lambda: (
            part.exists()
            and part.stat().st_size > 3 << 20
            and len(Store.open(kit.store).blobs()) == len(files) - 1
        ),
        "the large file is under way and the others are in",
    )
    process.send_signal(signal.SIGKILL)
    process.communicate()
    store = Store.open(kit.store)
    for name in store.blobs():
        assert fakehub.sha256(store.blob_path(name).read_bytes()) == name
    kept = part.stat().st_size
    hub.sent.clear()
    kit.ok("fetch", lock)
    assert hub.sent == {"big.safetensors": len(big) - kept}
    assert view_of(kit, lock) == files


def test_two_fetches_at_once_do_one_download(kit: Kit, hub: fakehub.Hub) -> None:
    big = blob(7, 4 << 20)
    hub.add(REPO, REV, {"big.safetensors": big})
    lock = locked(kit, hub)
    hub.fail("big.safetensors", "drip")
    both = [kit.start("fetch", lock) for _ in range(2)]
    for process in both:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
    assert hub.sent["big.safetensors"] == len(big)
    assert view_of(kit, lock) == {"big.safetensors": big}


def test_interrupt_ends_at_once_with_130(kit: Kit, hub: fakehub.Hub) -> None:
    hub.add(REPO, REV, {"big.safetensors": blob(7, 40 << 20)})
    lock = locked(kit, hub)
    hub.fail("big.safetensors", "drip")
    process = kit.start("fetch", lock)
    wait_for(lambda: hub.sent["big.safetensors"] > 1 << 20, "bytes flow")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "interrupted" in output


# -- the disk ------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of 80 MiB; needs root."""
    mount = tmp_path / "small"
    mount.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=80m", "none", str(mount)]
    if subprocess.run(argv, capture_output=True, check=False).returncode:
        pytest.skip("needs root and mount(2) for a tmpfs of limited size")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.cases(56)
def test_missing_space_is_found_before_the_first_byte(
    kit: Kit, hub: fakehub.Hub, small_disk: Path
) -> None:
    hub.add(REPO, REV, {"big.safetensors": blob(7, 20 << 20)})
    lock = locked(kit, hub)
    ran = kit.run("fetch", lock, "--store", small_disk / "store")
    assert ran.code == 4
    assert "needs 20.00 MiB more" in ran.err
    assert "are free there; nothing was written" in ran.err
    assert not hub.gets("big.safetensors")


@pytest.mark.cases(56)
def test_a_disk_that_fills_meanwhile_is_told_apart_and_resumed(
    kit: Kit, hub: fakehub.Hub, small_disk: Path
) -> None:
    big = blob(7, 12 << 20)
    hub.add(REPO, REV, {"big.safetensors": big})
    lock = locked(kit, hub)
    hub.fail("big.safetensors", "drip")
    process = kit.start("fetch", lock, "--store", small_disk / "store")
    wait_for(lambda: hub.sent["big.safetensors"] > 2 << 20, "bytes flow")
    with (small_disk / "hog").open("wb") as hog:  # another program fills the disk
        try:
            while True:
                hog.write(b"\0" * (1 << 20))
                hog.flush()
        except OSError:
            pass
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 5, output
    assert "is full; what has arrived is kept" in output
    (small_disk / "hog").unlink()
    ran = kit.ok("fetch", lock, "--store", small_disk / "store", "--json")
    assert ran.json[0]["resumed_bytes"] > 0
    assert ran.json[0]["resumed_bytes"] + ran.json[0]["fetched_bytes"] == len(big)
