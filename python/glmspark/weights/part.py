"""A part: the file that grows toward one blob, hashed while it grows.

It carries its own lock, survives a kill, and is taken up again where it ended.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from glmspark.errors import IntegrityError
from glmspark.weights import hashing, locks
from glmspark.weights.files import disk_error
from glmspark.weights.hashing import Digest, Hashes
from glmspark.weights.manifest import FileEntry
from glmspark.weights.store import BlobState, Store

# Dirty pages are pushed out behind the writer in steps of this, so that the disk works
# from the start, the final fsync is short, and the page cache does not fill.
_WRITE_BEHIND_BYTES = 32 << 20


class Part:
    """The growing file of ``entry``, open and locked."""

    def __init__(self, store: Store, entry: FileEntry, fd: int) -> None:
        self.store = store
        self.entry = entry
        self.path = store.part_path(entry.key)
        self.fd = fd
        wants_git = not entry.sha256 or entry.size <= hashing.GIT_MAX_BYTES
        self.digest = Digest(entry.size if wants_git else None)
        self.on_bytes: Callable[[int], None] = lambda _count: None
        self._pushed = 0

    def resume(self) -> int:
        """Hash what is already there and give its size, from where to go on."""
        size = os.fstat(self.fd).st_size
        if size > self.entry.size:
            self.restart()
            return 0
        os.lseek(self.fd, 0, os.SEEK_SET)
        hashing.feed(self.fd, self.digest)
        self._pushed = self.digest.size
        return self.digest.size

    def restart(self) -> None:
        """Forget all bytes."""
        self.on_bytes(-self.digest.size)
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)
        self.digest.reset()
        self._pushed = 0

    def write(self, data: bytes | memoryview) -> int:
        """Append ``data``; CommandError with the remedy if the disk is full."""
        view = memoryview(data)
        done = 0
        try:
            while done < len(view):
                done += os.write(self.fd, view[done:])
        except OSError as error:
            # Keep file and hash in step, so that the next run resumes at the byte.
            self.digest.update(view[:done])
            raise disk_error(error, self.store.root) from error
        self.digest.update(view)
        self._push()
        self.on_bytes(len(view))
        return len(view)

    def tell(self) -> int:
        """The number of bytes so far."""
        return self.digest.size

    def take_over(self, file: str | Path) -> None:
        """Let ``file``, on the same file system, be the part; its bytes are hashed.

        The part's lock goes over to it, so that whoever waits goes on waiting.
        """
        fresh = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        try:
            self.restart()
            self.store.adopt(fresh)
            fcntl.flock(fresh, fcntl.LOCK_EX)
            Path(file).replace(self.path)
            os.dup2(fresh, self.fd, inheritable=False)
        finally:
            os.close(fresh)
        hashing.feed(self.fd, self.digest, advance=self.on_bytes)
        self._pushed = self.digest.size

    def _push(self) -> None:
        if self.digest.size - self._pushed >= _WRITE_BEHIND_BYTES:
            # Starts the write-out of dirty pages and drops those that are clean.
            # From one step back: what was dirty then is clean by now.
            start = max(0, self._pushed - _WRITE_BEHIND_BYTES)
            length = self.digest.size - start
            os.posix_fadvise(self.fd, start, length, os.POSIX_FADV_DONTNEED)
            self._pushed = self.digest.size

    # The end.

    def check(self, source: str) -> Hashes:
        """The hashes if right; else the bytes go and IntegrityError says why."""
        hashes = self.digest.result()
        entry = self.entry
        is_right = hashes.size == entry.size and (
            hashes.sha256 == entry.sha256
            if entry.sha256
            else hashes.git_oid == entry.git_oid
        )
        if is_right:
            return hashes
        self.restart()
        got = hashes.sha256 if entry.sha256 else f"git-{hashes.git_oid}"
        raise IntegrityError(
            f"{source} gave wrong bytes for {entry.path}: {hashes.size} bytes that "
            f"hash to {got}, needed are {entry.size} bytes with {entry.key}; they were "
            "thrown away"
        )

    def enter(self, hashes: Hashes) -> None:
        """Make the part the blob that ``hashes`` name."""
        try:
            self.store.enter(self.path, self.fd, hashes, private=True)
        except OSError as error:
            raise disk_error(error, self.store.root) from error
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def claimed(
    store: Store, entry: FileEntry, on_wait: Callable[[], None]
) -> Iterator[Part | None]:
    """The part of ``entry``, locked; None if its blob is there by the time it is ours.

    Two processes that want the same blob do one transfer: the second waits here.
    """
    path = store.part_path(entry.key)
    fd = locks.claim(path, on_wait)
    try:
        store.adopt(fd)
        sha256 = entry.sha256 or store.sha256_of_git(entry.git_oid)
        if sha256 and store.state(sha256) is BlobState.PRESENT:
            path.unlink()
            yield None
        else:
            yield Part(store, entry, fd)
    finally:
        os.close(fd)
