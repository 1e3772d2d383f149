"""Words: plain where nobody watches, rich on a terminal, never with NO_COLOR."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest
from glmspark.cli import options
from glmspark.cli.options import settings_of
from glmspark.console import PlainNarrator, table

from tests.conftest import REPOSITORY

Capture = pytest.CaptureFixture[str]


def on_a_terminal(argv: list[str], **extra: str) -> str:
    """What a command writes to a terminal (stdout and stderr together)."""
    parent, child = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    env |= {"PYTHONPATH": str(REPOSITORY / "python"), "TERM": "xterm", **extra}
    done = subprocess.Popen(
        [sys.executable, "-m", "glmspark", *argv], stdout=child, stderr=child, env=env
    )
    os.close(child)
    said = b""
    while True:
        try:
            part = os.read(parent, 4096)
        except OSError:
            break
        if not part:
            break
        said += part
    done.wait()
    os.close(parent)
    return said.decode()


def test_a_table_on_a_terminal_and_without_colour() -> None:
    rich = on_a_terminal(["config", "show"])
    assert "\x1b[1m" in rich and "serve.port" in rich
    plain = on_a_terminal(["config", "show"], NO_COLOR="1")
    assert "\x1b[" not in plain and "serve.port" in plain
    assert "\x1b[" not in on_a_terminal(["config", "show"], TERM="dumb")


def test_plain_lines_have_seconds_and_repeat_nothing(capsys: Capture) -> None:
    teller = PlainNarrator()
    for text in ("waiting", "waiting", "", "waiting"):
        teller.busy(text)
    teller.say("done")
    teller.note("by the way")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" s  ")[1] for line in lines] == [
        "waiting",
        "waiting",
        "done",
        "by the way",
    ]


def test_columns_are_aligned_where_nobody_watches(capsys: Capture) -> None:
    table(("a", "b"), [("x", "1"), ("longer", "[2]")])
    assert capsys.readouterr().out == "x       1\nlonger  [2]\n"


def test_a_spark_without_a_kit_is_told_of_init(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    settings_of(None, ())
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(options, "_has_gb10", lambda: True)
    settings_of(None, ())
    assert "glmspark init" in capsys.readouterr().err
