"""A rank's hold on the view it serves, so that no ``gc`` takes the files from it.

Two locks, both of open files: they survive ``exec`` and end with the last process that
has them, however it ends. One is on the view's folder, which whoever may read may lock;
one on a file in ``leases/``, which says who, where this user may write one.
Standard library alone: it is sent to the nodes.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def store_of(folder: Path) -> Path | None:
    """The store that the resolved ``folder`` is a view of; None if it is no view."""
    gen, root = folder.parent, folder.parent.parent.parent
    is_view = gen.name == ".gen" and gen.parent.name == "views"
    return root if is_view and (root / "leases").is_dir() else None


def hold(model: Path, *, inheritable: bool = True) -> tuple[Path, list[int]]:
    """The folder that an engine told to open ``model`` has to open, held from now on.

    The name of a view leads to its present folder, which never changes, so that a
    later ``link`` cannot change files under a load. The descriptors that hold it are
    in the list; it is empty for a folder that is no view.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    real = model.resolve(strict=True)
    root = store_of(real)
    if root is None:
        return model, []
    with _no_collection(root):
        locked = _lock_folder(real)
    with suppress(OSError):  # another user's store, or read-only
        locked.append(_write_lease(root, real))
    for fd in locked:
        os.set_inheritable(fd, inheritable)
    return real, locked


@contextmanager
def _no_collection(root: Path) -> Iterator[None]:
    """No ``gc`` decides while the hold is being taken; it has this lock alone."""
    fd = -1
    with suppress(OSError):  # a store in which nothing was ever collected, or NFS
        fd = os.open(root / "store.lock", os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_SH)
    try:
        yield
    finally:
        if fd >= 0:
            os.close(fd)


def held(rank: Mapping[str, Any]) -> dict[str, Any]:
    """``rank`` told the folder behind its view's name; this process holds it."""
    folder, _ = hold(Path(rank["model"]), inheritable=False)
    at = len(rank["program"]) + 1
    argv = [*rank["argv"][:at], str(folder), *rank["argv"][at + 1 :]]
    return {**rank, "argv": argv, "model": str(folder)}


def _lock_folder(folder: Path) -> list[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(fd, fcntl.LOCK_SH)
    if not os.path.samestat(os.fstat(fd), folder.stat()):
        os.close(fd)  # it was collected before the lock was ours
        raise FileNotFoundError(f"the view {folder} was collected just now")
    return [fd]


def _write_lease(root: Path, folder: Path) -> int:
    path = root / "leases" / f"{os.getpid()}-{os.urandom(4).hex()}.json"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX)
    if os.geteuid() == 0:
        owner = root.stat()
        os.fchown(fd, owner.st_uid, owner.st_gid)
    os.write(fd, json.dumps({"view": folder.name, "pid": os.getpid()}).encode())
    return fd
