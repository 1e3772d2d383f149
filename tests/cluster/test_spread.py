"""A kit over two hosts: the head starts, watches and ends the rank of the other one.

Each host has its own network and processes; commands run on the head through its
sshd, as its user would.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from glmspark.hostkeys import ask_key, keep
from glmspark.remote import Remote

from tests.cluster.hosts import Client, Host, Lab, need_namespaces
from tests.cluster.kits import Done, wait_for
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.netns


class Spread:
    """A kit of two hosts joined by a cable, and the head's command line."""

    def __init__(self, lab: Lab, engine: str, settings: dict[str, str]) -> None:
        self.lab = lab
        self.root = lab.folder
        self.head, self.worker = lab.hosts["spark-1"], lab.hosts["spark-2"]
        lab.cable("spark-1", "c0", "10.66.1.1/24", "spark-2", "c7", "10.66.1.2/24")
        model = self.root / "model"
        model.mkdir()
        (model / "config.json").write_text("{}")
        (model / "stub.json").write_text("{}")
        values = {
            "weights.target": f'"{model}"' if engine == "stub" else '"loopback"',
            "paths.state": f'"{self.root / "state"}"',
            "paths.cache": f'"{self.root / "cache"}"',
            "paths.ssh_config": f'"{lab.client.config}"',
            "timeouts.stop_s": "4",
            **settings,
        }
        lines = ['name = "test"', 'topology = "tp2"', 'runtime = "venv"']
        lines += [f'engine = "{engine}"', *(f"{k} = {v}" for k, v in values.items())]
        for number, ssh in ((1, "local"), (2, "spark-2")):
            lines += ["[[nodes]]", f'name = "spark-{number}"', f'ssh = "{ssh}"']
            lines.append(f'fabric = "10.66.1.{number}"')
        (self.root / "kit.toml").write_text("\n".join(lines) + "\n")
        for host in lab.hosts:
            known = self.root / "state" / "known_hosts"
            remote = Remote(host, host, known, lab.client.config)
            keep(remote, ask_key(remote))

    def argv(self, *words: str) -> list[str]:
        """The ssh command of a user at the head."""
        env = [f"PYTHONPATH={REPOSITORY / 'python'}", f"HOME={os.environ['HOME']}"]
        env.append(f"PATH={os.environ['PATH']}")
        kit = ["--kit", str(self.root / "kit.toml")]
        inner = ["env", *env, sys.executable, "-m", "glmspark", *words, *kit]
        known = f"-oUserKnownHostsFile={self.root / 'state' / 'known_hosts'}"
        ssh = ["ssh", "-F", str(self.lab.client.config), known, "-oBatchMode=yes"]
        return [*ssh, "spark-1", shlex.join(inner)]

    def run(self, *words: str, limit_s: float = 120) -> Done:
        done = subprocess.run(
            self.argv(*words),
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

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

    def assert_nothing_left(self) -> None:
        assert (self.ranks(self.head), self.ranks(self.worker)) == ({}, {})


@pytest.fixture
def spread(tmp_path: Path) -> Iterator[Callable[..., Spread]]:
    need_namespaces()
    labs: list[Lab] = []

    def make(engine: str = "stub", **settings: str) -> Spread:
        folder = tmp_path / "lab"
        folder.mkdir()
        lab = Lab(folder, Client(folder / "client"))
        labs.append(lab)
        lab.open(["spark-1", "spark-2"])
        return Spread(
            lab, engine, {k.replace("__", "."): v for k, v in settings.items()}
        )

    yield make
    for lab in labs:
        lab.close()


@pytest.mark.cases(2, 25, 39, 93)
def test_start_serves_over_two_hosts_and_stop_clears_both(
    spread: Callable[..., Spread],
) -> None:
    kit = spread()
    done = kit.run("start", "--json")
    assert done.code == 0, done.err
    assert list(kit.ranks(kit.head)) == [0] and list(kit.ranks(kit.worker)) == [1]
    pid = min(kit.ranks(kit.worker)[1])
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert b"GLOO_SOCKET_IFNAME=c7" in environ and b"VLLM_HOST_IP=10.66.1.2" in environ
    url = json.loads(done.out)["url"]
    assert kit.run("start").out.strip().endswith(f"is already LIVE on {url}")
    assert "[1] " in kit.run("logs").out
    done = kit.run("stop")
    assert (done.code, done.out) == (0, "test: stopped\n"), done.err
    kit.assert_nothing_left()
    assert kit.run("start").code == 0


@pytest.mark.cases(90, 91)
@pytest.mark.parametrize("pick", [min, max], ids=["rank", "engine process"])
def test_a_rank_that_dies_on_the_other_host_ends_the_kit(
    spread: Callable[..., Spread], pick: Callable[[list[int]], int]
) -> None:
    kit = spread()
    assert kit.run("start").code == 0
    os.kill(pick(kit.ranks(kit.worker)[1]), 9)
    passed = wait_for(lambda: not kit.ranks(kit.head) and not kit.ranks(kit.worker))
    assert passed < 10
    wait_for(lambda: "rank 1" in kit.run("status").out)
    assert kit.run("start").code == 0


@pytest.mark.cases(79, 87)
def test_a_head_that_is_gone_ends_the_rank_of_the_other_host(
    spread: Callable[..., Spread],
) -> None:
    kit = spread()
    assert kit.run("start").code == 0
    assert kit.ranks(kit.worker)
    kit.head.kill_all()
    wait_for(lambda: not kit.ranks(kit.worker), 25)


@pytest.mark.cases(42, 93)
def test_stop_names_the_host_that_it_could_not_ask(
    spread: Callable[..., Spread],
) -> None:
    kit = spread()
    assert kit.run("start").code == 0
    kit.worker.kill_all()
    done = kit.run("stop")
    assert done.code == 5, done.err
    assert "spark-2 could not be asked: nothing listens for ssh" in done.err
    assert kit.ranks(kit.head) == {}


@pytest.mark.cases(107)
def test_a_cable_that_is_down_is_found_before_anything_starts(
    spread: Callable[..., Spread],
) -> None:
    kit = spread()
    kit.worker.run("ip", "link", "set", "c7", "down")
    done = kit.run("start")
    assert done.code == 4 and "fabric.link: c7 is down" in done.err
    kit.assert_nothing_left()


@pytest.mark.engine
def test_two_real_ranks_serve_across_the_cable(spread: Callable[..., Spread]) -> None:
    kit = spread("vllm-cpu", serve__max_model_len="2048", timeouts__ready_s="600")
    done = kit.run("start", "--json", limit_s=420)
    assert done.code == 0, done.err
    assert list(kit.ranks(kit.head)) == [0] and list(kit.ranks(kit.worker)) == [1]
    # `start` has had a real completion, which needs both ranks for every token.
    assert json.loads(done.out)["result"] == "live"
    assert kit.run("stop").code == 0
    kit.assert_nothing_left()
