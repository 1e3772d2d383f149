"""Recognise how nodes are cabled from the addresses that they have (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations

from glmspark.fabric import (
    Dropped,
    Rail,
    match_rails,
    rdma_of,
    reaches,
    socket_key,
)
from glmspark.fabrictypes import FabricFacts, Netdev

# Devices that lead to containers and tunnels of one host, never to another Spark.
NO_CABLE = frozenset({"bridge", "tun", "wireguard", "ipvlan", "macvlan", "ifb"})

Nodes = Mapping[str, FabricFacts]


@dataclass(frozen=True)
class End:
    """One end of a link: node, netdev, its IPv4 address."""

    node: str
    netdev: Netdev
    address: str


@dataclass(frozen=True)
class Cable:
    """A cable that was found by its ends hearing each other: (node, netdev) twice."""

    a: tuple[str, str]
    b: tuple[str, str]

    @property
    def ends(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Both ends."""
        return self.a, self.b


# Node -> device -> the link-local addresses that answered on it.
Heard = Mapping[str, Mapping[str, Sequence[str]]]


def find_cables(nodes: Nodes, heard: Heard) -> tuple[Cable, ...]:
    """The cables between ports that have no address yet, in the order of the nodes.

    A port that hears several others hangs on a switch: each pair counts.
    """
    owners = {
        held.address: (name, one.name)
        for name, facts in nodes.items()
        for one in facts.netdevs
        for held in one.addresses
        if not held.is_ipv4
    }
    found: dict[frozenset[tuple[str, str]], Cable] = {}
    for node, devices in heard.items():
        for device, addresses in devices.items():
            for address in addresses:
                other = owners.get(address)
                if other is None or other[0] == node:
                    continue
                ends = ((node, device), other)
                found.setdefault(frozenset(ends), Cable(*ends))
    return tuple(found.values())


@dataclass(frozen=True)
class Cabling:
    """What was recognised.

    ``kind`` is "single", "one rail", "two rails", "switch", "triangle", "ring" or
    "incomplete"; ``topology`` the value for kit.toml ("" if none fits). ``order`` lists
    the nodes, along the cables in a ring. ``fabric`` gives each node's address and
    netdev for rendezvous, ``missing`` the pairs without a link, ``notes`` what else
    should be said.
    """

    kind: str
    topology: str
    order: tuple[str, ...]
    fabric: Mapping[str, End] = field(default_factory=dict)
    links: tuple[tuple[End, End], ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def candidates(nodes: Nodes, *, rdma: bool) -> Iterator[End]:
    """The ends that may carry the fabric.

    With ``rdma`` only devices with an RDMA port; else any that is no bridge or tunnel.
    An address that several nodes have (a container bridge's) joins nothing.
    """
    ends = [
        End(name, one, held.address)
        for name, facts in nodes.items()
        for one in facts.netdevs
        if one.has_carrier and one.kind not in NO_CABLE
        for held in one.ipv4
        if not rdma or rdma_of(facts, one) is not None
    ]
    addresses = [end.address for end in ends]
    yield from (end for end in ends if addresses.count(end.address) == 1)


def pair_links(ends: Sequence[End]) -> list[tuple[End, End]]:
    """The pairs of ends on different nodes that reach each other directly."""
    return [
        (a, b)
        for a, b in combinations(ends, 2)
        if a.node != b.node
        and reaches(a.netdev, b.address)
        and reaches(b.netdev, a.address)
    ]


def _is_management(nodes: Nodes, end: End) -> bool:
    return end.netdev.name in nodes[end.node].default_netdevs


def _shared(nodes: Nodes, links: Sequence[tuple[End, End]]) -> dict[str, End]:
    """An end for each node, all in one subnet; empty where there is none.

    Of several subnets the fastest wins that carries no default route.
    """
    best: dict[str, End] = {}
    best_key: tuple[int, ...] = ()
    firsts = {id(end): end for link in links for end in link}
    for first in firsts.values():
        found = {first.node: first}
        for a, b in links:
            if a is first:
                found.setdefault(b.node, b)
            elif b is first:
                found.setdefault(a.node, a)
        if len(found) < len(nodes):
            continue
        managed = any(_is_management(nodes, end) for end in found.values())
        speed = min(end.netdev.speed_mbps for end in found.values())
        key = (not managed, speed)
        if not best or key > best_key:
            best, best_key = found, key
    return best


def _ring(names: Sequence[str], pairs: set[frozenset[str]]) -> tuple[str, ...]:
    """The nodes in the order of a ring that begins with the first; () if none."""
    first, *others = names
    for rest in permutations(others):
        order = (first, *rest)
        around = zip(order, (*order[1:], first), strict=True)
        if all(frozenset(pair) in pairs for pair in around):
            return order
    return ()


def _rendezvous(nodes: Nodes, links: Sequence[tuple[End, End]]) -> dict[str, End]:
    """Where ranks without a common fabric subnet meet: any subnet that all share."""
    shared = _shared(nodes, pair_links(list(candidates(nodes, rdma=False))))
    return shared or {end.node: end for link in reversed(links) for end in link}


def recognise(nodes: Nodes, *, rdma: bool) -> Cabling:
    """How ``nodes`` (the head first) are cabled."""
    names = tuple(nodes)
    if len(names) == 1:
        return Cabling("single", "loopback", names)
    links = tuple(pair_links(list(candidates(nodes, rdma=rdma))))
    pairs = {frozenset((a.node, b.node)) for a, b in links}
    shared = _shared(nodes, links)
    if shared and len(names) == 2:
        paths = [(a, b) for a, b in links if not _is_management(nodes, a)] or links
        kind = "two rails" if rdma and len(paths) > 1 else "one rail"
        return Cabling(kind, "tp2", names, shared, links)
    if shared and len(names) in {3, 4}:
        return Cabling("switch", f"tp{len(names)}", names, shared, links)
    missing = tuple(
        pair for pair in combinations(names, 2) if frozenset(pair) not in pairs
    )
    meet = _rendezvous(nodes, links)
    notes: tuple[str, ...] = ()
    if not _all_reach(meet):
        notes = ("the nodes share no subnet for rendezvous; routes are needed",)
    if len(names) == 3 and not missing:
        return Cabling("triangle", "tp3", names, meet, links, notes=notes)
    degrees = {n: sum(n in pair for pair in pairs) for n in names}
    ring = _ring(names, pairs) if len(names) == 4 else ()
    if ring and set(degrees.values()) == {2}:
        return Cabling("ring", "tp4-ring", ring, meet, links, missing, notes)
    return Cabling("incomplete", "", names, meet, links, missing, notes)


def _all_reach(ends: Mapping[str, End]) -> bool:
    return all(
        reaches(a.netdev, b.address) and reaches(b.netdev, a.address)
        for a, b in combinations(ends.values(), 2)
    )


def mesh_rails(
    nodes: Nodes, cabling: Cabling
) -> tuple[dict[str, tuple[Rail, ...]], list[Dropped]]:
    """The rails of every node of a switchless triangle or ring: those of its links.

    A socket counts once for each neighbour; its twin joins where both ends have it.

    Raises:
        PreflightError: a link has no RDMA rail on one of its ends.
    """
    kept: dict[str, dict[str, Rail]] = {name: {} for name in nodes}
    dropped: list[Dropped] = []
    done: set[tuple[frozenset[str], tuple[str, str]]] = set()
    for a, b in cabling.links:
        mark = (frozenset((a.node, b.node)), socket_key(a.netdev))
        if mark in done:
            continue
        done.add(mark)
        ends = {end.node: (nodes[end.node], end.address) for end in (a, b)}
        rails, lost = match_rails(ends)
        dropped += lost
        for name, found in rails.items():
            kept[name].update({rail.rdma.device: rail for rail in found})
    # By name, so that a node that sees itself alone has the same order.
    ordered = {
        name: tuple(rails[device] for device in sorted(rails))
        for name, rails in kept.items()
    }
    return ordered, dropped


def split_gids(rails: Mapping[str, Sequence[Rail]]) -> dict[str, list[int]]:
    """The nodes whose rails need several GID indexes, with these indexes."""
    indexes = {
        name: sorted({one.gid for one in found}) for name, found in rails.items()
    }
    return {name: found for name, found in indexes.items() if len(found) > 1}
