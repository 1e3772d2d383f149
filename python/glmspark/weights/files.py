"""The small files and names of a store: owners, whole writes, durable names."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glmspark.errors import CommandError

DIR_MODE = 0o755


def _fresh_name(folder: Path, name: str) -> Path:
    """A name that nobody else uses; process ids repeat between containers."""
    return folder / f".{name}.{os.urandom(6).hex()}.tmp"


def is_left_over(path: Path) -> bool:
    """Whether ``path`` is what a killed write of this module left."""
    return path.name[0] == "." and path.name.endswith(".tmp")


def fsync_dir(path: Path) -> None:
    """Make the names in the folder ``path`` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Do a short thing with the names in ``folder`` while nobody else does."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def is_full(error: OSError) -> bool:
    """Whether ``error`` says that there is no room left, or none for this user."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def disk_error(error: OSError, root: Path) -> CommandError:
    """What a failed write to the store means, in words; what is written stays."""
    if is_full(error):
        what = "is full" if error.errno == errno.ENOSPC else "is over its quota"
        return CommandError(
            f"the file system of {root} {what}; what has arrived is kept",
            hint=f"free space (df -h {root}; glmspark weights gc --dry-run), run again",
        )
    return CommandError(f"cannot write to the store {root}: {error}")


class OwnedFolder:
    """A folder whose files all belong to its owner, whoever writes them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        stat = root.stat()
        self._owner = (stat.st_uid, stat.st_gid)
        self._unsynced: set[Path] = set()

    def adopt(self, fd: int) -> None:
        """Give the file behind ``fd`` to the store's owner, where this is root.

        A ``sudo glmspark weights fetch`` then leaves no file that the user cannot move.
        """
        if os.geteuid() == 0:
            stat = os.fstat(fd)
            if (stat.st_uid, stat.st_gid) != self._owner:
                os.fchown(fd, *self._owner)

    def mkdir(self, path: Path) -> Path:
        """``path``, made with its parents below the root where they are missing."""
        if not path.is_dir():
            self.mkdir(path.parent)
            path.mkdir(exist_ok=True)
            path.chmod(DIR_MODE)
            give(path, self._owner)
        return path

    def write_text(self, path: Path, text: str) -> None:
        """Replace the small file ``path`` by ``text``, whole or not at all."""
        fresh = _fresh_name(self.mkdir(path.parent), path.name)
        try:
            with fresh.open("w", encoding="utf-8") as file:
                file.write(text)
                os.fchmod(file.fileno(), 0o644)
                self.adopt(file.fileno())
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        fsync_dir(path.parent)

    def symlink(self, path: Path, target: str) -> None:
        """Replace the link ``path`` by one to ``target`` in one step."""
        fresh = _fresh_name(self.mkdir(path.parent), path.name)
        fresh.symlink_to(target)
        try:
            give(fresh, self._owner)
            fresh.replace(path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        self._unsynced.add(path.parent)

    def settle(self) -> None:
        """Make the names that were given so far durable, one sync for each folder.

        A power cut before that loses names, never bytes under a wrong one: data is
        synced before each rename.
        """
        while self._unsynced:
            fsync_dir(self._unsynced.pop())


def give(path: Path, owner: tuple[int, int]) -> None:
    """Hand ``path`` to ``owner`` where this is root; links are not followed."""
    if os.geteuid() == 0:
        os.chown(path, *owner, follow_symlinks=False)
