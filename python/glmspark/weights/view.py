"""Views: the folder of relative links that vLLM opens by path."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from glmspark.errors import IntegrityError
from glmspark.weights import locks
from glmspark.weights.files import fsync_dir, one_at_a_time
from glmspark.weights.manifest import Manifest
from glmspark.weights.store import Store

_SHOWN = 5


@dataclass(frozen=True)
class View:
    """A view: ``path`` is its lasting name, ``folder`` the links as they are now.

    ``folder`` never changes once made: a rank opens it, not ``path``, so that a later
    ``link`` cannot change files under a load.
    """

    path: Path
    folder: Path
    is_new: bool


def _target(store: Store, sha256: str, link: Path) -> str:
    return os.path.relpath(store.blob_path(sha256), link.parent)


def _is_whole(store: Store, manifest: Manifest, folder: Path) -> bool:
    for entry in manifest.files:
        link = folder / entry.path
        if not _leads_to(link, _target(store, entry.sha256, link)):
            return False
    return not _strangers(manifest, folder)


def _leads_to(link: Path, target: str) -> bool:
    try:
        return str(link.readlink()) == target
    except OSError:
        return False


def _check_complete(store: Store, manifest: Manifest) -> None:
    missing = store.missing(manifest)
    if missing:
        shown = ", ".join(entry.path for entry in missing[:_SHOWN])
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise IntegrityError(
            f"{manifest.ref} lacks {len(missing)} of {len(manifest.files)} files in "
            f"{store.root}, or they changed since they were hashed: {shown}{more}",
            hint="glmspark weights verify, then glmspark weights fetch",
        )


def _build(store: Store, manifest: Manifest, folder: Path) -> None:
    fresh = folder.parent / f".tmp-{secrets.token_hex(6)}"
    store.mkdir(fresh)
    # The links are made where the folder will be as deep: relpath sees the same depth.
    for entry in manifest.files:
        link = fresh / entry.path
        store.mkdir(link.parent)
        link.symlink_to(_target(store, entry.sha256, link))
        if os.geteuid() == 0:
            owner = store.root.stat()
            os.lchown(link, owner.st_uid, owner.st_gid)
    fsync_dir(fresh)
    fresh.rename(folder)
    fsync_dir(folder.parent)


def _mend(store: Store, manifest: Manifest, folder: Path) -> None:
    """Put right a view that somebody changed, link by link: a rank may have it open."""
    for entry in manifest.files:
        link = folder / entry.path
        if not _leads_to(link, target := _target(store, entry.sha256, link)):
            if link.is_dir() and not link.is_symlink():
                link.rename(_aside(store, link))
            store.symlink(link, target)
    for path in _strangers(manifest, folder):
        path.rename(_aside(store, path))
    store.settle()


def _aside(store: Store, path: Path) -> Path:
    name = f"{path.name}.{secrets.token_hex(6)}"
    return store.mkdir(store.root / "quarantine") / name


def _strangers(manifest: Manifest, folder: Path) -> list[Path]:
    """What is in the view and in no list: vLLM would take it for the checkpoint's."""
    known = {folder / entry.path for entry in manifest.files}
    return [
        path
        for path in folder.rglob("*")
        if path not in known and (path.is_symlink() or not path.is_dir())
    ]


def link(store: Store, manifest: Manifest) -> View:
    """The view of ``manifest``, built if it is not there; needs every blob.

    The lasting name changes from the old view to the new in one step. Raises
    IntegrityError naming what is missing; then nothing has changed.
    """
    gen = store.root / "views" / ".gen"
    with locks.using(store), one_at_a_time(gen):
        manifest = store.register(manifest)
        _check_complete(store, manifest)
        folder = gen / f"{manifest.slug}-{manifest.digest()[:16]}"
        is_new = not _is_whole(store, manifest, folder)
        if is_new and folder.exists():
            _mend(store, manifest, folder)
        elif is_new:
            _build(store, manifest, folder)
        path = store.root / "views" / manifest.slug
        target = os.path.relpath(folder, path.parent)
        if not path.is_symlink() or str(path.readlink()) != target:
            store.symlink(path, target)
        return View(path, folder, is_new)
