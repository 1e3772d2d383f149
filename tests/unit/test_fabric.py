"""The fabric: devices, twins, GIDs, rails and cabling from trees like the kernel's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from glmspark.cabling import mesh_rails, recognise, split_gids
from glmspark.errors import PreflightError
from glmspark.fabric import (
    carrier,
    common_gids,
    gid_table,
    link_to,
    match_rails,
    network_env,
    twins,
    usable_gids,
)
from glmspark.fabricfacts import read_rdma, roce_mtu
from glmspark.fabrictypes import FabricFacts
from glmspark.facts import Roots
from glmspark.ncclselect import parse_selector
from glmspark.netlink import Link

from tests.sparks import Port, Spark, card

Make = Callable[..., FabricFacts]


@pytest.fixture
def spark(tmp_path: Path) -> Make:
    """Makes the facts of a Spark from its ports."""
    made: list[int] = []

    def make(ports: list[Port], **more: Any) -> FabricFacts:
        made.append(1)
        root = tmp_path / f"spark{len(made)}"
        return Spark(root, ports, **more).write().facts()

    return make


def dual(spark: Make, n: int, **more: Any) -> FabricFacts:
    return spark(card(0, f"10.66.1.{n}", f"10.66.2.{n}", **more), lan=f"192.168.9.{n}")


def pair(a: FabricFacts, b: FabricFacts) -> Any:
    return match_rails({"a": (a, "10.66.1.1"), "b": (b, "10.66.1.2")})


@pytest.mark.cases(12)
def test_the_readers_see_twins_speed_pcie_and_gids(spark: Make) -> None:
    facts = dual(spark, 1)
    first = carrier(facts, "10.66.1.1")
    assert first is not None and first.name == "enp1s0f0np0"
    assert (first.speed_mbps, first.driver, first.pcie_width) == (
        200000,
        "mlx5_core",
        4,
    )
    assert [one.name for one in twins(facts, first)] == ["enP2p1s0f0np0"]
    port = next(one for one in facts.rdma if one.device == "rocep1s0f0")
    assert (port.netdev, port.state, port.pci) == (first.name, "ACTIVE", "0000:01:00.0")
    assert usable_gids(port, first.name, "10.66.1.1") == (3,)
    assert FabricFacts.from_json(facts.to_json()) == facts


def test_the_other_socket_is_no_twin(spark: Make) -> None:
    facts = spark(card(0, "10.66.1.1") + card(1, "10.66.7.1"))
    first = carrier(facts, "10.66.1.1")
    assert first is not None
    assert [one.name for one in twins(facts, first)] == ["enP2p1s0f0np0"]


@pytest.mark.cases(1, 2, 12)
def test_two_rails_over_differing_sockets_and_one_source_for_all_names(
    spark: Make,
) -> None:
    a = spark(card(0, "10.66.1.1", "10.66.2.1"))
    b = spark(card(1, "10.66.1.2", "10.66.2.2"))
    rails, dropped = pair(a, b)
    assert dropped == []
    assert [one.rdma.device for one in rails["b"]] == ["rocep1s0f1", "roceP2p1s0f1"]
    first = rails["b"][0]
    hcas = [rail.hca for rail in rails["b"]]
    env = network_env(first.netdev.name, "10.66.1.2", hcas, first.gid)
    assert env == {
        "VLLM_HOST_IP": "10.66.1.2",
        "GLOO_SOCKET_IFNAME": "enp1s0f1np1",
        "NCCL_SOCKET_IFNAME": "=enp1s0f1np1",
        "NCCL_IB_HCA": "=rocep1s0f1:1,roceP2p1s0f1:1",
        "NCCL_IB_GID_INDEX": "3",
        "NCCL_IB_ROCE_VERSION_NUM": "2",
        "NCCL_IB_DISABLE": "0",
        "NCCL_NET": "IB",
    }


@pytest.mark.cases(10, 15)
def test_without_rails_no_variable_of_infiniband_is_defined() -> None:
    env = network_env("eth1", "10.66.1.1")
    assert not [name for name in env if name.startswith("NCCL_IB")]
    assert "" not in env.values()


@pytest.mark.cases(5, 6)
def test_each_node_gets_its_own_index(spark: Make) -> None:
    rails, _ = pair(dual(spark, 1, slot=2), dual(spark, 2, slot=3))
    assert [rails[name][0].gid for name in ("a", "b")] == [3, 4]
    assert len(rails["a"]) == 2


@pytest.mark.cases(7)
def test_a_rail_whose_index_moved_is_left_out_on_both_nodes(spark: Make) -> None:
    ports = card(0, "10.66.1.2", "10.66.2.2")
    ports[1].slot = 5
    rails, dropped = pair(dual(spark, 1), spark(ports))
    assert {name: len(found) for name, found in rails.items()} == {"a": 1, "b": 1}
    (one,) = dropped
    assert (one.node, one.netdev) == ("b", "enP2p1s0f0np0")
    assert "index 6, the first rail's has 3" in one.why


@pytest.mark.cases(4)
@pytest.mark.parametrize("kinds", [("", ""), ("IB/RoCE v1", "IB/RoCE v1")])
def test_a_node_without_a_v2_gid_is_refused_with_both_tables(
    spark: Make, kinds: tuple[str, str]
) -> None:
    ports = card(0, "10.66.1.2")
    ports[0].slot = None if kinds[0] == "" else 2
    ports[0].kinds = kinds
    with pytest.raises(PreflightError) as caught:
        pair(dual(spark, 1), spark(ports))
    text = str(caught.value)
    assert caught.value.node == "b"
    assert "rocep1s0f0 has no RoCE v2 GID of 10.66.1.2" in text
    assert "[a]   3 RoCE v2      10.66.1.1" in text
    assert "[b]   1 RoCE v2      fe80" in text


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"address": "10.66.99.2"}, "another subnet"),
        ({"address": ""}, "no IPv4 address"),
        ({"mtu": 1500}, "MTU 1500, 9000 on a"),
        ({"state": "1: DOWN"}, "roceP2p1s0f0 is DOWN"),
        ({"up": False}, "enP2p1s0f0np0 is down"),
    ],
)
@pytest.mark.cases(11, 13)
def test_a_second_rail_that_does_not_match_is_left_out_with_the_reason(
    spark: Make, change: dict[str, Any], why: str
) -> None:
    ports = card(0, "10.66.1.2", "10.66.2.2")
    for name, value in change.items():
        setattr(ports[1], name, value)
    rails, dropped = pair(dual(spark, 1), spark(ports))
    assert [len(found) for found in rails.values()] == [1, 1]
    assert any(one.node == "b" and why in one.why for one in dropped), dropped


@pytest.mark.cases(13)
def test_an_active_port_towards_something_else_is_not_used(spark: Make) -> None:
    a = spark(card(0, "10.66.1.1", "10.66.2.1") + card(1, "10.99.0.1"))
    rails, dropped = pair(a, dual(spark, 2))
    assert all("f1" not in rail.rdma.device for rail in rails["a"])
    assert dropped == []


@pytest.mark.cases(16)
def test_the_netdev_follows_from_the_peers_address(spark: Make) -> None:
    facts = dual(spark, 1)
    cable, lan = link_to(facts, "10.66.1.2"), link_to(facts, "192.168.9.2")
    assert cable is not None and cable.name == "enp1s0f0np0"
    assert lan is not None and lan.name == "enP7s7"
    assert link_to(facts, "172.16.0.1") is None


@pytest.mark.cases(8)
@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("", "abcd"),
        ("mlx5", "abc"),
        ("=mlx5_1", "b"),
        ("mlx5_1", "bc"),
        ("mlx5_0,roce0", "ad"),
        ("=mlx5_0,mlx5_1", "ab"),
        ("^mlx5_0", "bcd"),
        ("^=mlx5_1", "acd"),
        ("^", ""),
        ("mlx5_1:1", "bc"),
        ("=mlx5_1:2", ""),
        ("mlx5_0:x", ""),
        (",,roce0,", "d"),
        ("nothing", ""),
    ],
)
def test_the_selector_is_read_as_nccl_reads_it(text: str, chosen: str) -> None:
    names = {"mlx5_0": "a", "mlx5_1": "b", "mlx5_10": "c", "roce0": "d"}
    selector = parse_selector(text)
    found = "".join(letter for name, letter in names.items() if selector.selects(name))
    assert found == chosen


@pytest.mark.cases(8)
def test_a_device_list_has_the_indexes_that_all_members_share(spark: Make) -> None:
    ports = card(0, "10.66.1.1", "10.66.2.1")
    ports[1].slot = 4
    facts = spark(ports)
    addresses = {"enp1s0f0np0": "10.66.1.1", "enP2p1s0f0np0": "10.66.2.1"}
    both = parse_selector("=rocep1s0f0,roceP2p1s0f0")
    assert common_gids(facts, both, addresses) == ()
    assert common_gids(facts, parse_selector("^roceP2"), addresses) == (3,)
    assert common_gids(facts, parse_selector("=none"), addresses) == ()


def test_a_table_that_cannot_be_read_is_an_error_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Spark(tmp_path, card(0, "10.66.1.1")).write()
    real = Path.read_text

    def refuse(self: Path, *args: Any, **more: Any) -> str:
        if "gids" in self.parts:
            raise PermissionError(13, "Permission denied")
        return real(self, *args, **more)

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(PermissionError):
        read_rdma(Roots(sys=tmp_path / "sys"))


@pytest.mark.parametrize(
    ("mtu", "rdma"), [(9000, 4096), (4196, 4096), (1500, 1024), (300, 0), (352, 256)]
)
def test_the_rdma_mtu_is_the_kernels(mtu: int, rdma: int) -> None:
    assert roce_mtu(mtu) == rdma


def test_the_gid_table_shows_addresses(spark: Make) -> None:
    lines = gid_table(dual(spark, 1).rdma[1])
    assert lines[0] == "rocep1s0f0 port 1 (ACTIVE):"
    assert lines[-1] == "  3 RoCE v2      10.66.1.1 enp1s0f0np0"


def two(spark: Make, *, rails: int) -> dict[str, FabricFacts]:
    second = ["10.66.2.1", "10.66.2.2"] if rails == 2 else ["", ""]
    return {
        name: spark(card(0, f"10.66.1.{n}", second[n - 1]), lan=f"192.168.9.{n}")
        for n, name in enumerate(("a", "b"), start=1)
    }


@pytest.mark.parametrize(("rails", "kind"), [(1, "one rail"), (2, "two rails")])
def test_two_nodes_are_recognised(spark: Make, rails: int, kind: str) -> None:
    found = recognise(two(spark, rails=rails), rdma=True)
    assert (found.kind, found.topology, found.missing) == (kind, "tp2", ())
    assert {end.netdev.driver for end in found.fabric.values()} == {"mlx5_core"}


@pytest.mark.cases(25, 32)
def test_the_cable_wins_over_the_lan_and_container_bridges_join_nothing(
    spark: Make,
) -> None:
    docker = (Link(80, "docker0", 1500, "up", True, "", "bridge"), "172.17.0.1/16")
    veth = (Link(81, "shared0", 1500, "up", True, "", "veth"), "172.18.0.1/16")
    nodes = {
        name: spark(card(0, f"10.66.1.{n}"), lan=f"192.168.9.{n}", extra=[docker, veth])
        for n, name in enumerate(("a", "b"), start=1)
    }
    found = recognise(nodes, rdma=False)
    assert {end.address for end in found.fabric.values()} == {"10.66.1.1", "10.66.1.2"}
    assert all("172." not in end.address for link in found.links for end in link)


@pytest.mark.parametrize("count", [3, 4])
def test_a_switch_is_recognised(spark: Make, count: int) -> None:
    nodes = {f"n{i}": spark(card(0, f"10.66.1.{i}")) for i in range(1, count + 1)}
    found = recognise(nodes, rdma=True)
    assert (found.kind, found.topology) == ("switch", f"tp{count}")


def cable(spark: Make, cables: list[tuple[int, int]], count: int) -> Any:
    """Nodes with one subnet a cable, the first socket before the second."""
    addresses: dict[int, list[str]] = {n: [] for n in range(count)}
    for number, ends in enumerate(cables):
        for side, node in enumerate(ends, start=1):
            addresses[node].append(f"10.66.{10 + number}.{side}")
    nodes = {}
    for node, found in addresses.items():
        ports = [port for i, address in enumerate(found) for port in card(i, address)]
        nodes[f"n{node}"] = spark(ports, lan=f"192.168.9.{node + 1}")
    return nodes


def test_a_triangle_is_recognised_and_every_cable_is_a_rail(spark: Make) -> None:
    nodes = cable(spark, [(0, 1), (1, 2), (2, 0)], 3)
    found = recognise(nodes, rdma=True)
    assert (found.kind, found.topology) == ("triangle", "tp3")
    assert {end.netdev.name for end in found.fabric.values()} == {"enP7s7"}
    rails, dropped = mesh_rails(nodes, found)
    assert {len(one) for one in rails.values()} == {2}
    assert {one.why for one in dropped} == {"enP2p1s0f0np0 has no IPv4 address"} | {
        "enP2p1s0f1np1 has no IPv4 address"
    }
    assert split_gids(rails) == {}


def test_a_ring_is_recognised_in_the_order_of_its_cables(spark: Make) -> None:
    nodes = cable(spark, [(0, 2), (2, 1), (1, 3), (3, 0)], 4)
    found = recognise(nodes, rdma=True)
    assert (found.kind, found.topology) == ("ring", "tp4-ring")
    assert found.order in {("n0", "n2", "n1", "n3"), ("n0", "n3", "n1", "n2")}
    assert found.missing == (("n0", "n1"), ("n2", "n3"))


@pytest.mark.cases(34)
def test_a_ring_without_a_common_network_says_that_routes_are_needed(
    spark: Make,
) -> None:
    nodes = cable(spark, [(0, 1), (1, 2), (2, 3), (3, 0)], 4)
    bare = {
        name: replace(
            facts, netdevs=tuple(n for n in facts.netdevs if n.name != "enP7s7")
        )
        for name, facts in nodes.items()
    }
    assert "routes are needed" in recognise(bare, rdma=True).notes[0]
    assert recognise(nodes, rdma=True).notes == ()


def test_a_missing_cable_is_named(spark: Make) -> None:
    nodes = cable(spark, [(0, 1), (1, 2)], 3)
    found = recognise(nodes, rdma=True)
    assert (found.kind, found.topology) == ("incomplete", "")
    assert found.missing == (("n0", "n2"),)


def test_split_gids_names_the_nodes_with_several_indexes(spark: Make) -> None:
    nodes = cable(spark, [(0, 1), (1, 2), (2, 0)], 3)
    rails, _ = mesh_rails(nodes, recognise(nodes, rdma=True))
    first, second = rails["n0"]
    rails["n0"] = (first, replace(second, gid=5))
    assert split_gids(rails) == {"n0": [3, 5]}
