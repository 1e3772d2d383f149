"""Somebody who has hosts, and no kit yet."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.cluster.hosts import Lab
from tests.cluster.kits import Done
from tests.conftest import REPOSITORY


class User:
    """Somebody at the first host, who reaches the others by ssh."""

    def __init__(self, lab: Lab, env: dict[str, str] | None = None) -> None:
        self.lab = lab
        self.env = {
            "PYTHONPATH": str(REPOSITORY / "python"),
            "HOME": os.environ["HOME"],
            "PATH": os.environ["PATH"],
            **(env or {}),
        }
        self.kit = lab.folder / "kit.toml"

    def run(self, *words: str, limit_s: float = 180) -> Done:
        env = [f"{name}={value}" for name, value in self.env.items()]
        tool = ["env", *env, sys.executable, "-m", "glmspark", *words]
        none = ("-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null")
        ssh = ["ssh", "-F", str(self.lab.client.config), *none, "-oLogLevel=ERROR"]
        done = subprocess.run(
            [*ssh, next(iter(self.lab.hosts)), shlex.join(tool)],
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def init(self, *words: str) -> Done:
        others = list(self.lab.hosts)[1:]
        places = ["--state", str(self.lab.folder / "state"), "--trust-hosts"]
        places += ["--ssh-config", str(self.lab.client.config)]
        out = ["--output", str(self.kit)]
        return self.run("init", "local", *others, *places, *out, *words)

    def act(self, verb: str, *words: str) -> Done:
        """A verb on the kit, with the stub for its engine."""
        model = self.lab.folder / "model"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text("{}")
        sets = ("--set", "engine=stub", "--set", f"weights.target={model}")
        return self.run(verb, "--kit", str(self.kit), *sets, *words)

    def serving_ranks(self) -> dict[str, set[bytes]]:
        """By host, the ranks of the processes that run there."""
        found: dict[str, set[bytes]] = {}
        for name, host in self.lab.hosts.items():
            for pid in host.pids():
                try:
                    words = Path(f"/proc/{pid}/cmdline").read_bytes()
                    marks = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                if b"\0serve\0" in words:
                    ranks = {m for m in marks if m.startswith(b"GLMSPARK_RANK=")}
                    found.setdefault(name, set()).update(ranks)
        return found

    def serves_and_stops(self, topology: str) -> None:
        done = self.act("start", "--json")
        assert done.code == 0, done.err
        assert json.loads(done.out)["result"] == "live"
        wanted = {
            name: {b"GLMSPARK_RANK=%d" % rank}
            for rank, name in enumerate(self.lab.hosts)
        }
        assert self.serving_ranks() == wanted
        done = self.act("stop")
        assert done.code == 0, done.err
        assert self.serving_ranks() == {}
