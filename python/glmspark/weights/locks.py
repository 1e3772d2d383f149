"""File locks: the store's, and the one that each growing file carries itself.

flock belongs to the open file, so a process that is killed lets go at once.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from glmspark.errors import CommandError
from glmspark.weights.files import disk_error, is_full
from glmspark.weights.store import Store


def _lock_file(store: Store) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    fd = os.open(store.root / "store.lock", flags, 0o644)
    store.adopt(fd)
    return fd


@contextmanager
def using(store: Store) -> Iterator[None]:
    """Add to the store; any number of processes may, but none while ``gc`` removes.

    At the end all names that were given are durable. A disk that has no room left for
    a small file of the store is a CommandError with the remedy.
    """
    fd = _lock_file(store)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        yield
    except OSError as error:
        if is_full(error):
            raise disk_error(error, store.root) from error
        raise
    finally:
        store.settle()
        os.close(fd)


@contextmanager
def alone(store: Store) -> Iterator[None]:
    """Have the store alone; CommandError at once if another process adds to it."""
    fd = _lock_file(store)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError(
                f"another glmspark command is adding to the store {store.root}; "
                "nothing was removed",
                hint="run it again when that command has ended",
            ) from None
        yield
    finally:
        os.close(fd)


def is_free(fd: int) -> bool:
    """Whether nobody holds ``fd``'s file; those who ask do not disturb each other."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def try_lock(fd: int) -> bool:
    """Whether nobody else holds ``fd``'s file; if so it is held now."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def claim(path: Path, on_wait: Callable[[], None]) -> int:
    """An fd on ``path`` (made if missing) that holds its lock.

    Waits for another holder, after ``on_wait``. When that one finished, the file has
    been renamed and a fresh one is made: the caller looks first whether it is needed.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not try_lock(fd):
                on_wait()
                fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_ino == path.stat().st_ino:
                return fd
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
