"""What this machine must have before anything is made, and how to get it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

from glmspark.errors import ConfigError, PreflightError

# Measured: the environment with its .pyc files takes 1.9 GB, pip's download cache
# 0.4 GB, and the wheel that pip has in hand up to 0.2 GB.
VENV_BYTES = 2_200_000_000
TEMPORARY_BYTES = 600_000_000


def check_python() -> None:
    """Raise ConfigError where this Python cannot make an environment with pip."""
    for module in ("venv", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            raise ConfigError(
                f"{sys.executable} has no module {module}, which makes .venv",
                hint=venv_hint(sys.executable, sys.version_info[:2], os.geteuid()),
            )


def venv_hint(executable: str, version: tuple[int, int], user: int) -> str:
    """The command that brings venv and ensurepip to that interpreter."""
    if not executable.startswith("/usr/bin/"):
        return "name a complete Python: make PYTHON=/usr/bin/python3 ..."
    sudo = "" if user == 0 else "sudo "
    return f"{sudo}apt-get install python{version[0]}.{version[1]}-venv"


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
