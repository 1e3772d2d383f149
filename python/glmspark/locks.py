"""One operation on a kit at a time, across users and checkouts, with who holds it.

The kit's own state folder is one place for one user; the lock lies where every user of
the machine finds it, by the kit's name and rendezvous port: two kits of one name with
other ports can run side by side and are two kits.
"""

from __future__ import annotations

import fcntl
import getpass
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from glmspark.errors import CommandError, ConfigError

FOLDER = "glmspark"
OPEN = stat.S_ISVTX | stat.S_IWOTH


def user_name() -> str:
    """Who runs this; by number where the user has no name (a container's --user)."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _base() -> Path:
    """Where locks lie: the same place for every user, gone with a reboot."""
    for place in (Path("/run/lock"), Path("/tmp")):  # noqa: S108 - modes are checked
        with suppress(OSError):
            if place.stat().st_mode & OPEN == OPEN:
                return place
    raise ConfigError(
        "neither /run/lock nor /tmp is a folder that every user may write to",
        hint="ls -ld /run/lock /tmp; sudo chmod 1777 /tmp",
    )


def lock_folder(base: Path | None = None) -> Path:
    """The folder of the kits' locks, made with the mode of /tmp if it is not there.

    Raises:
        ConfigError: somebody made something else of it.
    """
    folder = (base or _base()) / FOLDER
    with suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o1777)  # whatever the umask says
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode) or not seen.st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"{folder} is no folder that every user may write to",
            hint=f"ls -ld {folder}; remove it if it is not yours to keep",
        )
    return folder


def lock_file(kit: str, port: int, base: Path | None = None) -> Path:
    """The lock of the kit of that name with that rendezvous port on this machine."""
    return lock_folder(base) / f"{kit}-{port}.lock"


def _open(path: Path) -> int:
    """The lock file, made if needed; a link in its place is not followed.

    Another user's file is opened for reading: that is enough to lock it. The kernel
    refuses O_CREAT on such a file in a sticky folder (fs.protected_regular).

    Raises:
        ConfigError: it cannot be opened.
    """
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o644)
            os.fchmod(handle, 0o644)
            return handle
        except FileExistsError:
            mode = os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY
            return os.open(path, mode | flags)
    except OSError as error:
        raise ConfigError(
            f"cannot open the lock {path}: {error.strerror}", hint=f"ls -l {path}"
        ) from error


@contextmanager
def operation_lock(path: Path, what: str) -> Iterator[None]:
    """Hold the kit's lock for ``what``; the kernel frees it however this ends.

    Who holds it stands beside it in a file of the holder's own, since a file that
    another user made cannot be written.

    Raises:
        CommandError: another operation holds it; its owner is in the message.
        ConfigError: the lock file cannot be opened.
    """
    handle = _open(path)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CommandError(
                f"another operation works on this kit: {holder(path) or 'unknown'}",
                hint="wait until it has ended, then run this again",
            ) from error
        _sign(path, what)
        yield
    finally:
        os.close(handle)


def _notes(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.by-*"))


def _sign(path: Path, what: str) -> None:
    """Leave who holds the lock; a full disk or another's note is no reason to fail."""
    user, where = user_name(), Path.cwd() if Path("/proc/self/cwd").exists() else ""
    since = time.strftime("%H:%M:%S")
    text = f"{what} by {user}, pid {os.getpid()}, in {where}, since {since}"
    note = path.with_name(f"{path.name}.by-{os.getuid()}")
    for old in _notes(path):
        with suppress(OSError):
            old.unlink()
    with suppress(OSError):
        handle = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        with os.fdopen(handle, "w") as file:
            os.fchmod(handle, 0o644)
            file.write(text)


def holder(path: Path) -> str:
    """Who holds the lock: of the notes, the newest."""
    found = []
    for note in _notes(path):
        with suppress(OSError):
            found.append((note.stat().st_mtime, note.read_text(errors="replace")[:300]))
    return max(found)[1] if found else ""
