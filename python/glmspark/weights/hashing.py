"""Hashes: sha256 of a file, and git's blob id where the Hub tells nothing else."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

# hashlib lets go of the GIL for the whole buffer. 1 MiB is past the knee of its rate
# and keeps the buffers of 20 threads at 20 MiB.
CHUNK_BYTES = 1 << 20
# Files up to here may be known by git's id alone (the Hub keeps larger ones in LFS),
# so both hashes of them are kept; above, a second hash would cost time for nothing.
GIT_MAX_BYTES = 16 << 20

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Hashes:
    """What a file's bytes hash to; ``git_oid`` is empty where it was not asked for."""

    size: int
    sha256: str
    git_oid: str = ""


class Digest:
    """A sha256 that grows, and git's blob id too if ``git_size`` is given."""

    def __init__(self, git_size: int | None = None) -> None:
        self._git_size = git_size
        self.reset()

    def reset(self) -> None:
        """Forget all bytes."""
        self.size = 0
        self._sha256 = hashlib.sha256()
        self._git = None
        if self._git_size is not None:
            # git's object name is sha1 by definition; the sha256 is what is trusted.
            self._git = hashlib.sha1(usedforsecurity=False)
            self._git.update(b"blob %d\0" % self._git_size)

    def update(self, data: bytes | memoryview) -> None:
        """Take in the next bytes."""
        self._sha256.update(data)
        if self._git is not None:
            self._git.update(data)
        self.size += len(data)

    def result(self) -> Hashes:
        """The hashes of all bytes so far."""
        git_oid = self._git.hexdigest() if self._git is not None else ""
        return Hashes(self.size, self._sha256.hexdigest(), git_oid)


def cpu_count() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def feed(
    fd: int, digest: Digest, *, advance: Callable[[int], None] | None = None
) -> None:
    """Read ``fd`` from where it stands to its end into ``digest``.

    ``advance`` is told of every chunk's bytes, and may raise to stop.
    """
    buffer = bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    while count := os.readv(fd, [buffer]):
        digest.update(view[:count])
        if advance is not None:
            advance(count)


def hash_fd(
    fd: int,
    *,
    want_git: bool = False,
    advance: Callable[[int], None] | None = None,
) -> Hashes:
    """The hashes of the whole file behind ``fd``.

    Its pages leave the page cache afterwards: on a machine whose GPU shares the
    memory, 164 GiB of clean cache is what the engine then cannot get.
    """
    size = os.fstat(fd).st_size
    digest = Digest(size if want_git else None)
    os.lseek(fd, 0, os.SEEK_SET)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    feed(fd, digest, advance=advance)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return digest.result()


def hash_file(
    path: Path,
    *,
    want_git: bool = False,
    advance: Callable[[int], None] | None = None,
) -> Hashes:
    """The hashes of the file ``path``; OSError where it cannot be read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return hash_fd(fd, want_git=want_git, advance=advance)
    finally:
        os.close(fd)


def parallel(
    work: Callable[[T], R],
    items: list[T],
    workers: int = 0,
    *,
    on_error: Callable[[], None] = lambda: None,
) -> list[R]:
    """``work`` of each item, in order, on ``workers`` threads (all cores if 0).

    The first error, or an interrupt, is raised once the running items have ended;
    ``on_error`` may tell them to. Those that have not begun are dropped.
    """
    with ThreadPoolExecutor(workers or cpu_count()) as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            on_error()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
