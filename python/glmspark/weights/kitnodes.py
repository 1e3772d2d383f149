"""The nodes of a kit as a share sees them: how to reach each, over which links."""

from __future__ import annotations

from collections.abc import Callable

from glmspark.doctor import remote_of
from glmspark.errors import ConfigError, PreflightError
from glmspark.fabric import carrier, reaches, twins
from glmspark.fabrictypes import FabricFacts
from glmspark.paths import KitPaths
from glmspark.remote import in_parallel
from glmspark.remoteerrors import RemoteError
from glmspark.schema import Kit
from glmspark.schema import Node as KitNode
from glmspark.weights.remote import Node

# Asks a node of the kit for its network.
Look = Callable[[KitNode], FabricFacts]


def receivers(kit: Kit, names: tuple[str, ...]) -> list[KitNode]:
    """The named nodes of ``kit`` that are other machines than the head, all if none.

    ConfigError for a name that the kit does not have, or that is the head's.
    """
    others = {node.name: node for node in kit.nodes[1:] if node.ssh != "local"}
    for name in names:
        if name not in others:
            raise ConfigError(
                f"{name} is no node of kit {kit.name} that can receive; there are: "
                f"{', '.join(others) or 'none but this machine'}",
                hint="glmspark config show",
            )
    return [others[name] for name in names] or list(others.values())


def links(head: FabricFacts, node: FabricFacts, fabric: str) -> tuple[str, ...]:
    """The node's addresses on every link to the head: the fabric's, then its twins'.

    A twin counts where it is up and has an IPv4 address in a subnet of the head's.
    """
    first = carrier(node, fabric)
    found = [fabric]
    for netdev in twins(node, first) if first else ():
        for held in netdev.ipv4 if netdev.has_carrier else ():
            on_head = [one for one in head.netdevs if reaches(one, held.address)]
            if any(one.has_carrier for one in on_head):
                found.append(held.address)
    return tuple(found)


def nodes_of(
    kit: Kit, names: tuple[str, ...], paths: KitPaths, look: Look
) -> list[Node]:
    """What ``share`` needs to know of the receivers; empty on a kit of one machine.

    PreflightError where a node or the head cannot be asked for its links.
    """
    wanted = receivers(kit, names)
    if not wanted:
        return []
    head, *facts = in_parallel(look, [kit.nodes[0], *wanted])
    made = []
    if isinstance(head, RemoteError):
        raise head
    for node, seen in zip(wanted, facts, strict=True):
        if isinstance(seen, RemoteError):
            raise PreflightError(str(seen), hint=seen.hint, node=node.name) from seen
        made.append(
            Node(
                node.name,
                node.ssh,
                links(head, seen, node.fabric),
                ssh=("ssh", *remote_of(kit, node, paths).options(BatchMode="yes")),
                store=kit.weights.store,
            )
        )
    return made
