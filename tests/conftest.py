"""Isolation for every test: an empty home, no settings from outside, no colours."""

from __future__ import annotations

import os
import random
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

# A job that a shell has put into the background ignores Ctrl-C, and so do its children;
# the tests send it. A handler of Python's own is the default again in a child.
signal.signal(signal.SIGINT, signal.default_int_handler)

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
    """A TCP port that nobody listens on now.

    Below the range that the kernel takes for outgoing connections: such a one could
    hold the port by the time that it is wanted.
    """
    while True:
        port = random.randint(15000, 32000)  # noqa: S311 - no secret
        with socket.socket() as server:
            try:
                server.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port
