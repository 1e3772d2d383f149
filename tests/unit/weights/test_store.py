"""The store: owners, journal, verify, locks."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from glmspark.errors import ConfigError, IntegrityError
from glmspark.weights import lease, locks, pin, verify, view
from glmspark.weights.hashing import Hashes, hash_file
from glmspark.weights.journal import Record
from glmspark.weights.manifest import Manifest
from glmspark.weights.store import BlobState, Store

from tests.unit.weights.conftest import (
    NOBODY,
    REPO,
    REV,
    ROOT,
    SHARD,
    Kit,
    flip,
    manifest_of,
    wait_for,
)
from tests.unit.weights.fakehub import git_oid, sha256

Filled = tuple[Store, Manifest, dict[str, bytes]]


# -- opening -------------------------------------------------------------------


def test_a_folder_with_other_things_is_never_taken_for_a_store(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    for create in (True, False):
        with pytest.raises(ConfigError):
            Store.open(tmp_path, create=create)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_store_that_was_being_made_when_its_maker_died_is_taken_up(
    tmp_path: Path,
) -> None:
    root = tmp_path / "store"
    root.mkdir()
    (root / ".glmspark-store.json.4711.tmp").write_text("")
    assert Store.open(root, create=True).blobs() == []
    shutil.rmtree(root / "views")  # it died between the marker and the folders
    assert Store.open(root, create=True).manifests() == {}
    assert (root / "views" / ".gen").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as two users")
@pytest.mark.cases(54)
def test_root_leaves_nothing_that_the_user_cannot_move(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    store = Store.open(home / "deep" / "store", create=True)
    manifest = manifest_of({"a.json": b"abc"})
    source = tmp_path / "a.json"
    source.write_bytes(b"abc")
    pin.pin(store, manifest, "b/b.json", source)
    from glmspark.weights import importer

    importer.import_from(store, tmp_path, [manifest], chosen=True)
    view.link(store, manifest)
    for fd in lease.hold(store, view.link(store, manifest).folder):
        os.close(fd)
    owners = {
        p: p.lstat().st_uid
        for p in (home / "deep").rglob("*")
        if p.name != sha256(b"abc") or p.is_symlink()
    }
    # "abc" is hard-linked: its inode belongs to the source, which is not ours to change
    assert {p: uid for p, uid in owners.items() if uid != NOBODY} == {}


@pytest.mark.cases(54)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as two users")
@pytest.mark.cases(54)
def test_a_root_owned_store_is_refused_with_the_chown(tmp_path: Path, kit: Kit) -> None:
    Store.open(kit.store, create=True)
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    code = (
        "import os, sys; from pathlib import Path\n"
        "from glmspark.weights.store import Store\n"
        "from glmspark.errors import ConfigError\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: Store.open(Path(sys.argv[1]), create=True)\n"
        "except ConfigError as error: print(error, error.hint)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, kit.store],
        env=kit.env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"sudo chown -R 65534:65534 {kit.store}" in done.stdout


# -- journal and verify --------------------------------------------------------


@pytest.mark.cases(49)
def test_a_second_check_reads_no_weights(filled: Filled) -> None:
    store, manifest, files = filled
    report = verify.verify(store, [manifest])
    assert (report.is_ok, report.checked, report.hashed) == (True, len(files), 0)


def test_the_fast_check_trusts_no_changed_stat(filled: Filled) -> None:
    store, manifest, files = filled
    path = store.blob_path(sha256(files[SHARD]))
    path.touch()
    assert store.state(path.name) is BlobState.TOUCHED
    report = verify.verify(store, [manifest])
    assert (report.is_ok, report.hashed) == (True, 1)
    assert verify.verify(store, [manifest]).hashed == 0


def test_a_flipped_bit_with_a_new_mtime_is_found_fast(filled: Filled) -> None:
    store, manifest, files = filled
    flip(store.blob_path(sha256(files[SHARD])))
    (damage,) = verify.verify(store, [manifest]).damaged
    assert damage.files == (f"{REPO}@{REV[:12]}: {SHARD}",)


@pytest.mark.cases(56)
def test_a_flipped_bit_behind_the_same_stat_is_found_deep(filled: Filled) -> None:
    store, manifest, files = filled
    name = sha256(files[SHARD])
    flip(store.blob_path(name), keep_stat=True)
    assert verify.verify(store, [manifest]).is_ok  # what "fast" cannot see
    report = verify.verify(store, [manifest], deep=True)
    (damage,) = report.damaged
    assert (damage.blob, damage.files[0].endswith(SHARD)) == (name, True)
    assert damage.moved_to is not None and damage.moved_to.is_file()
    assert store.state(name) is BlobState.ABSENT
    assert verify.verify(store, [manifest]).missing == list(damage.files)


@pytest.mark.cases(56)
@pytest.mark.parametrize("size", [0, 1000])
@pytest.mark.cases(56)
def test_a_truncated_or_empty_blob_is_never_trusted(filled: Filled, size: int) -> None:
    store, manifest, files = filled
    path = store.blob_path(sha256(files[SHARD]))
    path.chmod(0o644)
    os.truncate(path, size)
    with pytest.raises(IntegrityError, match=SHARD):
        view.link(store, manifest)
    assert not verify.verify(store, [manifest]).is_ok


def test_a_second_bad_copy_does_not_replace_the_first(filled: Filled) -> None:
    store, manifest, files = filled
    name = sha256(files[SHARD])
    for count in (1, 2):
        path = store.blob_path(name)
        path.unlink(missing_ok=True)
        path.write_bytes(b"bad %d" % count)
        verify.verify(store, [manifest])
    kept = {p.read_bytes() for p in (store.root / "quarantine").iterdir()}
    assert kept == {b"bad 1", b"bad 2"}


def test_verify_says_exit_7_and_names_the_file(kit: Kit, filled: Filled) -> None:
    store, _, files = filled
    assert kit.ok("verify", "--deep", "--json").json["ok"]
    flip(store.blob_path(sha256(files[SHARD])), keep_stat=True)
    ran = kit.run("verify", "--deep", "--json")
    assert ran.code == 7
    assert ran.json["damaged"][0]["files"] == [f"{REPO}@{REV[:12]}: {SHARD}"]
    assert SHARD in ran.err


def test_verifying_nothing_is_not_a_pass(kit: Kit, store: Store) -> None:
    assert kit.run("verify").code == 3


def test_a_torn_journal_costs_a_hash_and_nothing_else(filled: Filled) -> None:
    store, manifest, files = filled
    path = store.root / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    fresh = Store.open(store.root)
    report = verify.verify(fresh, [manifest])
    assert (report.is_ok, report.hashed) == (True, 1)
    path.unlink()
    report = verify.verify(Store.open(store.root), [manifest])
    assert (report.is_ok, report.hashed) == (True, len(files))


def test_a_long_journal_is_cut_to_what_counts(filled: Filled) -> None:
    store, manifest, _ = filled
    path = store.root / "journal.jsonl"
    for _ in range(7):
        path.write_bytes(path.read_bytes() * 3)
    before = path.stat().st_size
    verify.verify(Store.open(store.root), [manifest])
    assert path.stat().st_size < before / 100
    assert verify.verify(Store.open(store.root), [manifest]).hashed == 0


# -- locks ---------------------------------------------------------------------


def test_a_killed_process_lets_go_of_its_part(store: Store, tmp_path: Path) -> None:
    path = store.part_path("a" * 64)
    script = (
        "import sys, time\nfrom pathlib import Path\n"
        "from glmspark.weights import locks\n"
        "locks.claim(Path(sys.argv[1]), lambda: None)\nprint('held', flush=True)\n"
        "time.sleep(60)\n"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT / "python")}
    with subprocess.Popen(
        [sys.executable, "-c", script, path], env=env, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        fd = os.open(path, os.O_RDWR)
        assert not locks.try_lock(fd)
        holder.kill()
        holder.wait()
        wait_for(lambda: locks.try_lock(fd), "the lock is free")
        os.close(fd)


def test_a_waiter_sees_that_the_blob_has_arrived(store: Store) -> None:
    """The part it waited for became the blob: it must not write into that."""
    path = store.part_path("a" * 64)
    first = locks.claim(path, lambda: None)

    def finish_first() -> None:
        path.rename(store.root / "blob")
        fcntl.flock(first, fcntl.LOCK_UN)

    second = locks.claim(path, finish_first)
    assert os.fstat(second).st_ino != os.fstat(first).st_ino
    os.close(first)
    os.close(second)


def test_hash_file_is_sha256_and_gits_id(tmp_path: Path) -> None:
    data = os.urandom(3 * (1 << 20) + 17)
    path = tmp_path / "f"
    path.write_bytes(data)
    hashes = hash_file(path, want_git=True)
    assert hashes == Hashes(len(data), sha256(data), git_oid(data))
    if shutil.which("git"):
        told = subprocess.run(
            ["git", "hash-object", path], capture_output=True, text=True, check=True
        )
        assert told.stdout.strip() == hashes.git_oid


def test_a_record_is_what_stat_says(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    stat = path.stat()
    assert Record.of("x", stat) == Record("x", 3, stat.st_mtime_ns, stat.st_ino)
