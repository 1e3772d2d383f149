"""What keeps the supervisor of a node alive: systemd, or the tool itself."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from glmspark.boot import State, read_state
from glmspark.errors import CommandError
from glmspark.processes import send
from glmspark.runner import Command, Runner, check

# Properties of the unit, whether systemd-run makes it or a file does. The supervisor
# ends the ranks itself and proves it; the control group is the net below. memlock:
# RDMA registers memory, and 8 MB is the default of many systems.
UNIT_PROPERTIES: Mapping[str, str] = {
    "Type": "exec",
    "KillMode": "mixed",
    "TimeoutStopSec": "30",
    "LimitMEMLOCK": "infinity",
    "Restart": "no",
    "OOMPolicy": "stop",
}


def unit_name(kit: str) -> str:
    """The systemd unit of a kit."""
    return f"glmspark-{kit}.service"


def supervise_argv(folder: Path, state_file: Path) -> tuple[str, ...]:
    """The argv of the supervisor of the boot in ``folder``."""
    return (
        sys.executable,
        "-m",
        "glmspark",
        "node",
        "supervise",
        "--boot",
        str(folder),
        "--state",
        str(state_file),
    )


def build_systemd_run(
    kit: str, argv: tuple[str, ...], log: Path, *, memlock: bool
) -> tuple[str, ...]:
    """The argv that runs ``argv`` as a transient unit of the user's manager.

    ``memlock`` asks for unlimited locked memory; the user's manager can grant only
    what it has itself, so it is left out where nothing needs it.
    """
    properties = dict(UNIT_PROPERTIES)
    if not memlock:
        del properties["LimitMEMLOCK"]
    properties["StandardOutput"] = f"append:{log}"
    properties["StandardError"] = f"append:{log}"
    options = [f"--property={name}={value}" for name, value in properties.items()]
    unit = f"--unit={unit_name(kit)}"
    return ("systemd-run", "--user", "--collect", "--quiet", unit, *options, *argv)


def render_unit(kit: str, argv: tuple[str, ...], *, memlock: bool) -> str:
    """The text of a unit file that runs ``argv`` in the foreground."""
    properties = dict(UNIT_PROPERTIES)
    if not memlock:
        del properties["LimitMEMLOCK"]
    command = " ".join(
        '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'
        for word in argv
    )
    lines = [
        "[Unit]",
        f"Description=glmspark kit {kit}",
        "After=network-online.target",
        "Wants=network-online.target",
        "",
        "[Service]",
        *(f"{name}={value}" for name, value in properties.items()),
        f"ExecStart={command}",
        "",
        "[Install]",
        "WantedBy=default.target",
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Launch:
    """What a backend needs to start a supervisor."""

    kit: str
    folder: Path
    state_file: Path
    memlock: bool = False

    @property
    def log(self) -> Path:
        """Where the supervisor's own words go."""
        return self.folder / "supervisor.log"


class Launched(Protocol):
    """A supervisor that has been started and has not said a word yet."""

    def is_alive(self) -> bool:
        """Whether it still may say one."""
        ...

    def abort(self) -> None:
        """End it, with all that it has started."""
        ...


class Backend(Protocol):
    """Starts a supervisor and asks it to stop."""

    def launch(self, launch: Launch) -> Launched:
        """Start the supervisor; it outlives this process."""
        ...

    def stop(self, state: State) -> None:
        """Ask the supervisor of ``state`` to end its ranks and itself."""
        ...


class Child:
    """A supervisor that is a child of this process."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child

    def is_alive(self) -> bool:
        """Whether it still may say a word."""
        return self._child.poll() is None

    def abort(self) -> None:
        """End it; its ranks end with it, or are found by their mark."""
        self._child.kill()
        self._child.wait()


class OwnBackend:
    """The supervisor as a session of its own, for machines without systemd."""

    def launch(self, launch: Launch) -> Launched:
        """Start the supervisor; it outlives this process."""
        with launch.log.open("ab") as log:
            child = subprocess.Popen(
                supervise_argv(launch.folder, launch.state_file),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
            )
        return Child(child)

    def stop(self, state: State) -> None:
        """Ask the supervisor of ``state`` to end its ranks and itself."""
        send(state.supervisor, signal.SIGTERM)


class Unit:
    """A supervisor that is a transient unit of the user's systemd."""

    def __init__(self, runner: Runner, name: str) -> None:
        self._runner = runner
        self._name = name

    def is_alive(self) -> bool:
        """Whether the unit is there; one that cannot be asked for counts as alive."""
        argv = ("systemctl", "--user", "is-active", "--quiet", self._name)
        try:
            return self._runner.run(Command(argv)).code == 0
        except CommandError:
            return True

    def abort(self) -> None:
        """Stop the unit; its control group takes everything along."""
        self._runner.run(Command(("systemctl", "--user", "stop", self._name)))


class SystemdBackend:
    """The supervisor as a transient unit of the user's systemd."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def launch(self, launch: Launch) -> Launched:
        """Start the supervisor; it outlives this process."""
        argv = supervise_argv(launch.folder, launch.state_file)
        command = build_systemd_run(
            launch.kit, argv, launch.log, memlock=launch.memlock
        )
        check(self._runner, Command(command))
        return Unit(self._runner, unit_name(launch.kit))

    def stop(self, state: State) -> None:
        """Ask the supervisor of ``state`` to end its ranks and itself.

        The signal goes to the supervisor itself, which is the main process of the
        unit; systemd sees the unit end.
        """
        send(state.supervisor, signal.SIGTERM)


def has_user_manager(environ: Mapping[str, str]) -> bool:
    """Whether this user has a running systemd manager that can be spoken to."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    socket = Path(runtime) / "systemd" / "private"
    return bool(runtime) and socket.exists() and bool(shutil.which("systemd-run"))


def pick_backend(
    choice: str, runner: Runner, environ: Mapping[str, str] | None = None
) -> Backend:
    """The backend for the setting ``supervisor`` on this machine.

    Raises:
        CommandError: systemd was asked for and the user has no manager.
    """
    there = has_user_manager(os.environ if environ is None else environ)
    if choice == "systemd" and not there:
        raise CommandError(
            "supervisor is set to systemd, and this user has no systemd manager",
            hint="loginctl enable-linger, log in again, or set supervisor to auto",
        )
    if choice != "own" and there:
        return SystemdBackend(runner)
    return OwnBackend()


def await_state(
    launch: Launch, boot: str, launched: Launched, limit_s: float = 15.0
) -> State:
    """The first word of the supervisor of ``boot``.

    Raises:
        CommandError: it ends, or says nothing; its log's last line is in the message.
    """
    deadline_s = time.monotonic() + limit_s
    next_look_s = 0.0
    while time.monotonic() < deadline_s:
        state = read_state(launch.state_file)
        if state is not None and state.boot == boot:
            return state
        if time.monotonic() > next_look_s:  # asking systemd takes a process
            if not launched.is_alive():
                break
            next_look_s = time.monotonic() + 0.25
        time.sleep(0.02)
    log = launch.log.read_text(errors="replace").strip() if launch.log.exists() else ""
    last = log.splitlines()[-1] if log else "it left no word"
    raise CommandError(
        f"the supervisor did not come up: {last}", hint=f"cat {launch.log}"
    )
