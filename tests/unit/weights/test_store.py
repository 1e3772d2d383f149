"""The store: owners, journal, verify, views, pins, leases and gc."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from glmspark.errors import CommandError, ConfigError, IntegrityError, PreflightError
from glmspark.weights import builtin, gc, lease, locks, pin, verify, view
from glmspark.weights.hashing import Hashes, hash_file
from glmspark.weights.journal import Record
from glmspark.weights.manifest import FileEntry, Manifest, make_manifest
from glmspark.weights.store import BlobState, Store

from tests.unit.weights.conftest import (
    REPO,
    REV,
    ROOT,
    Kit,
    contents,
    manifest_of,
    wait_for,
)
from tests.unit.weights.fakehub import git_oid, sha256

Filled = tuple[Store, Manifest, dict[str, bytes]]
SHARD = "model-00001-of-00003.safetensors"
NOBODY = 65534


def flip(path: Path, *, keep_stat: bool = False) -> None:
    """Flip one bit; with ``keep_stat`` so that no stat tells."""
    before = path.stat()
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    if keep_stat:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    path.chmod(0o444)


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


def test_git_ids_find_their_blob(filled: Filled) -> None:
    store, _, files = filled
    data = files["config.json"]
    small = make_manifest(
        REPO, "e" * 40, [FileEntry("c.json", len(data), "", git_oid(data))]
    )
    assert store.missing(small) == []
    assert store.resolve(small).files[0].sha256 == sha256(data)


# -- views ---------------------------------------------------------------------


def test_the_view_has_the_files_under_their_paths(filled: Filled) -> None:
    store, manifest, files = filled
    made = view.link(store, manifest)
    assert contents(made.folder) == files
    assert made.path.resolve() == made.folder
    assert not view.link(store, manifest).is_new


def test_the_view_works_where_the_store_is_mounted_elsewhere(
    filled: Filled, tmp_path: Path
) -> None:
    store, manifest, files = filled
    made = view.link(store, manifest)
    relative = made.folder.relative_to(store.root)
    moved = tmp_path / "in-a-container" / "weights"
    moved.parent.mkdir()
    store.root.rename(moved)
    assert contents(moved / relative) == files


def test_a_new_link_swaps_the_name_and_leaves_the_old_folder(
    filled: Filled, tmp_path: Path
) -> None:
    store, manifest, files = filled
    old = view.link(store, manifest)
    template = tmp_path / "chat_template.jinja"
    template.write_text("{{ messages }}")
    new = view.link(store, pin.pin(store, manifest, template.name, template))
    assert contents(old.folder) == files
    assert new.path == old.path
    assert old.path.resolve() == new.folder != old.folder


def test_kill_9_during_link_leaves_the_old_view_or_the_new_one(
    kit: Kit, filled: Filled
) -> None:
    store, manifest, files = filled
    made = view.link(store, manifest)
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from glmspark.weights import builtin, view\n"
        "from glmspark.weights.store import Store\n"
        "store = Store.open(Path(sys.argv[1]))\n"
        "manifest = builtin.select(store, sys.argv[2])\n"
        "print('go', flush=True)\n"
        "while True:\n"
        "    folder = view.link(store, manifest).folder\n"
        "    (folder / 'config.json').unlink()\n"  # so that each turn builds anew
    )
    for turn in range(5):
        argv = [sys.executable, "-c", script, str(store.root), manifest.slug]
        with subprocess.Popen(argv, env=kit.env, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.02 + turn * 0.013)
            process.kill()
        view.link(store, manifest)
        assert contents(made.path) == files
    assert gc.collect(store).views is not None
    left = [p.name for p in (store.root / "views" / ".gen").iterdir()]
    assert left == [made.folder.name]


@pytest.mark.cases(49)
def test_the_real_list_links_by_size_and_name(tmp_path: Path) -> None:
    """135 sparse files of the real sizes; known to the journal, so nothing is read."""
    store = Store.open(tmp_path / "store", create=True)
    target = builtin.builtin("target")
    for entry in target.files:
        path = store.blob_path(entry.sha256)
        store.mkdir(path.parent)
        with path.open("wb") as file:
            file.truncate(entry.size)
        store.know(Hashes(entry.size, entry.sha256))
    made = view.link(store, target)
    sizes = {p.name: p.stat().st_size for p in made.folder.iterdir()}
    assert sizes == {e.path: e.size for e in target.files}
    report = verify.verify(store, [target])
    assert (report.is_ok, report.checked, report.hashed) == (True, 135, 0)
    (row,) = gc.inventory(store)
    assert (row["bytes"], row["missing_bytes"]) == (target.total_bytes, 0)


# -- pins ----------------------------------------------------------------------


@pytest.mark.cases(62)
def test_a_pinned_template_is_part_of_the_view_and_of_every_check(
    filled: Filled, tmp_path: Path
) -> None:
    store, manifest, files = filled
    template = tmp_path / "chat_template.jinja"
    template.write_bytes(b"{{ images }}" * 4096)  # 48 KiB
    pinned = pin.pin(store, manifest, template.name, template)
    made = view.link(store, pinned)
    assert contents(made.folder) == files | {template.name: template.read_bytes()}
    # Registering the repository's own list again does not lose it.
    assert template.name in [e.path for e in store.register(manifest).files]
    store.blob_path(sha256(template.read_bytes())).unlink()
    assert [f.partition(": ")[2] for f in verify.verify(store).missing] == [
        template.name
    ]


def test_a_pin_covers_the_checkpoints_own_file(filled: Filled, tmp_path: Path) -> None:
    store, manifest, files = filled
    mine = tmp_path / "config.json"
    mine.write_bytes(b"{}")
    made = view.link(store, pin.pin(store, manifest, "config.json", mine))
    assert contents(made.folder) == files | {"config.json": b"{}"}


def test_a_pin_with_another_hash_is_refused(filled: Filled, tmp_path: Path) -> None:
    store, manifest, _ = filled
    file = tmp_path / "t.jinja"
    file.write_bytes(b"changed")
    with pytest.raises(IntegrityError):
        pin.pin(store, manifest, "t.jinja", file, sha256(b"original"))
    assert sha256(b"changed") not in store.blobs()


# -- gc and leases -------------------------------------------------------------


def test_gc_takes_what_no_manifest_needs_and_nothing_else(
    kit: Kit, filled: Filled
) -> None:
    store, manifest, files = filled
    view.link(store, manifest)
    stray = sha256(b"stray")
    store.mkdir(store.blob_path(stray).parent)
    store.blob_path(stray).write_bytes(b"stray")
    store.part_path("f" * 64).write_bytes(b"part")
    before = contents(store.root)
    dry = kit.ok("gc", "--dry-run", "--json").json
    assert contents(store.root).keys() == before.keys()
    assert [b["blob"] for b in dry["blobs"]] == [stray]
    real = kit.ok("gc", "--json").json
    assert real == dry | {"dry_run": False}
    assert set(store.blobs()) == {sha256(d) for d in files.values()}
    assert not list((store.root / "partial").iterdir())
    assert verify.verify(store, [manifest], deep=True).is_ok


def test_gc_keeps_the_part_of_a_wanted_blob(filled: Filled) -> None:
    store, _, files = filled
    name = sha256(files[SHARD])
    store.blob_path(name).unlink()
    store.part_path(name).write_bytes(b"the first bytes")
    gc.collect(store)
    assert store.part_path(name).exists()


def test_a_running_ranks_view_is_never_collected(kit: Kit, filled: Filled) -> None:
    store, manifest, files = filled
    made = view.link(store, manifest)
    script = (
        "import os, sys\nfrom pathlib import Path\n"
        "from glmspark.weights import lease\nfrom glmspark.weights.store import Store\n"
        "lease.hold(Store.open(Path(sys.argv[1])), Path(sys.argv[2]))\n"
        "os.execv('/bin/sh', ['sh', '-c', 'echo up; read line'])\n"  # as the rank does
    )
    argv = [sys.executable, "-c", script, str(store.root), str(made.folder)]
    with subprocess.Popen(
        argv, env=kit.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "up\n"
        with pytest.raises(PreflightError, match="running rank"):
            gc.forget(store, manifest.slug)
        store.manifest_path(manifest.slug).unlink()
        assert gc.collect(store).blobs == []
        assert contents(made.folder) == files
        rank.send_signal(signal.SIGKILL)
    assert {b for b, _ in gc.collect(store).blobs} == {
        sha256(data) for data in files.values()
    }


def test_what_a_killed_link_left_keeps_no_view_alive(
    filled: Filled, tmp_path: Path
) -> None:
    store, manifest, _ = filled
    old = view.link(store, manifest)
    left = store.root / "views" / f".{manifest.slug}.4711.tmp"
    left.symlink_to(old.path.readlink())
    template = tmp_path / "t.jinja"
    template.write_text("new")
    new = view.link(store, pin.pin(store, manifest, template.name, template))
    assert gc.collect(store).views == [old.folder]
    assert not os.path.lexists(left)
    assert new.path.resolve() == new.folder


def test_gc_refuses_beside_a_command_that_adds(filled: Filled) -> None:
    store, _, _ = filled
    with locks.using(store), pytest.raises(CommandError, match="another glmspark"):
        gc.collect(store)
    gc.collect(store)


def test_gc_refuses_while_a_manifest_cannot_be_read(filled: Filled) -> None:
    store, manifest, files = filled
    store.manifest_path(manifest.slug).write_text('{"format": 1')
    with pytest.raises(ConfigError):
        gc.collect(store)
    assert len(store.blobs()) == len(files)


def test_kill_9_during_gc_leaves_a_store_that_verifies(
    kit: Kit, filled: Filled
) -> None:
    store, manifest, _ = filled
    for number in range(40):
        data = b"stray %d" % number
        path = store.blob_path(sha256(data))
        store.mkdir(path.parent)
        path.write_bytes(data)
    script = (
        "import sys, os, signal\nfrom pathlib import Path\n"
        "from glmspark.weights import gc\nfrom glmspark.weights.store import Store\n"
        "steps = iter(range(15))\n"
        "def step():\n"
        "    if next(steps, None) is None: os.kill(os.getpid(), signal.SIGKILL)\n"
        "gc.collect(Store.open(Path(sys.argv[1])), on_step=step)\n"
    )
    argv = [sys.executable, "-c", script, str(store.root)]
    killed = subprocess.run(argv, env=kit.env, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert 0 < len(gc.plan(store, store.manifests()).blobs) < 40
    assert verify.verify(store, [manifest], deep=True).is_ok
    gc.collect(store)
    assert gc.plan(store, store.manifests()).blobs == []


def test_forget_then_gc_frees_the_blobs(kit: Kit, filled: Filled) -> None:
    store, manifest, _ = filled
    view.link(store, manifest)
    kit.ok("forget", manifest.repo)
    kit.ok("gc")
    assert store.blobs() == []
    assert not os.path.lexists(store.root / "views" / manifest.slug)


@pytest.mark.cases(66)
def test_list_says_what_is_there_and_at_which_revision(
    kit: Kit, filled: Filled
) -> None:
    store, _, files = filled
    store.blob_path(sha256(files[SHARD])).unlink()
    ran = kit.ok("list", "--json").json
    (row,) = ran["manifests"]
    assert (row["repo"], row["revision"]) == (REPO, REV)
    assert (row["files"], row["missing_files"]) == (len(files), 1)
    assert row["missing_bytes"] == len(files[SHARD])


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
