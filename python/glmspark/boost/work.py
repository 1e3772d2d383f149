"""A build's folder: what has arrived, under names that tell whether it is right.

    builds/<address>/lock      held by the one process that works on it
    builds/<address>/<key>.<sha256>     a finished piece; <key> says which

A piece gets its name by rename after its bytes were synced, so that a kill or a power
cut at any point leaves whole pieces and at most one file that starts with a dot.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from glmspark.errors import CommandError
from glmspark.weights import hashing
from glmspark.weights.files import disk_error
from glmspark.weights.store import Store


class Work:
    """The opened folder; ``found`` maps a piece's key to its sha256."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.folder = folder
        self.found: dict[str, str] = {}
        for path in folder.iterdir():
            if path.name[0] == ".":
                _remove(path)
                continue
            key, dot, sha256 = path.name.rpartition(".")
            if dot and len(sha256) == 64:
                self.found[key] = sha256

    def path(self, key: str) -> Path:
        """Where the finished piece ``key`` is."""
        return self.folder / f"{key}.{self.found[key]}"

    def put(self, key: str, data: bytes) -> None:
        """Keep ``data`` as the piece ``key``, whole or not at all.

        Raises CommandError with the remedy if the disk is full.
        """
        fresh = self.folder / f".{key}.tmp"
        try:
            with fresh.open("wb") as file:
                file.write(data)
                file.flush()
                self.store.adopt(file.fileno())
                os.fdatasync(file.fileno())
            self.adopt(key, fresh, hashlib.sha256(data).hexdigest())
        except OSError as error:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise disk_error(error, self.store.root) from error

    def adopt(self, key: str, fresh: Path, sha256: str) -> None:
        """Give the synced file ``fresh`` its name as the piece ``key``."""
        fresh.replace(self.folder / f"{key}.{sha256}")
        self._sync()
        self.found[key] = sha256

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """An empty folder beside the pieces; what is left in it at the end goes."""
        folder = self.folder / ".out"
        self.store.mkdir(folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder)

    @contextmanager
    def disk(self) -> Iterator[None]:
        """Turn a failed write inside into what the user has to know."""
        try:
            yield
        except OSError as error:
            raise disk_error(error, self.store.root) from error

    def _sync(self) -> None:
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def check(self, key: str) -> bool:
        """Whether the piece is there and its bytes are what its name says.

        One that went bad is removed: it has to come again.
        """
        if key not in self.found:
            return False
        path = self.path(key)
        try:
            if hashing.hash_file(path).sha256 == self.found[key]:
                return True
        except FileNotFoundError:
            pass
        self.drop(key)
        return False

    def drop(self, key: str) -> None:
        """Forget the piece."""
        self.path(key).unlink(missing_ok=True)
        del self.found[key]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


@contextmanager
def claimed(store: Store, address: str) -> Iterator[Work]:
    """The work folder of ``address``, alone.

    Raises CommandError that names the process which has it.
    """
    folder = store.mkdir(store.root / "builds" / address)
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 100, 0).decode(errors="replace").strip()
            raise CommandError(
                f"another process builds this already: {holder or 'unknown'}",
                hint="wait until it has ended; what it makes serves both",
            ) from None
        store.adopt(fd)
        with suppress(OSError):  # the lock holds on a full disk, too
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"pid {os.getpid()}\n".encode(), 0)
        yield Work(store, folder)
    finally:
        os.close(fd)


def discard(store: Store, address: str) -> None:
    """Remove the work folder of ``address``, if there is one."""
    folder = store.root / "builds" / address
    if folder.is_dir():
        shutil.rmtree(folder)
