"""Import: what a cache, snapshot or folder on some disk already holds."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from glmspark.weights import builtin, importer, verify, view
from glmspark.weights.manifest import FileEntry, Manifest, make_manifest
from glmspark.weights.store import Store

from tests.unit.weights.conftest import (
    REPO,
    REV,
    SHARD,
    Kit,
    checkpoint,
    contents,
    manifest_of,
    write_tree,
)
from tests.unit.weights.fakehub import LFS_FROM, git_oid, sha256

Filled = tuple[Store, Manifest, dict[str, bytes]]


def hub_cache(root: Path, files: dict[str, bytes], *, shared: bool = False) -> Path:
    """A cache as huggingface_hub lays it out; ``shared``: blobs above the model."""
    model = root / "models--kit--model"
    blobs = root / "blobs" if shared else model / "blobs"
    snapshot = model / "snapshots" / REV
    blobs.mkdir(parents=True)
    for path, data in files.items():
        name = sha256(data) if len(data) >= LFS_FROM else git_oid(data)
        (blobs / name).write_bytes(data)
        link = snapshot / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blobs / name, link.parent))
    return root


def stats(root: Path) -> dict[str, tuple[int, ...]]:
    """What must not change of a source: ctime moves when a hard link is made."""
    found = {}
    for path in sorted(root.rglob("*")):
        s = path.lstat()
        fields = (s.st_ino, s.st_mode, s.st_uid, s.st_gid, s.st_size, s.st_mtime_ns)
        found[str(path)] = fields
    return found


def hub_manifest(files: dict[str, bytes]) -> Manifest:
    """What ``lock`` gives: git ids for small files."""
    entries = [
        FileEntry(p, len(d), sha256(d))
        if len(d) >= LFS_FROM
        else FileEntry(p, len(d), "", git_oid(d))
        for p, d in files.items()
    ]
    return make_manifest(REPO, REV, entries)


# -- import --------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.cases(53)
def test_a_hub_cache_comes_in_without_a_copy_and_stays_as_it_was(
    tmp_path: Path, store: Store, shared: bool, whole: bool
) -> None:
    files = checkpoint()
    cache = hub_cache(tmp_path / "cache", files, shared=shared)
    before = stats(cache)
    source = cache if whole else cache / "models--kit--model" / "snapshots" / REV
    manifest = hub_manifest(files)
    report = importer.import_from(store, source, [manifest])
    assert report.imported == len(files)
    assert report.copied == 0
    assert report.reflinked + report.hard_linked == len(files)
    assert report.unusable == []
    assert stats(cache) == before
    assert contents(view.link(store, manifest).folder) == files


@pytest.mark.cases(56)
def test_only_files_with_the_right_hash_come_in_and_the_rest_is_explained(
    tmp_path: Path, store: Store
) -> None:
    files = checkpoint(shards=5)
    names = [f"model-{i:05}-of-00005.safetensors" for i in range(1, 6)]
    source = write_tree(tmp_path / "source", files)
    flipped = bytearray(files[names[0]])
    flipped[7] ^= 1
    (source / names[0]).write_bytes(flipped)
    (source / names[1]).write_bytes(files[names[1]][:-1000])
    (source / names[2]).unlink()
    (source / names[2]).symlink_to("nowhere")
    (source / names[3]).write_bytes(b"")
    (source / "xyz.incomplete").write_bytes(b"half")
    (source / "notes.txt").write_bytes(b"mine")
    report = importer.import_from(store, source, [manifest_of(files)])
    reasons = {Path(path).name: reason for path, reason in report.unusable}
    assert "wrong hash" in reasons[names[0]]
    assert "truncated" in reasons[names[1]]
    assert "broken link" in reasons[names[2]]
    assert "truncated: 0 bytes" in reasons[names[3]]
    assert "unfinished" in reasons["xyz.incomplete"]
    assert "notes.txt" not in reasons
    assert set(store.blobs()) == {
        sha256(d) for p, d in files.items() if p not in names[:4]
    }


def test_another_file_system_is_copied_and_the_copy_checked(
    tmp_path: Path, store: Store
) -> None:
    other = Path("/dev/shm")  # noqa: S108 - a second file system
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system: /dev/shm is none here")
    files = checkpoint()
    source = other / f"glmspark-test-{os.getpid()}"
    try:
        report = importer.import_from(
            store, write_tree(source, files), [manifest_of(files)]
        )
    finally:
        shutil.rmtree(source)
    assert report.copied == len(files)
    assert verify.verify(store, [manifest_of(files)], deep=True).is_ok


def test_a_source_edited_in_place_later_is_noticed(
    tmp_path: Path, store: Store
) -> None:
    files = checkpoint()
    source = write_tree(tmp_path / "source", files)
    manifest = manifest_of(files)
    importer.import_from(store, source, [manifest])
    if store.blob_path(sha256(files[SHARD])).stat().st_nlink == 1:
        pytest.skip("this file system makes reflinks: the inode is not shared")
    (source / SHARD).write_bytes(b"edited")
    assert not verify.verify(store, [manifest]).is_ok


def test_reflinks_are_made_where_the_file_system_can(tmp_path: Path) -> None:
    image, mount = tmp_path / "xfs.img", tmp_path / "xfs"
    mount.mkdir()
    if not shutil.which("mkfs.xfs"):
        pytest.skip("needs mkfs.xfs (package xfsprogs)")
    with image.open("wb") as file:
        file.truncate(400 << 20)
    subprocess.run(["mkfs.xfs", "-q", image], check=True, capture_output=True)
    argv = ["mount", "-o", "loop", image, mount]
    if subprocess.run(argv, check=False, capture_output=True).returncode:
        pytest.skip("needs root and a loop device to mount an xfs image")
    try:
        files = checkpoint()
        source = write_tree(mount / "source", files)
        store = Store.open(mount / "store", create=True)
        report = importer.import_from(store, source, [manifest_of(files)])
        assert report.reflinked == len(files)
        inodes = {p.stat().st_ino for p in source.rglob("*")}
        paths = [store.blob_path(b) for b in store.blobs()]
        assert not inodes & {p.stat().st_ino for p in paths}
        assert {p.stat().st_mode & 0o777 for p in paths} == {0o444}
    finally:
        subprocess.run(["umount", mount], check=True)


def test_import_of_the_real_list_reads_no_file_of_another_size(
    tmp_path: Path, store: Store
) -> None:
    """The real names with sparse files one byte short: explained, not hashed."""
    target = builtin.builtin("target")
    source = tmp_path / "source"
    source.mkdir()
    for entry in target.files:
        with (source / entry.path).open("wb") as file:
            file.truncate(entry.size - 1)
    report = importer.import_from(store, source, [target])
    assert (report.imported, report.hashed_bytes) == (0, 0)
    assert len(report.unusable) == len(target.files)


def test_the_command_says_what_it_did_not_use(kit: Kit, tmp_path: Path) -> None:
    files = checkpoint()
    source = write_tree(tmp_path / "source", files)
    (source / SHARD).write_bytes(b"x" * len(files[SHARD]))
    ran = kit.ok("import", source, kit.lock(manifest_of(files)), "--json")
    assert ran.json["imported"] == len(files) - 1
    assert f"{SHARD}: wrong hash: damaged" in ran.err
