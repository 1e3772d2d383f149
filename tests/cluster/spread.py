"""A kit over two hosts that tests make, and what runs on each of them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from glmspark.hostkeys import ask_key, keep
from glmspark.remote import Remote

from tests.cluster.hosts import Host, Lab
from tests.cluster.kits import Done, finish, wait_for
from tests.conftest import REPOSITORY


class Spread:
    """A kit of two hosts joined by a cable, and the head's command line.

    ``scripts`` is what the stub's ranks do, by number; :meth:`write` writes it anew.
    """

    def __init__(self, lab: Lab, engine: str, settings: dict[str, str]) -> None:
        self.lab = lab
        self.root = lab.folder
        self.engine, self.settings = engine, settings
        self.scripts: dict[str, dict[str, Any]] = {}
        self.path = os.environ["PATH"]
        self.extra_env: dict[str, str] = {}
        self.closure = ""
        self.nix: Any = None
        self.user_home = Path("/root")
        self.head, self.worker = lab.hosts["spark-1"], lab.hosts["spark-2"]
        lab.cable("spark-1", "c0", "10.66.1.1/24", "spark-2", "c7", "10.66.1.2/24")
        self.write()
        for host in lab.hosts:
            known = self.root / "state" / "known_hosts"
            remote = Remote(host, host, known, lab.client.config)
            keep(remote, ask_key(remote))

    def write(self, **settings: str) -> None:
        """Write kit.toml, with further settings as TOML, and the stub's script."""
        self.settings |= {k.replace("__", "."): v for k, v in settings.items()}
        model = self.root / "model"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text("{}")
        (model / "stub.json").write_text(json.dumps(self.scripts))
        values = {
            "runtime": '"venv"',
            "weights.target": f'"{model}"' if self.engine == "stub" else '"loopback"',
            "paths.state": f'"{self.root / "state"}"',
            "paths.cache": f'"{self.root / "cache"}"',
            "paths.ssh_config": f'"{self.lab.client.config}"',
            "timeouts.stop_s": "4",
            **self.settings,
        }
        lines = ['name = "test"', 'topology = "tp2"', f'engine = "{self.engine}"']
        lines += [f"{k} = {v}" for k, v in values.items()]
        for number, ssh in ((1, "local"), (2, "spark-2")):
            lines += ["[[nodes]]", f'name = "spark-{number}"', f'ssh = "{ssh}"']
            lines.append(f'fabric = "10.66.1.{number}"')
        (self.root / "kit.toml").write_text("\n".join(lines) + "\n")

    @property
    def state_folder(self) -> Path:
        """Where the head keeps the kit's state."""
        return self.root / "state" / "test"

    def shell(self, host: str, *words: str) -> list[str]:
        """The ssh command that runs ``words`` on a host."""
        known = f"-oUserKnownHostsFile={self.root / 'state' / 'known_hosts'}"
        ssh = ["ssh", "-F", str(self.lab.client.config), known, "-oBatchMode=yes"]
        return [*ssh, host, shlex.join(words)]

    def on(self, host: str, *words: str, limit_s: float = 120) -> Done:
        """Run ``words`` on a host through its sshd."""
        return finish(self.shell(host, *words), limit_s)

    def argv(self, *words: str) -> list[str]:
        """The ssh command of a user at the head."""
        env = {
            "PYTHONPATH": str(REPOSITORY / "python"),
            "HOME": os.environ["HOME"],
            "PATH": self.path,
            **self.extra_env,
        }
        kit = ["--kit", str(self.root / "kit.toml")]
        tool = [sys.executable, "-m", "glmspark", *words, *kit]
        settings = [f"{name}={value}" for name, value in env.items()]
        return self.shell("spark-1", "env", *settings, *tool)

    def run(self, *words: str, limit_s: float = 120) -> Done:
        """Run a command of the tool on the head, to its end."""
        return finish(self.argv(*words), limit_s)

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Run a command of the tool on the head in the background."""
        return subprocess.Popen(
            self.argv(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def ranks(self, host: Host) -> dict[int, list[int]]:
        """The pids of rank processes that run in ``host``, by rank, relays left out."""
        found: dict[int, list[int]] = {}
        for pid in host.pids():
            try:
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            marks = [one for one in environ if one.startswith(b"GLMSPARK_RANK=")]
            if marks and words and b"\0serve\0" in words:
                rank = int(marks[0].partition(b"=")[2])
                found.setdefault(rank, []).append(pid)
        return found

    def failure(self) -> str:
        """What status says of the failure, once the kit has ended."""
        wait_for(lambda: "failed" in self.run("status").out, 20)
        return self.run("status").out

    def assert_serves_again(self) -> None:
        """The next start works, whatever has happened, and so does its stop."""
        done = self.run("start")
        assert done.code == 0, done.err
        assert list(self.ranks(self.head)) == [0] and list(self.ranks(self.worker)) == [
            1
        ]
        assert self.run("stop").code == 0
        self.assert_nothing_left()

    def assert_nothing_left(self) -> None:
        assert (self.ranks(self.head), self.ranks(self.worker)) == ({}, {})
