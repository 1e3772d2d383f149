"""What this machine must have before anything is made, and how to get it."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

from glmspark.errors import ConfigError, PreflightError

MODULES = ("venv", "ensurepip")
# Of the system, not of any wheel: library -> Debian's package. Without libnuma vLLM's
# CPU kernels do not load, which it says only as a missing operator, minutes later.
LIBRARIES = {"libnuma.so.1": "libnuma1"}

# Measured: the environment with its .pyc files takes 1.9 GB, pip's download cache
# 0.4 GB, and the wheel that pip has in hand up to 0.2 GB.
VENV_BYTES = 2_200_000_000
TEMPORARY_BYTES = 600_000_000


def check_system() -> None:
    """Raise ConfigError where this Python or this system lacks what it must bring.

    All that is missing is named at once, with one command that brings it.
    """
    modules = [m for m in MODULES if importlib.util.find_spec(m) is None]
    libraries = [library for library in LIBRARIES if not _is_loadable(library)]
    if modules or libraries:
        raise ConfigError(
            f"{sys.executable} on this machine lacks {', '.join(modules + libraries)}",
            hint=system_hint(sys.executable, modules, libraries, os.geteuid()),
        )


def system_hint(
    executable: str, modules: list[str], libraries: list[str], user: int
) -> str:
    """The command that brings those modules to that interpreter, and those libraries.

    ``user`` is the effective user id. A Python that Debian did not package cannot be
    completed by a package.
    """
    if modules and not executable.startswith("/usr/bin/"):
        return "name a complete Python: make PYTHON=/usr/bin/python3 ..."
    python = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    packages = [python] * bool(modules) + [LIBRARIES[name] for name in libraries]
    sudo = "" if user == 0 else "sudo "
    return f"{sudo}apt-get install {' '.join(packages)}"


def _is_loadable(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def check_folder(folder: Path) -> None:
    """Raise ConfigError where nothing can be written into ``folder``."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"cannot write into {folder}: {error.strerror}",
            hint="clone the repository into a folder that you may write to",
        ) from error


def check_space(folder: Path) -> None:
    """Raise PreflightError where the environment, or pip's work, has no room."""
    for place, needed in ((folder, VENV_BYTES), (_temporary(), TEMPORARY_BYTES)):
        free = shutil.disk_usage(place).free
        if free < needed:
            raise PreflightError(
                f"{place} has {free / 1e9:.1f} GB free and {needed / 1e9:.1f} GB are "
                "needed to make .venv",
                hint=f"make room there (df -h '{place}'), or set TMPDIR for pip's part",
            )


def _temporary() -> Path:
    return Path(tempfile.gettempdir())
