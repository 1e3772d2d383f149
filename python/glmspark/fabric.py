"""Which devices carry a kit's traffic, and what each rank is told of them (pure).

Names differ from kit to kit and from node to node, and GID tables are rebuilt in
another order at a reboot; so nothing here is remembered, all of it follows from the
facts of this very start.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glmspark.errors import PreflightError
from glmspark.fabrictypes import FabricFacts, Gid, Netdev, RdmaPort
from glmspark.ncclselect import Selector

ROCE_V2 = "RoCE v2"


@dataclass(frozen=True)
class Rail:
    """One path of a node to its peers: netdev, its IPv4 address, RDMA port, GID."""

    netdev: Netdev
    address: str
    rdma: RdmaPort
    gid: int

    @property
    def hca(self) -> str:
        """Its name in NCCL_IB_HCA: device and port."""
        return f"{self.rdma.device}:{self.rdma.port}"


@dataclass(frozen=True)
class Dropped:
    """A device that could have been a rail, and why it is none."""

    node: str
    netdev: str
    why: str


def carrier(facts: FabricFacts, address: str) -> Netdev | None:
    """The device that holds ``address``."""
    return next(
        (
            one
            for one in facts.netdevs
            if any(held.address == address for held in one.addresses)
        ),
        None,
    )


def reaches(netdev: Netdev, peer: str) -> bool:
    """Whether ``peer`` lies in a subnet of ``netdev``."""
    wanted = ipaddress.ip_address(peer)
    return any(
        wanted in held.network and held.address != peer for held in netdev.addresses
    )


def link_to(facts: FabricFacts, peer: str) -> Netdev | None:
    """The device with a subnet that holds ``peer``; the fastest one, if several."""
    found = [one for one in facts.netdevs if reaches(one, peer)]
    return max(found, key=lambda one: (one.has_carrier, one.speed_mbps), default=None)


def socket_key(netdev: Netdev) -> tuple[str, str]:
    """What the netdevs of one QSFP socket share; ("", name) for a virtual device.

    A GB10's ConnectX-7 shows each socket as two functions in two PCI domains
    (0000:01:00.0 and 0002:01:00.0), each with its own x4 link: the twins.
    """
    if not netdev.pci:
        return ("", netdev.name)
    return (netdev.driver, netdev.pci.partition(":")[2])


def twins(facts: FabricFacts, netdev: Netdev) -> tuple[Netdev, ...]:
    """The other netdevs of the socket of ``netdev``, by PCI address, each once."""
    found = {
        one.pci: one
        for one in facts.netdevs
        if one.name != netdev.name
        and one.pci
        and one.pci != netdev.pci
        and socket_key(one) == socket_key(netdev)
    }
    return tuple(found[pci] for pci in sorted(found))


def rdma_of(facts: FabricFacts, netdev: Netdev) -> RdmaPort | None:
    """The RDMA port of ``netdev``."""
    return next((one for one in facts.rdma if one.netdev == netdev.name), None)


def usable_gids(port: RdmaPort, netdev: str, address: str) -> tuple[int, ...]:
    """The indexes of the RoCE v2 entries of ``address`` on ``netdev``."""
    return tuple(
        gid.index
        for gid in port.gids
        if gid.kind == ROCE_V2 and gid.ipv4 == address and gid.netdev in {netdev, ""}
    )


def common_gids(
    facts: FabricFacts, selector: Selector, addresses: Mapping[str, str]
) -> tuple[int, ...]:
    """The GID indexes that are usable on every port that ``selector`` selects.

    ``addresses`` maps a netdev to the IPv4 address that its traffic uses.
    """
    chosen = [one for one in facts.rdma if selector.selects(one.device, one.port)]
    sets = [
        set(usable_gids(one, one.netdev, addresses.get(one.netdev, "")))
        for one in chosen
    ]
    return tuple(sorted(set.intersection(*sets))) if sets else ()


def gid_table(port: RdmaPort) -> list[str]:
    """The GID table of a port as lines for a message."""

    def line(gid: Gid) -> str:
        return f"{gid.index:3} {gid.kind or '?':12} {gid.ipv4 or gid.gid} {gid.netdev}"

    lines = [line(gid) for gid in port.gids]
    return [f"{port.device} port {port.port} ({port.state}):", *lines]


def rail_at(facts: FabricFacts, netdev: Netdev, address: str) -> Rail | str:
    """The rail of ``netdev`` with ``address``, or why it cannot be one."""
    if not netdev.has_carrier:
        return f"{netdev.name} is {netdev.operstate}"
    port = rdma_of(facts, netdev)
    if port is None:
        return f"{netdev.name} has no RDMA device"
    if not port.is_active:
        return f"{port.device} is {port.state or 'in an unknown state'}"
    gids = usable_gids(port, netdev.name, address)
    if not gids:
        return f"{port.device} has no RoCE v2 GID of {address}"
    return Rail(netdev, address, port, gids[0])


def _addressed(facts: FabricFacts, fabric: str) -> list[tuple[Netdev, str]]:
    """The netdev of ``fabric`` and its twins, each with the IPv4 address it would use.

    A twin without an address is in the list with "".
    """
    first = carrier(facts, fabric)
    if first is None:
        return []
    others = [
        (one, one.ipv4[0].address if one.ipv4 else "") for one in twins(facts, first)
    ]
    return [(first, fabric), *others]


def _match(
    number: int, rails: Mapping[str, Rail], needed: Sequence[str]
) -> dict[str, str]:
    """Why the rails of one number do not form a path between all nodes, by node."""
    if number == 0:
        return {}
    wrong: dict[str, str] = {}
    for node, rail in rails.items():
        for other, peer in rails.items():
            if node == other:
                continue
            if not reaches(rail.netdev, peer.address):
                why = f"{rail.address} is in another subnet than {peer.address}"
                wrong[node] = f"{why} of {other}"
            elif rail.netdev.mtu != peer.netdev.mtu:
                mtus = f"{rail.netdev.mtu}, {peer.netdev.mtu} on {other}"
                wrong[node] = f"{rail.netdev.name} has MTU {mtus}"
    missing = sorted(set(needed) - set(rails))
    for node in rails if missing else ():
        wrong.setdefault(node, f"{', '.join(missing)} has no such rail")
    return wrong


def match_rails(
    nodes: Mapping[str, tuple[FabricFacts, str]],
) -> tuple[dict[str, tuple[Rail, ...]], list[Dropped]]:
    """The rails that all nodes share, by node, and what was left out and why.

    ``nodes`` maps a name to its facts and its fabric address, for nodes of one subnet
    (two nodes, or a switch). The first rail is the device of that address.

    Raises:
        PreflightError: a node's first rail is none; both facts and tables are shown.
    """
    places = {name: _addressed(*node) for name, node in nodes.items()}
    kept: dict[str, list[Rail]] = {name: [] for name in nodes}
    dropped: list[Dropped] = []
    for number in range(max((len(place) for place in places.values()), default=0)):
        rails: dict[str, Rail] = {}
        for name, place in places.items():
            if number >= len(place):
                continue
            netdev, address = place[number]
            found = rail_at(nodes[name][0], netdev, address) if address else ""
            if isinstance(found, Rail):
                rails[name] = found
            else:
                why = found or f"{netdev.name} has no IPv4 address"
                dropped.append(Dropped(name, netdev.name, why))
        wrong = _match(number, rails, list(nodes))
        dropped += [Dropped(n, rails[n].netdev.name, why) for n, why in wrong.items()]
        if not wrong and len(rails) == len(nodes):
            for name, rail in rails.items():
                kept[name].append(rail)
        elif number == 0:
            break  # the rail of the fabric address is the one that must be
    _require_first(nodes, kept, dropped)
    return _one_gid(kept, dropped)


def _require_first(
    nodes: Mapping[str, tuple[FabricFacts, str]],
    kept: Mapping[str, Sequence[Rail]],
    dropped: Sequence[Dropped],
) -> None:
    lacking = [name for name in nodes if not kept[name]]
    if not lacking:
        return
    lines = [f"[{one.node}] {one.netdev}: {one.why}" for one in dropped]
    for name, (facts, address) in nodes.items():
        if carrier(facts, address) is None:
            lines.append(f"[{name}] no device has the address {address}")
        for port in facts.rdma:
            lines += [f"[{name}] {line}" for line in gid_table(port)]
    raise PreflightError(
        "the nodes share no RDMA rail\n       " + "\n       ".join(lines),
        hint="glmspark init --dry-run shows what each node has and proposes addresses",
        node=dropped[0].node if dropped else lacking[0],  # the first rail's fault
    )


def _one_gid(
    kept: Mapping[str, Sequence[Rail]], dropped: list[Dropped]
) -> tuple[dict[str, tuple[Rail, ...]], list[Dropped]]:
    """Leave out the rails whose GID has another index than the first rail's.

    A process has one NCCL_IB_GID_INDEX for all its devices; a rail that needs another
    one on some node cannot be used on any.
    """
    count = min((len(rails) for rails in kept.values()), default=0)
    numbers = [0]
    for number in range(1, count):
        differing = [
            (name, rails[number])
            for name, rails in kept.items()
            if rails[number].gid != rails[0].gid
        ]
        dropped += [
            Dropped(
                name,
                rail.netdev.name,
                f"its GID has index {rail.gid}, the first rail's has "
                f"{kept[name][0].gid}, and a rank has one index for all",
            )
            for name, rail in differing
        ]
        if not differing:
            numbers.append(number)
    return {n: tuple(rails[i] for i in numbers) for n, rails in kept.items()}, dropped


def own_rails(facts: FabricFacts, address: str, *, mesh: bool) -> tuple[Rail, ...]:
    """The rails that a node sees by itself, without asking its peers.

    The device of ``address`` and its twins; in a ``mesh`` (no common subnet) every
    RDMA port with an IPv4 address. Rails with another GID index than the first are
    left out: a rank has one index.
    """
    places = _addressed(facts, address)
    if mesh:
        places = [(one, one.ipv4[0].address) for one in facts.netdevs if one.ipv4]
    found = [rail_at(facts, netdev, held) for netdev, held in places if held]
    rails = [one for one in found if isinstance(one, Rail)]
    if mesh:
        rails.sort(key=lambda one: one.rdma.device)
    return tuple(one for one in rails if one.gid == rails[0].gid)


def network_env(
    netdev: str, address: str, hcas: Sequence[str] = (), gid: int = -1
) -> dict[str, str]:
    """The variables that follow from a rank's place on the fabric.

    All of them come from the one fabric address; ``hcas`` are device:port. Without
    any (no RDMA) nothing of InfiniBand is defined: NCCL reads an empty
    NCCL_IB_GID_INDEX as index 0.
    """
    env = {
        "VLLM_HOST_IP": address,
        "GLOO_SOCKET_IFNAME": netdev,
        # "=": without it NCCL takes every device whose name begins so.
        "NCCL_SOCKET_IFNAME": f"={netdev}",
    }
    if hcas:
        env["NCCL_IB_HCA"] = "=" + ",".join(hcas)
        env["NCCL_IB_GID_INDEX"] = str(gid)
        env["NCCL_IB_ROCE_VERSION_NUM"] = "2"
        env["NCCL_IB_DISABLE"] = "0"
        # A missing verbs device must be an error, not a silent socket transport.
        env["NCCL_NET"] = "IB"
    return env
