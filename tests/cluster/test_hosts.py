"""Doctor and init over hosts of our own: real sshd, real cables, real faults."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.hosts import Client, Lab, ip, need_namespaces
from tests.cluster.kits import Done
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.netns
NAMES = ("spark-1", "spark-2")


class Bench:
    """A lab with the command line of a user who reaches its hosts by ssh."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.kit = lab.folder / "kit.toml"

    @property
    def _places(self) -> list[str]:
        return ["--state", str(self.lab.folder / "state")]

    def run(self, *words: str) -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "glmspark", *words],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY / "python")},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def init(self, *words: str, trust: bool = True) -> Done:
        places = [*self._places, "--ssh-config", str(self.lab.client.config)]
        hosts = list(self.lab.hosts)
        flags = ["--trust-hosts"] if trust else []
        out = ["--output", str(self.kit)]
        return self.run("init", *hosts, *places, *flags, *out, *words)

    def doctor(self, *words: str) -> tuple[int, dict[str, list[str]]]:
        """Exit status, and the findings of each check as node: what was seen."""
        # The stub asks for no engine and no memory; the fabric is what is looked at.
        stub = ("--set", "engine=stub")
        done = self.run("doctor", "--json", "--kit", str(self.kit), *stub, *words)
        assert done.out, done.err
        found: dict[str, list[str]] = {}
        for one in json.loads(done.out)["findings"]:
            found.setdefault(one["check"], []).append(f"{one['node']}: {one['seen']}")
        return done.code, found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Makes a lab of the given hosts, each reachable over a management network."""
    need_namespaces()
    labs: list[Lab] = []

    def make(*names: str) -> Bench:
        folder = tmp_path / "lab"
        folder.mkdir()
        lab = Lab(folder, Client(folder / "client"))
        labs.append(lab)
        lab.open(names)
        return Bench(lab)

    yield make
    for lab in labs:
        lab.close()


@pytest.fixture
def pair(bench: Callable[..., Bench]) -> Bench:
    """Two hosts with one cable, and the kit that init made of them."""
    made = bench(*NAMES)
    a, b = ("cable0", "10.66.1.1/24"), ("cable7", "10.66.1.2/24")
    made.lab.cable(NAMES[0], *a, NAMES[1], *b)
    done = made.init()
    assert done.code == 0, done.err
    return made


def kit_of(bench: Bench) -> Any:
    done = bench.run("config", "show", "--json", "--kit", str(bench.kit))
    assert done.code == 0, done.err
    return json.loads(done.out)


def set_link(bench: Bench, name: str, *words: str) -> None:
    ip("link", "set", *words, netns=bench.lab.hosts[name].netns)


@pytest.mark.cases(1, 16, 19, 25, 32, 43, 109)
def test_init_finds_the_cable_and_doctor_has_nothing_to_say(pair: Bench) -> None:
    text = pair.kit.read_text()
    assert 'topology = "tp2"' in text and 'engine = "vllm-cpu"' in text
    assert "cabling: one rail (tp2)" in text
    assert "link: spark-1 cable0 10.66.1.1 <-> spark-2 cable7 10.66.1.2" in text
    code, found = pair.doctor()
    assert (code, found) == (0, {})
    # Asking has resolved the peer's address: the first RDMA packet need not wait.
    known = pair.lab.hosts[NAMES[0]].run("ip", "neigh", "show", "10.66.1.2").stdout
    assert "lladdr" in known


@pytest.mark.cases(18)
def test_a_smaller_mtu_on_one_end_is_found_and_can_be_waived(pair: Bench) -> None:
    set_link(pair, NAMES[1], "cable7", "mtu", "1400")
    code, found = pair.doctor()
    assert code == 4 and set(found) == {"fabric.mtu"}
    assert "spark-2: MTUs differ (spark-1 1500, spark-2 1400)" in found["fabric.mtu"]
    assert any("1500 bytes to 10.66.1.2 do not" in one for one in found["fabric.mtu"])
    assert pair.doctor("--waive", "fabric.mtu")[0] == 0


@pytest.mark.cases(35)
def test_a_firewall_that_drops_calls_is_found(pair: Bench) -> None:
    if not shutil.which("nft"):
        pytest.skip("needs nft (apt install nftables)")
    rules = (
        "add table inet ghA; "
        "add chain inet ghA in { type filter hook input priority 0; }; "
        "add rule inet ghA in iifname cable7 tcp dport 1024-65535 drop"
    )
    pair.lab.hosts[NAMES[1]].run("nft", rules)
    code, found = pair.doctor()
    assert code == 4 and set(found) == {"fabric.firewall"}
    # Both ways: the answers to the other end's calls are dropped as well.
    assert found["fabric.firewall"] == [
        "spark-1: TCP to 10.66.1.2 port 29555 is dropped",
        "spark-2: TCP to 10.66.1.1 port 29555 is dropped",
    ]


@pytest.mark.cases(34)
def test_a_cable_that_is_down_is_found_on_both_ends(pair: Bench) -> None:
    set_link(pair, NAMES[1], "cable7", "down")
    code, found = pair.doctor()
    assert code == 4
    assert "spark-2: cable7 is down" in found["fabric.link"]
    assert {one.partition(":")[0] for one in found["fabric.reach"]} == set(NAMES)


@pytest.mark.cases(16, 25)
def test_a_route_that_leaves_by_the_wrong_device_is_found(pair: Bench) -> None:
    netns = pair.lab.hosts[NAMES[0]].netns
    ip("route", "add", "10.66.1.2/32", "dev", "mgmt0", netns=netns)
    code, found = pair.doctor()
    assert code == 4
    assert found["fabric.route"] == ["spark-1: packets to 10.66.1.2 leave by mgmt0"]


@pytest.mark.cases(42, 93)
def test_a_host_whose_sshd_is_gone_is_one_finding_and_the_other_is_checked(
    pair: Bench,
) -> None:
    pair.lab.hosts[NAMES[1]].kill_all()  # the open connection's end as well
    code, found = pair.doctor()
    assert code == 4
    (seen,) = found["node.reach"]
    address = pair.lab.hosts[NAMES[1]].address
    assert seen.startswith(f"spark-2: nothing listens for ssh on {address}")


@pytest.mark.cases(43)
def test_init_does_not_trust_on_its_own(bench: Callable[..., Bench]) -> None:
    made = bench(*NAMES)
    done = made.init(trust=False)
    assert done.code == 4 and not made.kit.exists()
    assert done.err.count(f"first contact with {made.lab.subnet}.") == 2
    assert "SHA256:" in done.err and "is not known to this kit" in done.err


def test_a_cpu_kit_with_bare_cables_takes_the_network_that_all_share(
    bench: Callable[..., Bench],
) -> None:
    made = bench(*NAMES)
    made.lab.cable(NAMES[0], "cable0", "", NAMES[1], "cable7", "")
    done = made.init("--dry-run")
    assert (
        done.code == 0 and f"{made.lab.subnet}.1" in done.out and not made.kit.exists()
    )
    assert "cabling: one rail (tp2)" in done.err
    # The ends of the cable hear each other, although no address is set.
    assert "cable without addresses: spark-1 cable0 <-> spark-2 cable7" in done.err


def test_a_ring_of_three_is_a_triangle(bench: Callable[..., Bench]) -> None:
    names = ("n1", "n2", "n3")
    made = bench(*names)
    for number, (a, b) in enumerate((("n1", "n2"), ("n2", "n3"), ("n3", "n1"))):
        subnet = f"10.66.{20 + number}"
        made.lab.cable(
            a, f"p{number}a", f"{subnet}.1/24", b, f"p{number}b", f"{subnet}.2/24"
        )
    done = made.init("--dry-run")
    assert done.code == 0, done.err
    assert 'topology = "tp3"' in done.out


def test_doctor_asks_all_nodes_at_once(pair: Bench) -> None:
    """No timing of the machine: the two questions overlap in time."""
    from glmspark.doctor import asker, look_at_all
    from glmspark.paths import kit_paths
    from glmspark.settings import load_settings

    kit = load_settings(str(pair.kit), environ={"HOME": "/x"}).kit
    spans: list[tuple[float, float]] = []
    ask = asker(kit, kit_paths(kit, {"HOME": "/x"}))

    def timed(node: Any, arguments: Any) -> Any:
        began = time.monotonic()
        answer = ask(node, arguments)
        spans.append((began, time.monotonic()))
        return answer

    views, errors = look_at_all(kit, timed, ())
    assert len(views) == 2 and errors == []
    assert max(began for began, _ in spans) < min(ended for _, ended in spans)
