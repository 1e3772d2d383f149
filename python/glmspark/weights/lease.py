"""Leases: which views running ranks hold, so that no ``gc`` takes the files from them.

What a rank does is in ``glmspark.viewlease``, which travels to the nodes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from glmspark import viewlease
from glmspark.errors import IntegrityError
from glmspark.weights.locks import is_free, try_lock, using
from glmspark.weights.store import Store


def hold(store: Store, view: Path, *, inheritable: bool = True) -> list[int]:
    """Descriptors that keep ``view`` alive for as long as any process has one open.

    ``view`` is the name or the folder that ``link`` gave. The locks go with the open
    files: they survive ``exec`` (unless not ``inheritable``), and end with the last
    process that holds one, however that ends. IntegrityError if it is not there.
    """
    with using(store):
        try:
            _, locked = viewlease.hold(view, inheritable=inheritable)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise IntegrityError(
                f"the view {view} is not there", hint="glmspark weights link"
            ) from error
    return locked


def _read(path: Path) -> tuple[str, bool]:
    """The view's name and whether some process still holds the lease."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # whoever may read may ask
    try:
        alive = not is_free(fd)
        name = ""
        with suppress(ValueError, KeyError):  # torn: its process died while writing
            name = str(json.loads(path.read_bytes())["view"])
        return name, alive
    finally:
        os.close(fd)


def leases(store: Store) -> Iterator[tuple[Path, str, bool]]:
    """(lease file, view's folder name, is it held) of every lease."""
    for path in sorted((store.root / "leases").glob("*.json")):
        with suppress(FileNotFoundError):  # a gc was here first
            yield (path, *_read(path))


def _is_locked(folder: Path) -> bool:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return not try_lock(fd)
    finally:
        os.close(fd)


def held_views(store: Store) -> set[str]:
    """The folder names of the views that running processes use."""
    held = {name for _, name, alive in leases(store) if alive}
    gen = store.root / "views" / ".gen"
    folders = [path for path in gen.iterdir() if path.is_dir()] if gen.is_dir() else []
    return held | {folder.name for folder in folders if _is_locked(folder)}
