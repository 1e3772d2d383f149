"""The kit that follows from what the nodes show: addresses, cables, RDMA (pure)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glmspark.cabling import Cable, Cabling, Heard, find_cables, recognise
from glmspark.errors import ConfigError
from glmspark.fabrictypes import FabricFacts, Netdev
from glmspark.views import NodeView

# Proposed where the cabled ports have no addresses yet; one subnet a rail.
PROPOSED = "10.66.{rail}.{node}/24"
FABRIC_MTU = 9000


@dataclass(frozen=True)
class Proposal:
    """What init decides from: the cabling, and what every node said of itself."""

    cabling: Cabling
    views: tuple[NodeView, ...]
    targets: Mapping[str, str]
    rdma: bool
    cables: tuple[Cable, ...] = ()

    def decided(self) -> list[str]:
        """The facts that the decision rests on, as lines."""
        found = self.cabling
        out = [f"cabling: {found.kind} ({found.topology or 'no topology fits'})"]
        for a, b in found.links:
            ends = [f"{e.node} {e.netdev.name} {e.address}" for e in (a, b)]
            out.append(f"link: {ends[0]} <-> {ends[1]}, MTU {a.netdev.mtu}")
        for cable in self.cables:
            both = " <-> ".join(f"{node} {device}" for node, device in cable.ends)
            out.append(f"cable without addresses: {both}")
        for view in self.views:
            gpus = ", ".join(view.facts.gpus) or "no GPU"
            ports = ", ".join(p.device for p in view.fabric.rdma) or "no RDMA"
            out.append(f"{view.name}: {gpus}; {ports}; kernel {view.facts.kernel}")
        return [*out, *found.notes]


def propose(
    views: Sequence[NodeView], targets: Mapping[str, str], heard: Heard | None = None
) -> Proposal:
    """The kit that ``views`` (the head first) make; ``targets`` maps names to ssh.

    ``heard`` says who answered on the ports that have no address.

    RDMA decides where every node has it; otherwise any network that all share.
    """
    rdma = all(view.fabric.rdma for view in views)
    facts = {view.name: view.fabric for view in views}
    cables = find_cables(facts, heard or {})
    return Proposal(recognise(facts, rdma=rdma), tuple(views), targets, rdma, cables)


def ports_to_hear(views: Sequence[NodeView]) -> dict[str, list[str]]:
    """The bare ports of each node, to ask who is at their other end."""
    rdma = all(view.fabric.rdma for view in views)
    return {
        view.name: [one.name for one in bare_ports(view.fabric, rdma=rdma)]
        for view in views
    }


def bare_ports(facts: FabricFacts, *, rdma: bool) -> list[Netdev]:
    """The ports with a link and without an IPv4 address."""
    with_rdma = {port.netdev for port in facts.rdma}
    return [
        one
        for one in facts.netdevs
        if one.has_carrier
        and not one.ipv4
        and (one.name in with_rdma if rdma else not one.kind or one.kind == "veth")
    ]


def require_cabling(proposal: Proposal) -> None:
    """See that a kit can be made.

    Raises:
        ConfigError: some nodes share no subnet; the commands that give each node's
            cabled ports their addresses are in the message.
    """
    found = proposal.cabling
    if found.topology:
        return
    pairs = ", ".join(f"{a} and {b}" for a, b in found.missing)
    lines = [f"no cabled ports in one subnet: {pairs}" if pairs else "odd cabling"]
    if proposal.cables:
        lines += cable_lines(proposal)
        raise _without_addresses(lines)
    for number, view in enumerate(proposal.views, start=1):
        ports = bare_ports(view.fabric, rdma=proposal.rdma)
        if not ports:
            lines.append(f"[{view.name}] no port with a link waits for an address")
        for rail, port in enumerate(ports, start=1):
            address = PROPOSED.format(rail=rail, node=number)
            lines += [f"[{view.name}] {line}" for line in address_lines(port, address)]
    raise _without_addresses(lines)


def _without_addresses(lines: Sequence[str]) -> ConfigError:
    return ConfigError(
        "\n       ".join(lines),
        hint="give the ports addresses (one of the three ways shown), then init again",
    )


def cable_lines(proposal: Proposal) -> list[str]:
    """The commands that give both ends of each cable an address in one subnet."""
    numbers = {view.name: n for n, view in enumerate(proposal.views, start=1)}
    ports = {
        (view.name, one.name): one
        for view in proposal.views
        for one in view.fabric.netdevs
    }
    lines = []
    for rail, cable in enumerate(proposal.cables, start=1):
        for node, device in cable.ends:
            address = PROPOSED.format(rail=rail, node=numbers[node])
            found = address_lines(ports[node, device], address)
            lines += [f"[{node}] {line}" for line in found]
    return lines


def address_lines(port: Netdev, address: str) -> list[str]:
    """The commands that give ``port`` its address for good, on three systems."""
    name, mtu = port.name, FABRIC_MTU
    return [
        f"netplan: sudo netplan set ethernets.{name}.addresses=[{address}] && "
        f"sudo netplan set ethernets.{name}.mtu={mtu} && sudo netplan apply",
        f"NetworkManager: sudo nmcli connection add type ethernet ifname {name} "
        f"con-name glmspark-{name} ipv4.method manual ipv4.addresses {address} "
        f"ipv6.addr-gen-mode eui64 802-3-ethernet.mtu {mtu}",
        f"NixOS: networking.interfaces.{name} = {{ mtu = {mtu}; ipv4.addresses = "
        f'[ {{ address = "{address.partition("/")[0]}"; prefixLength = 24; }} ]; }};',
    ]


def _header(proposal: Proposal) -> list[str]:
    return [
        "# Written by `glmspark init` from what the nodes showed; edit it freely.",
        "# `glmspark config schema` describes every setting, `glmspark config check`",
        "# tells what is wrong, `glmspark doctor` what is in the way of a start.",
        "#",
        *(f"# {line}" for line in proposal.decided()),
        "",
    ]


def kit_values(proposal: Proposal, name: str, drafter: str) -> dict[str, Any]:
    """The top-level values and tables of the kit, nodes left out."""
    gpu = all(view.facts.gpus for view in proposal.views)
    nix = all("nix" in view.host.tools for view in proposal.views)
    values: dict[str, Any] = {
        "name": name,
        "topology": proposal.cabling.topology,
        "runtime": ("nix" if nix else "oci") if gpu else "venv",
        "engine": "vllm-gb10" if gpu else "vllm-cpu",
    }
    if gpu:
        values["weights.drafter"] = drafter
    return values


def render(
    proposal: Proposal,
    name: str,
    drafter: str,
    more: Mapping[str, str] | None = None,
    runtime: str = "",
) -> str:
    """The text of kit.toml. ``more`` holds further settings as TOML values by key.

    ``runtime`` is the asked one; "" lets the nodes decide.
    """
    out = _header(proposal)
    values = kit_values(proposal, name, drafter)
    values["runtime"] = runtime or values["runtime"]
    notes = {
        "runtime": "what brings the engine to the nodes: nix, oci, or venv (CPU only)",
        "weights.drafter": "dflash2 is licensed for non-commercial use only",
    }
    for key, value in values.items():
        if key in notes:
            out.append(f"# {notes[key]}")
        out.append(f"{key} = {json.dumps(value)}")
    out += [f"{key} = {value}" for key, value in (more or {}).items()]
    for node in proposal.cabling.order:
        end = proposal.cabling.fabric[node]
        out += [
            "",
            "[[nodes]]",
            f"name = {json.dumps(node)}",
            f"ssh = {json.dumps(proposal.targets[node])}",
            f"fabric = {json.dumps(end.address)}",
            f"# on {end.netdev.name} today; the port is looked up again at each start",
        ]
    return "\n".join(out) + "\n"
