"""From bare hosts to a kit that serves: two, three in a ring, four on a switch."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.hosts import Lab
from tests.cluster.kits import Done
from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.netns, pytest.mark.timeout(240)]


class User:
    """Somebody at the first host, who reaches the others by ssh."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.kit = lab.folder / "kit.toml"

    def run(self, *words: str) -> Done:
        env = [f"PYTHONPATH={REPOSITORY / 'python'}", f"HOME={os.environ['HOME']}"]
        env.append(f"PATH={os.environ['PATH']}")
        tool = ["env", *env, sys.executable, "-m", "glmspark", *words]
        none = ("-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null")
        ssh = ["ssh", "-F", str(self.lab.client.config), *none, "-oLogLevel=ERROR"]
        done = subprocess.run(
            [*ssh, next(iter(self.lab.hosts)), shlex.join(tool)],
            capture_output=True,
            text=True,
            timeout=180,
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


def test_two_bare_hosts_become_a_kit_that_serves(two_hosts: Lab) -> None:
    user = User(two_hosts)
    done = user.init()
    assert done.code == 0, done.err
    assert 'topology = "tp2"' in user.kit.read_text()
    user.serves_and_stops("tp2")


@pytest.mark.full
def test_three_hosts_in_a_ring_meet_where_all_can(three_hosts_ring: Lab) -> None:
    user = User(three_hosts_ring)
    done = user.init()
    assert done.code == 0, done.err
    text = user.kit.read_text()
    assert 'topology = "tp3"' in text and "triangle" in text
    # No cable's subnet reaches all three, so the ranks meet on the network that does.
    assert f'fabric = "{three_hosts_ring.subnet}.1"' in text
    user.serves_and_stops("tp3")


@pytest.mark.full
@pytest.mark.cases(115)
def test_four_hosts_on_a_switch_are_one_kit_of_one_file(four_hosts_switch: Lab) -> None:
    user = User(four_hosts_switch)
    done = user.init()
    assert done.code == 0, done.err
    text = user.kit.read_text()
    assert 'topology = "tp4"' in text and "cabling: switch (tp4)" in text
    assert 'fabric = "10.66.30.4"' in text
    user.serves_and_stops("tp4")
