"""Isolation for every test: an empty home, no settings from outside, no colours."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _isolated(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """An empty home, and tmp_path to work in; no GLMSPARK_* and XDG_* from outside."""
    for name in list(os.environ):
        if name.startswith(("GLMSPARK_", "XDG_", "VLLM_", "HF_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    yield


@pytest.fixture
def free_port() -> int:
    """A TCP port that nobody listens on now."""
    return take_port()


def take_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
    return port
