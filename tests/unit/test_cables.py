"""Cables without addresses, links that go down, and RDMA counters that grow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from glmspark.cabling import find_cables
from glmspark.ending import await_memory
from glmspark.errors import ConfigError
from glmspark.fabricfacts import growth
from glmspark.fabrictypes import Address, FabricFacts, Netdev, RdmaPort
from glmspark.facts import Roots
from glmspark.initkit import propose, require_cabling
from glmspark.linkwatch import DOWN_S, LinkWatch, MemoryWatch, device_of, reserve
from glmspark.logread import progress_file, read_progress
from glmspark.netlink import Link
from glmspark.views import NodeView

from tests.sparks import spark_view


def port(name: str, number: int, state: str = "up") -> Netdev:
    address = Address(f"fe80::{number}", 64)
    return Netdev(name, number, 1500, state, True, kind="veth", addresses=(address,))


NODES = {
    "a": FabricFacts((port("c0", 1), port("c1", 2))),
    "b": FabricFacts((port("d0", 3), port("d1", 4))),
}


def test_ends_that_hear_each_other_are_one_cable() -> None:
    heard = {
        "a": {"c0": ["fe80::1", "fe80::4"], "c1": ["fe80::2"]},
        "b": {"d1": ["fe80::1"], "d0": ["fe80::99"]},
    }
    (cable,) = find_cables(NODES, heard)
    assert cable.ends == (("a", "c0"), ("b", "d1"))
    assert find_cables(NODES, {}) == ()


def test_a_port_on_a_switch_hears_every_other() -> None:
    nodes = {**NODES, "c": FabricFacts((port("e0", 5),))}
    heard = {"a": {"c0": ["fe80::3", "fe80::5"]}, "b": {"d0": ["fe80::1", "fe80::5"]}}
    pairs = {frozenset(cable.ends) for cable in find_cables(nodes, heard)}
    assert len(pairs) == 3


@pytest.mark.cases(1, 16)
def test_commands_give_both_ends_of_a_cable_one_subnet(views: list[NodeView]) -> None:
    # Crossed: the first port of one node leads to the second of the other.
    heard = {"a": {"c0": ["fe80::4"], "c1": ["fe80::3"]}}
    proposal = propose(views, {"a": "local", "b": "me@b"}, heard)
    assert "cable without addresses: a c0 <-> b d1" in proposal.decided()
    with pytest.raises(ConfigError) as caught:
        require_cabling(proposal)
    lines = [line for line in str(caught.value).splitlines() if "netplan set" in line]
    said = [line.split("addresses=[")[1].partition("]")[0] for line in lines]
    assert said == ["10.66.1.1/24", "10.66.1.2/24", "10.66.2.1/24", "10.66.2.2/24"]
    assert "ethernets.d1.addresses=[10.66.1.2/24]" in str(caught.value)


@pytest.fixture
def views() -> list[NodeView]:
    return [
        spark_view(name, rank, NODES[name], f"10.66.1.{rank + 1}")
        for rank, name in enumerate(("a", "b"))
    ]


def link(state: str) -> Link:
    return Link(7, "c7", 1500, state, True, "", "")


@pytest.mark.cases(29, 34)
def test_a_link_that_stays_down_is_said_and_a_flap_is_not() -> None:
    states = ["up"]
    watch = LinkWatch("c7", lambda: [link(states[0])] if states[0] else [])
    assert watch.broken(0) == ""
    states[0] = "lowerlayerdown"
    assert watch.broken(DOWN_S - 1) == ""
    states[0] = "up"
    assert watch.broken(DOWN_S) == ""
    states[0] = "down"
    assert watch.broken(2 * DOWN_S - 1) == ""
    assert watch.broken(2 * DOWN_S) == "the fabric: device c7 is down"
    states[0] = ""
    assert watch.broken(2 * DOWN_S) == "the fabric: device c7 has gone"


def test_a_link_that_cannot_be_read_or_was_never_up_is_not_judged() -> None:
    def refuse() -> list[Link]:
        raise OSError

    assert LinkWatch("c7", refuse).broken(99) == ""
    assert LinkWatch("c7", lambda: [link("down")]).broken(99) == ""
    assert LinkWatch("lo", lambda: []).broken(99) == ""
    assert device_of({"NCCL_SOCKET_IFNAME": "=c7,c8"}) == "c7"
    assert device_of({}) == ""


@pytest.mark.cases(29)
def test_counters_that_grow_are_said_with_the_port() -> None:
    before = RdmaPort("mlx5_0", 1, "ACTIVE", "Ethernet", "", "c7", "", (), {"seq": 4})
    after = [replace(before, counters={"seq": 9, "ack": 0})]
    assert growth([before], after) == ["mlx5_0 port 1 seq +5"]
    assert growth([before], [before]) == []
    assert growth([], after) == ["mlx5_0 port 1 seq +9"]


@pytest.mark.cases(78)
def test_a_host_that_runs_out_of_memory_is_said_before_it_is_out(
    tmp_path: Path,
) -> None:
    def left(mib: int) -> None:
        text = f"MemTotal: {120 << 20} kB\nMemAvailable: {mib << 10} kB\n"
        (tmp_path / "meminfo").write_text(text)

    watch = MemoryWatch(Roots(proc=tmp_path))
    assert watch.short() == ""  # cannot be read: nothing is ended for that
    left(900)
    assert watch.short() == ""
    left(4000)
    assert watch.short() == ""  # one look is none
    left(900)
    watch.short()
    assert watch.short().startswith("the memory: 900 MiB of 122880 are left")
    assert reserve(24 << 30) == (24 << 30) // 100


@pytest.mark.cases(73)
def test_what_a_rank_elsewhere_reads_counts_as_progress(tmp_path: Path) -> None:
    assert read_progress(tmp_path, 1) == 0
    progress_file(tmp_path, 1).write_text("17")
    assert read_progress(tmp_path, 1) == 17


@pytest.mark.cases(75, 79)
def test_a_start_waits_until_the_memory_of_old_ranks_is_back() -> None:
    readings = [gib << 30 for gib in (40, 60, 80, 110, 110, 110)]
    slept: list[float] = []
    passed_s = await_memory(lambda: readings.pop(0), slept.append)
    assert passed_s == sum(slept) == 2.0 and len(readings) == 1
    growing = iter(range(0, 1 << 50, 1 << 30))
    assert await_memory(lambda: next(growing), slept.append, limit_s=5) == 5.0
