"""Kits for tests: folders of their own, the real command line, real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glmspark import processes
from glmspark.boot import State, boot_folders, read_state, scratch_folder

from tests.conftest import REPOSITORY, take_port


@dataclass
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


def finish(
    argv: Sequence[str], limit_s: float, env: Mapping[str, str] | None = None
) -> Done:
    """Run a command to its end."""
    done = subprocess.run(
        argv, env=env, capture_output=True, text=True, timeout=limit_s, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


@dataclass
class TestKit:
    """A kit below ``root``; ``run`` is the command line, as a user has it.

    With ``worker``, an ssh target on this machine, rank 1 runs there; the fabric is
    the loopback device.
    """

    __test__ = False
    root: Path
    engine: str = "stub"
    settings: dict[str, str] = field(default_factory=dict)
    scripts: dict[str, dict[str, Any]] = field(default_factory=dict)
    port: int = field(default_factory=take_port)
    master: int = field(default_factory=take_port)
    worker: str = ""
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root.mkdir(exist_ok=True)
        self.write()

    @property
    def model(self) -> Path:
        """The stub's model, which holds its script."""
        return self.root / "model"

    @property
    def state_folder(self) -> Path:
        """Where the kit keeps its state."""
        return self.root / "state" / "test"

    def write(self) -> None:
        """Write kit.toml and the stub's script anew."""
        self.model.mkdir(exist_ok=True)
        (self.model / "config.json").write_text("{}")
        (self.model / "stub.json").write_text(json.dumps(self.scripts))
        target = f'"{self.model}"' if self.engine == "stub" else '"loopback"'
        values = {
            "weights.target": target,
            "serve.port": str(self.port),
            "ports.master": str(self.master),
            "paths.state": f'"{self.root / "state"}"',
            "timeouts.stop_s": "3",
            **self.settings,
        }
        topology = "tp2" if self.worker else "loopback"
        lines = ['name = "test"', f'topology = "{topology}"']
        lines += [f'engine = "{self.engine}"']
        lines += [f"{key} = {value}" for key, value in values.items()]
        hosts = ("local", self.worker) if self.worker else ()
        for number, ssh in enumerate(hosts, start=1):
            lines += ["[[nodes]]", f'name = "spark-{number}"', f'ssh = "{ssh}"']
            lines.append(f'fabric = "127.0.0.{number}"')
        (self.root / "kit.toml").write_text("\n".join(lines) + "\n")

    def argv(self, *words: str) -> list[str]:
        """The argv of a command on this kit."""
        kit = ["--kit", str(self.root / "kit.toml")]
        return [sys.executable, "-m", "glmspark", *words, *kit]

    def env(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a command: the tests' own, and this checkout's code."""
        return {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY / "python"),
            **self.environ,
            **(extra or {}),
        }

    def run(self, *words: str, limit_s: float = 90, **extra: str) -> Done:
        """Run a command to its end."""
        return finish(self.argv(*words), limit_s, self.env(extra))

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Run a command in the background; its words come line by line on stderr."""
        return subprocess.Popen(
            self.argv(*words),
            env=self.env(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def state(self) -> State:
        """What the supervisor last said."""
        state = read_state(self.state_folder / "state.json")
        assert state is not None
        return state

    def boots(self) -> list[Path]:
        """The folders of the kept boots."""
        return boot_folders(self.state_folder / "boots")

    def members(self) -> list[processes.Marked]:
        """The live processes of every boot of this kit."""
        names = {folder.name for folder in self.boots()}
        return [one for one in processes.marked() if one.boot in names]

    def rank(self, number: int, *, engine: bool) -> processes.Identity:
        """The main process of a rank, or its engine process."""
        main = self.state().ranks[number]
        if not engine:
            return main
        return next(
            one.who for one in self.members() if one.rank == number and one.is_engine
        )

    def ask(
        self, path: str, body: Mapping[str, Any] | None = None, key: str = ""
    ) -> tuple[int, str]:
        """The API's answer: status and text."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Content-Type": "application/json"}
            | ({"Authorization": f"Bearer {key}"} if key else {}),
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def chat(
        self, prompt: str = "Hello", key: str = "", **more: Any
    ) -> tuple[int, str]:
        """A chat completion of a few tokens."""
        body = {
            "model": "GLM-5.3-Flash-EXL3",
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 8,
            "temperature": 0,
            **more,
        }
        return self.ask("/v1/chat/completions", body, key)

    def assert_nothing_left(self) -> None:
        """No process of the kit is alive, and its ports can be bound."""
        left = [(one.who.pid, one.rank, one.title) for one in self.members()]
        assert left == []
        from glmspark.facts import Roots, read_listeners

        taken = [one for one in read_listeners(Roots()) if one.port == self.port]
        assert taken == []

    def close(self) -> None:
        """Whatever a test did: end everything of this kit."""
        state = read_state(self.state_folder / "state.json")
        if state is not None and state.supervisor.is_alive:
            processes.send(state.supervisor, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while self.members() and time.monotonic() < deadline:
            for one in self.members():
                processes.send(one.who, signal.SIGKILL)
            time.sleep(0.05)
        for folder in self.boots():  # a killed supervisor leaves its ranks' files
            shutil.rmtree(scratch_folder(folder.name), ignore_errors=True)


def wait_for(condition: Callable[[], bool], limit_s: float = 15.0) -> float:
    """Seconds until ``condition`` holds; fails the test after ``limit_s``."""
    began = time.monotonic()
    while not condition():
        passed = time.monotonic() - began
        assert passed < limit_s, f"not within {limit_s} s"
        time.sleep(0.05)
    return time.monotonic() - began
