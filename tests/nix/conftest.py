"""Nix with the stand-ins, once a test run."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nix.check import Workshop, default_cache, snapshot, workshop
from tests.nix.get_nix import NixUnavailableError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def shop() -> Iterator[Workshop]:
    """Nix and the stand-ins; installs Nix into the cache folder where it is missing."""
    if platform.machine() != "x86_64":
        pytest.skip("the stand-in's checks are built on x86_64 only")
    if os.geteuid() != 0:
        pytest.skip("not root: Nix's sandbox in a store of its own needs root")
    try:
        with workshop(default_cache()) as made:
            yield made
    except NixUnavailableError as error:
        pytest.skip(f"Nix cannot be had here: {error}")


@pytest.fixture(scope="session")
def flake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """This checkout as a flake reference."""
    return snapshot(ROOT, tmp_path_factory.mktemp("flake"))
