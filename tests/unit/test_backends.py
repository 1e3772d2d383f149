"""Who keeps the supervisor alive: unit text, systemd-run's argv, the choice."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from glmspark.backends import (
    UNIT_PROPERTIES,
    Child,
    Launch,
    OwnBackend,
    SystemdBackend,
    Unit,
    await_state,
    build_systemd_run,
    has_user_manager,
    pick_backend,
    render_unit,
)
from glmspark.errors import CommandError
from glmspark.runner import ProcessRunner, Result

from tests.unit.test_runner import FakeRunner

ARGV = ("/opt/a b/python", "-m", "glmspark", 'quo"te', "100%")


@pytest.mark.cases(108, 117)
def test_the_unit_file_as_text() -> None:
    assert render_unit("pair", ARGV, memlock=True) == (
        "[Unit]\n"
        "Description=glmspark kit pair\n"
        "After=network-online.target\n"
        "Wants=network-online.target\n"
        "\n"
        "[Service]\n"
        "Type=exec\n"
        "KillMode=mixed\n"
        "TimeoutStopSec=30\n"
        "LimitMEMLOCK=infinity\n"
        "Restart=no\n"
        "OOMPolicy=stop\n"
        'ExecStart="/opt/a b/python" "-m" "glmspark" "quo\\"te" "100%%"\n'
        "\n"
        "[Install]\n"
        "WantedBy=default.target\n"
    )


def test_memlock_is_asked_for_only_where_it_is_needed() -> None:
    assert "LimitMEMLOCK" not in render_unit("pair", ARGV, memlock=False)
    argv = build_systemd_run("pair", ARGV, Path("/l"), memlock=False)
    assert not any("LimitMEMLOCK" in word for word in argv)


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)
def test_systemd_knows_every_key_of_the_unit(tmp_path: Path) -> None:
    def verify(text: str) -> str:
        file = tmp_path / "glmspark-test.service"
        file.write_text(text)
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(file)],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stderr

    text = render_unit("test", ("/bin/true",), memlock=True)
    assert "glmspark-test.service:" not in verify(text)
    wrong = verify(text.replace("KillMode", "KilMode"))
    assert "Unknown key" in wrong and "KilMode" in wrong


def test_systemd_run_gets_the_same_properties() -> None:
    argv = build_systemd_run("pair", ARGV, Path("/b/log"), memlock=True)
    assert argv[:5] == (
        "systemd-run",
        "--user",
        "--collect",
        "--quiet",
        "--unit=glmspark-pair.service",
    )
    for name, value in UNIT_PROPERTIES.items():
        assert f"--property={name}={value}" in argv
    assert "--property=StandardOutput=append:/b/log" in argv
    assert argv[-len(ARGV) :] == ARGV


def manager(tmp_path: Path) -> dict[str, str]:
    """An environment with a user manager's socket in it."""
    (tmp_path / "systemd").mkdir()
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "systemd/private"))
    server.close()
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


def test_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "systemd-run").write_text("#!/bin/sh\n")
    (bin_folder / "systemd-run").chmod(0o755)
    monkeypatch.setenv("PATH", str(bin_folder))
    there = manager(tmp_path)
    assert has_user_manager(there) and not has_user_manager({})
    runner = FakeRunner()
    assert isinstance(pick_backend("auto", runner, there), SystemdBackend)
    assert isinstance(pick_backend("systemd", runner, there), SystemdBackend)
    assert isinstance(pick_backend("own", runner, there), OwnBackend)
    assert isinstance(pick_backend("auto", runner, {}), OwnBackend)
    with pytest.raises(CommandError, match="no systemd manager"):
        pick_backend("systemd", runner, {})


def test_systemd_launches_through_the_runner(tmp_path: Path) -> None:
    runner = FakeRunner()
    launch = Launch("pair", tmp_path, tmp_path / "state.json", memlock=True)
    SystemdBackend(runner).launch(launch)
    (command,) = runner.commands
    assert command.argv[0] == "systemd-run"
    assert command.argv[-4:] == (
        "--boot",
        str(tmp_path),
        "--state",
        str(tmp_path / "state.json"),
    )


def test_a_supervisor_that_says_nothing(tmp_path: Path) -> None:
    launch = Launch("pair", tmp_path, tmp_path / "state.json")
    launch.log.write_text("Traceback\nModuleNotFoundError: x\n")
    alive = Child(subprocess.Popen(["sleep", "600"]))
    with pytest.raises(CommandError, match="ModuleNotFoundError: x"):
        await_state(launch, "boot", alive, limit_s=0.1)
    alive.abort()
    launch.log.unlink()
    with pytest.raises(CommandError, match="did not come up: it left no word"):
        await_state(launch, "boot", alive, limit_s=600)  # dead: no need to wait


def test_a_unit_is_asked_for_and_stopped_by_name(tmp_path: Path) -> None:
    runner = FakeRunner(Result(0, "", ""), Result(3, "", ""))
    unit = Unit(runner, "glmspark-pair.service")
    assert unit.is_alive() and not unit.is_alive()
    unit.abort()
    assert [command.argv[2] for command in runner.commands] == [
        "is-active",
        "is-active",
        "stop",
    ]
    assert {command.argv[-1] for command in runner.commands} == {
        "glmspark-pair.service"
    }


def test_a_failing_systemd_run_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "systemd-run"
    program.write_text("#!/bin/sh\necho 'Unit exists.' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    launch = Launch("pair", tmp_path, tmp_path / "state.json")
    with pytest.raises(CommandError, match=r"exit status 1 .*Unit exists\."):
        SystemdBackend(ProcessRunner()).launch(launch)
