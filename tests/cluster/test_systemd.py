"""The systemd backend, end to end, with a user manager that is a few lines of shell."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.kits import TestKit

Make = Callable[..., TestKit]

# Runs what follows the options in a session of its own, as a transient unit would.
FAKE = """\
#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
while [ "${1#--}" != "$1" ]; do shift; done
setsid "$@" < /dev/null > /dev/null 2>&1 &
"""


def test_start_and_stop_through_systemd_run(
    stub_kit: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path / "run"
    (runtime / "systemd").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(runtime / "systemd")
        server.bind("private")
    program = tmp_path / "bin" / "systemd-run"
    program.parent.mkdir()
    program.write_text(FAKE)
    program.chmod(0o755)
    control = program.with_name("systemctl")  # asked whether the unit is active
    control.write_text("#!/bin/sh\nexit 0\n")
    control.chmod(0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    kit = stub_kit()
    done = kit.run("start")
    assert done.code == 0, done.err
    calls = (program.parent / "calls").read_text()
    assert "--user" in calls and "--unit=glmspark-test.service" in calls
    assert kit.chat()[0] == 200
    assert kit.run("stop").code == 0
    kit.assert_nothing_left()
