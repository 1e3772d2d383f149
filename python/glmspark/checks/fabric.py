"""Checks of the fabric: addresses, routes, MTU, ports, RDMA rails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glmspark.cabling import mesh_rails, recognise, split_gids
from glmspark.errors import PreflightError
from glmspark.fabric import Dropped, Rail, carrier, match_rails
from glmspark.fabrictypes import Netdev
from glmspark.preflight import Finding
from glmspark.schema import Kit, Topology, is_loopback
from glmspark.views import NodeView

CHECKS = {
    "fabric.address": "a device of the node has its fabric address",
    "fabric.link": "that device is up",
    "fabric.route": "packets to the peers leave by that device",
    "fabric.reach": "the peers answer",
    "fabric.mtu": "both ends have one MTU, and packets of that size pass",
    "fabric.firewall": "no firewall drops what the ranks send each other",
    "fabric.rdma": "every node has an active RDMA port and a RoCE v2 GID",
    "fabric.rails": "both PCIe links of the socket are used",
    "fabric.gid-mode": "IPv6 address generation does not move the GIDs",
    "fabric.pcie": "the card has all its PCIe lanes",
    "fabric.verbs": "the verbs devices are there",
    "fabric.counters": "the RDMA ports have lost and repeated no packets",
    "fabric.forward": "nodes of a ring forward packets",
}
Rails = dict[str, tuple[Rail, ...]]


def fabric_rails(
    kit: Kit, views: Sequence[NodeView]
) -> tuple[Rails, list[Dropped], list[Finding]]:
    """The rails of every node for this topology, what was left out, and faults.

    No rails are looked for where the engine uses no RDMA, or on one node.
    """
    if not kit.engine.uses_gpu or len(views) < 2:
        return {}, [], []
    facts = {view.name: view.fabric for view in views}
    try:
        cabling = recognise(facts, rdma=True)
        if cabling.kind in {"triangle", "ring"}:
            rails, dropped = mesh_rails(facts, cabling)
        else:
            rails, dropped = match_rails(
                {view.name: (view.fabric, view.address) for view in views}
            )
    except PreflightError as error:
        fault = Finding(
            "fabric.rdma",
            error.node,
            str(error),
            "one rail that all nodes share",
            error.hint,
        )
        return {}, [], [fault]
    return rails, dropped, list(_split(rails))


def _split(rails: Rails) -> Iterator[Finding]:
    for name, indexes in split_gids(rails).items():
        yield Finding(
            "fabric.rdma",
            name,
            f"its ports need the GID indexes {indexes}",
            "one index for all ports of a rank",
            "make the tables equal: addr-gen-mode eui64 on each port's connection, "
            "then unbind and bind the mlx5_core driver",
        )


def _own_device(view: NodeView, named: str) -> Iterator[Finding]:
    device = carrier(view.fabric, view.address)
    if device is None:
        yield Finding(
            "fabric.address",
            view.name,
            f"no device has {view.address}",
            "the fabric address of kit.toml on the cable's port",
            f"ip address add {view.address}/24 dev PORT; glmspark init proposes it",
        )
    elif named and named != device.name:
        yield Finding(
            "fabric.address",
            view.name,
            f"{view.address} is on {device.name}, kit.toml names {named}",
            "one device",
            f"remove netdev of node {view.name} from kit.toml; it is looked up",
        )
    elif not device.has_carrier:
        yield Finding(
            "fabric.link",
            view.name,
            f"{device.name} is {device.operstate}",
            "a link",
            f"check the cable; ip link set {device.name} up",
        )


def _paths(view: NodeView) -> Iterator[Finding]:
    device = carrier(view.fabric, view.address)
    for path in view.paths:
        if path.netdev and device is not None and path.netdev != device.name:
            yield Finding(
                "fabric.route",
                view.name,
                f"packets to {path.peer} leave by {path.netdev}",
                f"{device.name}, which has {view.address}",
                f"ip route replace {path.peer} dev {device.name} src {view.address}",
            )
        if path.answers is not True:
            yield Finding(
                "fabric.reach",
                view.name,
                f"{path.peer} does not answer ({path.why})",
                "an answer over the cable",
                f"ping -I {view.address} {path.peer}",
            )
        elif path.full_size is False:
            yield Finding(
                "fabric.mtu",
                view.name,
                f"{path.mtu} bytes to {path.peer} do not pass ({path.why})",
                "one MTU from end to end",
                f"ip link set {path.netdev} mtu 9000 on both ends and on the switch",
            )
        dropped = [port for port, word in path.ports.items() if word == "dropped"]
        if path.answers and dropped:
            yield Finding(
                "fabric.firewall",
                view.name,
                f"TCP to {path.peer} port {dropped[0]} is dropped",
                "free ways between the nodes' fabric addresses",
                f"on {path.peer}: ufw allow from {view.address}",
            )


def _mtus(views: Sequence[NodeView]) -> Iterator[Finding]:
    """Different MTUs of the fabric's devices, where the nodes share one subnet."""
    held = {view.name: carrier(view.fabric, view.address) for view in views}
    sizes = {name: one.mtu for name, one in held.items() if one is not None}
    if len(set(sizes.values())) > 1:
        low = min(sizes, key=lambda name: sizes[name])
        device = held[low]
        said = ", ".join(f"{name} {size}" for name, size in sizes.items())
        yield Finding(
            "fabric.mtu",
            low,
            f"MTUs differ ({said})",
            f"{max(sizes.values())} on all",
            f"ip link set {device.name if device else 'PORT'} "
            f"mtu {max(sizes.values())}, and in its netplan or connection",
        )


def _rdma_advice(view: NodeView, devices: Sequence[Netdev]) -> Iterator[Finding]:
    if view.fabric.rdma and not view.fabric.verbs_nodes:
        yield Finding(
            "fabric.verbs",
            view.name,
            "RDMA devices, and no /dev/infiniband/uverbs*",
            "the verbs devices; without them NCCL takes TCP and is slow",
            "modprobe ib_uverbs",
        )
    for one in devices:
        if 0 < one.pcie_width < one.pcie_width_max:
            yield Finding(
                "fabric.pcie",
                view.name,
                f"{one.name} has {one.pcie_width} of {one.pcie_width_max} PCIe lanes",
                "all lanes; this rail has a part of its speed",
                "switch the machine off, unplug it, and reseat the cable",
                "advice",
            )
        if one.addr_gen_mode in {2, 3}:
            yield Finding(
                "fabric.gid-mode",
                view.name,
                f"{one.name} makes private IPv6 addresses, which shift its GIDs",
                "EUI-64 addresses, which keep the indexes equal",
                "nmcli connection modify CONNECTION ipv6.addr-gen-mode eui64",
                "advice",
            )


def _counters(view: NodeView, used: Sequence[Netdev]) -> Iterator[Finding]:
    """What the used ports have lost since they came up; a start compares anew."""
    names = {one.name for one in used}
    for port in view.fabric.rdma:
        lost = {name: count for name, count in port.counters.items() if count}
        if port.netdev in names and lost:
            said = ", ".join(f"{name} {count}" for name, count in sorted(lost.items()))
            yield Finding(
                "fabric.counters",
                view.name,
                f"{port.device} port {port.port} has counted {said}",
                "none of them growing while the kit serves",
                "look again while it serves: glmspark node probe --json; on a switch, "
                "set up flow control (PFC or global pause) on these ports",
                "advice",
            )


def _rails(
    kit: Kit, rails: Rails, dropped: Sequence[Dropped], views: Sequence[NodeView]
) -> Iterator[Finding]:
    for one in dropped:
        yield Finding(
            "fabric.rails",
            one.node,
            f"{one.netdev} is not used: {one.why}",
            "a second rail, for more bandwidth",
            "give the twin on each node an address of one further subnet and one MTU",
            "warning",
        )
    for view in views:
        used = [rail.netdev for rail in rails.get(view.name, ())]
        yield from _rdma_advice(view, used)
        yield from _counters(view, used)
        if kit.topology is Topology.TP4_RING and not view.host.ip_forward:
            yield Finding(
                "fabric.forward",
                view.name,
                "net.ipv4.ip_forward is 0",
                "nodes that pass packets on to the opposite one",
                "sysctl -w net.ipv4.ip_forward=1, and in /etc/sysctl.d",
            )


def check(kit: Kit, views: Sequence[NodeView]) -> Iterator[Finding]:
    """What is wrong with the fabric between ``views``; nothing on one machine."""
    views = [view for view in views if not is_loopback(view.address)]
    if len(kit.nodes) < 2 or not views:
        return
    named = {node.name: node.netdev for node in kit.nodes}
    for view in views:
        yield from _own_device(view, named[view.name])
        yield from _paths(view)
    yield from _mtus(views)
    if kit.engine.uses_gpu:
        rails, dropped, faults = fabric_rails(kit, views)
        yield from faults
        yield from _rails(kit, rails, dropped, views)
