"""Leases: a running rank holds its view, so that no ``gc`` takes the files from it."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from glmspark.errors import IntegrityError
from glmspark.weights.locks import try_lock, using
from glmspark.weights.store import Store


def hold(store: Store, view: Path, *, inheritable: bool = True) -> int:
    """An fd that keeps ``view`` alive for as long as any process has it open.

    ``view`` is the resolved folder that ``link`` gave. The lock goes with the open
    file: it survives ``exec`` (the fd is inheritable unless told otherwise), and ends
    with the last process that holds it, however that ends.
    """
    real = view.resolve()
    with using(store):
        if not real.is_dir():
            raise IntegrityError(f"the view {view} is not there", hint=_HINT)
        path = store.root / "leases" / f"{os.getpid()}-{secrets.token_hex(4)}.json"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        store.adopt(fd)
        fcntl.flock(fd, fcntl.LOCK_SH)
        os.write(fd, json.dumps({"view": real.name, "pid": os.getpid()}).encode())
    os.set_inheritable(fd, inheritable)
    return fd


_HINT = "glmspark weights link"


def _read(path: Path) -> tuple[str, bool]:
    """The view's name and whether some process still holds the lease."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        alive = not try_lock(fd)
        name = ""
        with suppress(ValueError, KeyError):  # torn: its process died while writing
            name = str(json.loads(path.read_bytes())["view"])
        return name, alive
    finally:
        os.close(fd)


def leases(store: Store) -> Iterator[tuple[Path, str, bool]]:
    """(lease file, view's folder name, is it held) of every lease."""
    for path in sorted((store.root / "leases").glob("*.json")):
        yield (path, *_read(path))


def held_views(store: Store) -> set[str]:
    """The folder names of the views that running processes use."""
    return {name for _, name, alive in leases(store) if alive}
