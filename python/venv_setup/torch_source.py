"""Which torch wheel is right here, by hash, and where it may come from."""

from __future__ import annotations

import platform
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from glmspark.errors import ConfigError

SHA256_VARIABLE = "GLMSPARK_TORCH_SHA256"
INDEX_VARIABLE = "GLMSPARK_TORCH_INDEX"
LINKS_VARIABLE = "PIP_FIND_LINKS"


class TorchNotFoundError(ConfigError):
    """Neither pip's sources nor the index have the wheel."""


@dataclass(frozen=True)
class Torch:
    """The one torch wheel to install: exact version, sha256 and an index that has it.

    pip's own sources are asked first and ``index`` only where they have none, unless
    the user named the index (``is_named``).
    """

    version: str
    sha256: str
    index: str
    is_named: bool

    def requirement(self) -> str:
        """The line of a requirements file, with the hash."""
        return f"torch=={self.version} --hash=sha256:{self.sha256}\n"


def here() -> str:
    """Key of this interpreter and machine in torch-cpu.toml, as ``cp311-x86_64``."""
    return f"cp{sys.version_info.major}{sys.version_info.minor}-{platform.machine()}"


def locked_version(table: Path) -> str:
    """The one version that torch-cpu.toml states."""
    version: str = tomllib.loads(table.read_text())["version"]
    return version


def choose(table: Path, environment: Mapping[str, str], key: str) -> Torch:
    """The wheel for ``key``; raises ConfigError where nobody states its hash."""
    known = tomllib.loads(table.read_text())
    sha256 = environment.get(SHA256_VARIABLE, "") or known["sha256"].get(key, "")
    if not sha256:
        raise ConfigError(
            f"no hash of the CPU wheel of torch {known['version']} is known for {key}",
            hint=f"set {SHA256_VARIABLE} to the wheel's sha256, and {LINKS_VARIABLE} "
            f"to its folder or {INDEX_VARIABLE} to its index; or use Python 3.11",
        )
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise ConfigError(
            f"{SHA256_VARIABLE} is {sha256!r} and must be 64 hexadecimal digits",
            hint="sha256sum torch-*.whl",
        )
    named = environment.get(INDEX_VARIABLE, "")
    return Torch(known["version"], sha256, named or known["index"], bool(named))


def not_found(torch: Torch, key: str) -> TorchNotFoundError:
    """The refusal where neither pip's sources nor the index gave the wheel."""
    return TorchNotFoundError(
        f"torch {torch.version} for {key} is in none of pip's configured sources, and "
        f"not to be had from {torch.index}",
        hint=f"set {LINKS_VARIABLE} to a folder with that wheel, or {INDEX_VARIABLE} "
        f"to an index that has it; when its hash differs, {SHA256_VARIABLE} too",
    )
