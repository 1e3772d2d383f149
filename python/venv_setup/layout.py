"""Where things are in a checkout, and which inputs decide what ``.venv`` holds."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

PLUGIN = "overlay/vllm_exl3"


class Mode(StrEnum):
    """What the environment is for; ``check`` holds everything that ``engine`` does."""

    ENGINE = "engine"
    CHECK = "check"


@dataclass(frozen=True)
class Checkout:
    """The folders and files of one checkout; ``root`` is an absolute path."""

    root: Path

    @property
    def venv(self) -> Path:
        """The environment that is made."""
        return self.root / ".venv"

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        return self.venv / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """Where packages lie in an environment of the running Python's version."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.venv / "lib" / version / "site-packages"

    @property
    def stamp(self) -> Path:
        """Written last, so that it is there only when the environment is whole."""
        return self.venv / ".glmspark-stamp"

    @property
    def building(self) -> Path:
        """There while we build: this folder is ours, and may be half done."""
        return self.venv / ".glmspark-building"

    @property
    def cache(self) -> Path:
        """For the log and the lock of the set-up."""
        return self.root / ".cache" / "bootstrap"

    @property
    def log(self) -> Path:
        """What pip said, all of it."""
        return self.cache / "pip.log"

    def requirements(self, name: str) -> Path:
        """One of the files under ``python/requirements``."""
        return self.root / "python" / "requirements" / name

    def locks(self, mode: Mode) -> list[Path]:
        """The hash-locked requirement files that ``mode`` installs."""
        names = ["loopback.txt"] + (["check.txt"] if mode is Mode.CHECK else [])
        return [self.requirements(name) for name in names]

    def projects(self) -> list[Path]:
        """Our own packages, installed so that edits are seen at once."""
        folders = [self.root / "python", self.root / PLUGIN]
        return [folder for folder in folders if (folder / "pyproject.toml").exists()]


def fingerprint(checkout: Checkout, mode: Mode) -> str:
    """sha256 over all that decides what ``mode`` installs, and where.

    The environment's path is in it: scripts in an environment name their interpreter
    by absolute path, so one that was moved must be made again.
    """
    digest = hashlib.sha256()
    digest.update(f"{sys.version_info[:2]} {checkout.venv}\n".encode())
    files = [*checkout.locks(mode), checkout.requirements("torch-cpu.toml")]
    files += [folder / "pyproject.toml" for folder in checkout.projects()]
    files += sorted(Path(__file__).parent.glob("*.py"))
    for file in files:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
