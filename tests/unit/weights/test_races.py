"""Company: two commands that meet in one store, and what was changed unseen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from glmspark.errors import ConfigError
from glmspark.weights import gc, hashing, importer, pin, verify, view
from glmspark.weights.hashing import Hashes
from glmspark.weights.journal import Journal, Record
from glmspark.weights.manifest import FileEntry, Manifest, make_manifest
from glmspark.weights.store import BlobState, Store

from tests.unit.weights.conftest import (
    NOBODY,
    REPO,
    REV,
    SHARD,
    Kit,
    at_once,
    contents,
    flip,
    manifest_of,
    write_tree,
)
from tests.unit.weights.fakehub import git_oid, sha256

Filled = tuple[Store, Manifest, dict[str, bytes]]
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for two users")


# -- verify --------------------------------------------------------------------


def test_two_verifies_at_once_move_a_bad_blob_once(filled: Filled) -> None:
    store, manifest, files = filled
    bad = [sha256(data) for path, data in files.items() if path.endswith("tensors")]
    for name in bad:
        flip(store.blob_path(name))
    reports = at_once(lambda _: verify.verify(Store(store.root), [manifest]), 4)
    assert not any(report.is_ok for report in reports)
    moved = [d.moved_to for r in reports for d in r.damaged if d.moved_to is not None]
    assert sorted(p.name for p in moved) == sorted(f"{name}.1" for name in bad)
    assert len(list((store.root / "quarantine").iterdir())) == len(bad)


def test_verifies_of_two_processes_end_with_what_they_saw(
    kit: Kit, filled: Filled
) -> None:
    store, _, files = filled
    flip(store.blob_path(sha256(files[SHARD])), keep_stat=True)
    both = [kit.start("verify", "--deep") for _ in range(2)]
    for process in both:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 7, output
        assert "Traceback" not in output
        assert SHARD in output


def test_a_good_blob_that_came_meanwhile_is_not_moved_aside(filled: Filled) -> None:
    """One verify reads the bad one, another moves it, a fetch brings the right one."""
    store, _, files = filled
    name = sha256(files[SHARD])
    path = store.blob_path(name)
    flip(path)
    bad = path.stat().st_ino
    assert store.quarantine(name, bad) is not None
    path.write_bytes(files[SHARD])
    store.know(hashing.hash_file(path))
    assert store.quarantine(name, bad) is None
    assert store.state(name) is BlobState.PRESENT


def test_a_blob_that_grows_while_it_is_read_is_not_known_as_right(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, manifest, files = filled
    name = sha256(files[SHARD])
    path = store.blob_path(name)
    right = hashing.hash_fd

    def then_edited(fd: int, **more: object) -> Hashes:
        hashes = right(fd)
        if hashes.sha256 == name:
            flip(path)  # after its last byte was read, before it is written down
        return hashes

    monkeypatch.setattr(hashing, "hash_fd", then_edited)
    verify.verify(store, [manifest], deep=True)
    assert store.state(name) is BlobState.TOUCHED


@NEEDS_ROOT
def test_a_blob_that_may_not_be_read_is_no_damage(kit: Kit, filled: Filled) -> None:
    store, _, files = filled
    path = store.blob_path(sha256(files[SHARD]))
    for base in (store.root, *store.root.parents[:3]):
        base.chmod(0o755)
    for item in store.root.rglob("*"):
        if not item.is_symlink():
            os.chown(item, NOBODY, NOBODY)
    os.chown(path, 0, 0)
    path.chmod(0o600)
    os.chown(store.root, NOBODY, NOBODY)
    user = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    probe = [*user, sys.executable, "-c", "import click, glmspark"]
    if subprocess.run(probe, env=kit.env, check=False, capture_output=True).returncode:
        pytest.skip("another user cannot run this checkout's Python")
    done = subprocess.run(
        [*user, *kit.argv("verify", "--deep")],
        env=kit.env,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert "Permission denied" in done.stderr
    assert "not moved" in done.stderr
    assert path.exists()


# -- entering ------------------------------------------------------------------


def test_import_hashes_a_touched_blob_before_it_takes_another(
    filled: Filled, tmp_path: Path
) -> None:
    store, manifest, files = filled
    flip(store.blob_path(sha256(files[SHARD])))
    source = write_tree(tmp_path / "again", files)
    report = importer.import_from(store, source, [manifest])
    assert report.imported == 1
    assert len(list((store.root / "quarantine").iterdir())) == 1
    assert verify.verify(store, [manifest], deep=True).is_ok


def test_what_stands_at_a_blobs_name_is_moved_aside_not_written_over(
    filled: Filled, tmp_path: Path
) -> None:
    store, _, files = filled
    name = sha256(files[SHARD])
    flip(store.blob_path(name))
    with store.part_path(name).open("wb+") as part:
        part.write(files[SHARD])
        part.flush()
        hashes = Hashes(len(files[SHARD]), name)
        store.enter(Path(part.name), part.fileno(), hashes, private=True)
    (aside,) = (store.root / "quarantine").iterdir()
    assert sha256(aside.read_bytes()) != name
    assert store.blob_path(name).read_bytes() == files[SHARD]


# -- manifests -----------------------------------------------------------------


def test_pins_made_at_once_are_all_kept(filled: Filled, tmp_path: Path) -> None:
    store, manifest, _ = filled
    for number in range(6):
        (tmp_path / f"{number}.jinja").write_text(f"template {number}")

    def one(number: int) -> None:
        name = f"{number}.jinja"
        pin.pin(Store(store.root), manifest, name, tmp_path / name)

    at_once(one, 6)
    pinned = {e.path for e in store.manifests()[manifest.slug].files if e.pinned}
    assert pinned == {f"{number}.jinja" for number in range(6)}


def test_two_lists_of_one_commit_may_not_disagree(filled: Filled) -> None:
    store, manifest, files = filled
    other = manifest_of(files | {SHARD: b"x" * len(files[SHARD])})
    with pytest.raises(ConfigError, match=f"disagree on {SHARD}"):
        store.register(other)
    assert store.manifests()[manifest.slug] == manifest
    small = files["config.json"]  # known by its other name: that is no disagreement
    entry = FileEntry("config.json", len(small), "", git_oid(small))
    store.register(make_manifest(REPO, REV, [entry]))


# -- views ---------------------------------------------------------------------


def test_links_made_at_once_end_in_one_view(filled: Filled) -> None:
    store, manifest, files = filled
    made = at_once(lambda _: view.link(Store(store.root), manifest).folder, 6)
    assert len(set(made)) == 1
    assert contents(made[0]) == files
    assert [p.name for p in made[0].parent.iterdir()] == [made[0].name]


def test_a_changed_view_is_mended_under_a_rank_that_has_it_open(
    filled: Filled, tmp_path: Path
) -> None:
    store, manifest, files = filled
    made = view.link(store, manifest)
    fd = os.open(made.folder, os.O_RDONLY)
    (made.folder / SHARD).unlink()
    (made.folder / SHARD).write_bytes(b"mine")
    (made.folder / "config.json").unlink()
    (made.folder / "chat_template.jinja").write_text("not of this checkpoint")
    again = view.link(store, manifest)
    assert again.folder == made.folder
    assert again.is_new
    assert contents(made.folder) == files
    assert os.fstat(fd).st_ino == made.folder.stat().st_ino
    assert "chat_template.jinja" not in {p.name for p in made.folder.iterdir()}
    os.close(fd)
    kept = [p.read_bytes() for p in (store.root / "quarantine").iterdir()]
    assert b"not of this checkpoint" in kept
    assert not view.link(store, manifest).is_new


def test_what_a_killed_write_left_goes_with_gc(filled: Filled) -> None:
    store, manifest, _ = filled
    oid = git_oid(b"abc")
    left = [
        store.root / "manifests" / f".{manifest.slug}.json.0a1b2c3d4e5f.tmp",
        store.root / "git" / oid[:2] / f".{oid}.0a1b2c3d4e5f.tmp",
    ]
    store.mkdir(left[1].parent)
    left[0].write_text("{")
    blob = store.blob_path(store.blobs()[0])
    left[1].symlink_to(os.path.relpath(blob, left[1].parent))
    gc.collect(store)
    assert not any(os.path.lexists(path) for path in left)
    assert verify.verify(store, deep=True).is_ok


# -- the journal ---------------------------------------------------------------


def test_the_journal_is_read_on_from_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    mine, other = Journal(path, lambda fd: None), Journal(path, lambda fd: None)
    first, second = Record("a", 1, 2, 3), Record("b", 4, 5, 6)
    mine.add(first)
    assert mine.records() == {"a": first}
    other.add(second)
    with path.open("ab") as file:
        file.write(b'{"blob": "c", "si')  # a line on its way
    assert mine.records() == {"a": first, "b": second}
    with path.open("ab") as file:
        file.write(b'ze": 7, "mtime_ns": 8, "ino": 9}\n')
    assert mine.records()["c"] == Record("c", 7, 8, 9)
    other.remove("a")
    assert set(mine.records()) == {"b", "c"}
    path.unlink()
    assert mine.records() == {}
