"""Files that are whole or absent, and one writer at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from vllm_exl3.errors import Exl3Error


@contextmanager
def locked(*folders: Path) -> Iterator[None]:
    """Hold the folders, which are made, against every other caller.

    Waits for another process, and says so; the kernel gives the lock back when its
    holder dies.
    """
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        # One order for everybody, so that two callers cannot wait for each other.
        for folder in sorted({path.resolve() for path in folders}):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sys.stderr.write(f"another process works in {folder}: waiting\n")
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """An empty folder to fill, which becomes ``target`` when the block ends well.

    It stands beside the target as ``NAME.partial``, so what was cut short is never
    taken for a result; the next call starts afresh. Raises ``Exl3Error`` when the
    target holds something or another process is at it.
    """
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise Exl3Error(
            f"{target} exists", hint="name a new folder, or remove it", exit_code=2
        )
    partial = target.absolute().with_name(f"{target.absolute().name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    handle = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Exl3Error(
                f"another process writes {target}", hint="wait for it", exit_code=5
            ) from error
        try:
            clear(partial)
            yield partial
            partial.rename(target)
        except BaseException:
            shutil.rmtree(partial)
            raise
    finally:
        os.close(handle)


def clear(folder: Path) -> None:
    """Remove everything in ``folder``, and leave the folder."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def write_text(path: Path, text: str) -> None:
    """``text`` as ``path``, whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    part.replace(path)
