"""One operation on a kit at a time, with who holds it."""

from __future__ import annotations

import fcntl
import getpass
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from glmspark.errors import CommandError, ConfigError


def user_name() -> str:
    """Who runs this; by number where the user has no name (a container's --user)."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


@contextmanager
def operation_lock(path: Path, what: str) -> Iterator[None]:
    """Hold the kit's lock for ``what``; the kernel frees it however this ends.

    Raises:
        CommandError: another operation holds it; its owner is in the message.
        ConfigError: the lock file cannot be opened.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"cannot open the lock {path}: {error.strerror}", hint=f"ls -l {path}"
        ) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(handle, 200, 0).decode(errors="replace").strip()
            raise CommandError(
                f"another operation works on this kit: {holder or 'unknown'}",
                hint="wait until it has ended, then run this again",
            ) from error
        user = user_name()
        text = f"{what} by {user}, pid {os.getpid()}, since {time.strftime('%H:%M:%S')}"
        with suppress(OSError):  # the lock holds on a full disk, too
            os.ftruncate(handle, 0)
            os.pwrite(handle, text.encode(), 0)
        yield
    finally:
        os.close(handle)
