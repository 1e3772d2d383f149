"""Views and pins: what vLLM opens, and what was placed there by hand."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from glmspark.errors import IntegrityError
from glmspark.weights import builtin, gc, pin, verify, view
from glmspark.weights.hashing import Hashes
from glmspark.weights.manifest import FileEntry, Manifest, make_manifest
from glmspark.weights.store import Store

from tests.unit.weights.conftest import (
    REPO,
    Kit,
    contents,
)
from tests.unit.weights.fakehub import git_oid, sha256

Filled = tuple[Store, Manifest, dict[str, bytes]]


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
