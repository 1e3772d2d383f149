"""Ask every node of a kit at the same time, and judge what they say."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glmspark import nodeside
from glmspark.checks import check_nodes, unreachable
from glmspark.ending import without_ours
from glmspark.errors import ConfigError
from glmspark.fabric import carrier
from glmspark.paths import KitPaths
from glmspark.preflight import Finding, check_node
from glmspark.remote import Remote, in_parallel
from glmspark.remoteerrors import RemoteError
from glmspark.schema import Kit, Node, Runtime, is_loopback
from glmspark.views import ANYTHING, NodeView, Wanted

LOOK = "glmspark.nodeside:look"
LOOK_S = 60.0
# A port that nothing of ours uses: whether a firewall lets such calls through.
HIGH_PORT = 61111

# Asks one node: its ssh target ("local" for this machine) and the arguments of `look`.
Ask = Callable[[Node, Mapping[str, Any]], Mapping[str, Any]]


def remote_of(kit: Kit, node: Node, paths: KitPaths) -> Remote:
    """How ``node`` is reached; host keys are kept beside the states of the kits.

    A host is trusted before there is a kit that names it, so kits share the list.
    """
    config = Path(kit.paths.ssh_config).expanduser() if kit.paths.ssh_config else None
    return Remote(node.name, node.ssh, paths.state.parent / "known_hosts", config)


def asker(kit: Kit, paths: KitPaths) -> Ask:
    """Asks nodes over ssh, and this machine directly."""

    def ask(node: Node, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        if node.ssh == "local":
            return nodeside.look(**arguments)
        remote = remote_of(kit, node, paths)
        remote.connect()
        answer: Mapping[str, Any] = remote.call(LOOK, arguments, LOOK_S)
        return answer

    return ask


def folders_of(kit: Kit) -> dict[str, str]:
    """The kit's folders as kit.toml has them, for a node to expand."""
    return {
        "state": kit.paths.state,
        "cache": kit.paths.cache,
        "key_file": kit.auth.key_file,
        "store": kit.weights.store,
    }


def question(
    kit: Kit, node: Node, program: Sequence[str], wanted: Wanted = ANYTHING
) -> dict[str, Any]:
    """The arguments of ``nodeside.look`` for ``node``; no peers on one machine."""
    peers = [
        one.fabric
        for one in kit.nodes
        if one.name != node.name and not is_loopback(one.fabric)
    ]
    return {
        "kit": kit.name,
        "folders": folders_of(kit),
        "program": list(program),
        "peers": peers,
        "ports": [kit.ports.master, HIGH_PORT],
        "wanted": wanted.to_json(),
    }


def hosts_of(kit: Kit) -> list[tuple[int, Node]]:
    """Each host once, by its first rank: several ranks may share a machine."""
    found: dict[str, tuple[int, Node]] = {}
    for rank, node in enumerate(kit.nodes):
        key = "local" if is_loopback(node.fabric) and node.ssh == "local" else node.name
        found.setdefault(key, (rank, node))
    return list(found.values())


def with_netdevs(kit: Kit, views: Sequence[NodeView]) -> Kit:
    """``kit`` with the device of each node that carries its fabric address today."""
    held = {view.name: carrier(view.fabric, view.address) for view in views}
    nodes = []
    for node in kit.nodes:
        device = held.get(node.name)
        found = {"netdev": device.name} if device and not node.netdev else {}
        nodes.append(node.model_copy(update=found))
    return kit.model_copy(update={"nodes": tuple(nodes)})


@dataclass(frozen=True)
class Examination:
    """The nodes that answered, and everything that was found."""

    views: tuple[NodeView, ...]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that keep a start from happening."""
        return tuple(one for one in self.findings if one.severity == "error")


def look_at_all(
    kit: Kit, ask: Ask, program: Sequence[str], wanted: Wanted = ANYTHING
) -> tuple[list[NodeView], list[RemoteError]]:
    """The views of the nodes that answer, and the errors of those that do not."""

    def one(place: tuple[int, Node]) -> NodeView:
        rank, node = place
        began = time.time()
        answer = ask(node, question(kit, node, program, wanted))
        asked = (began, time.time())
        return NodeView.from_answer((node.name, rank, node.fabric), answer, asked)

    answers = in_parallel(one, hosts_of(kit))
    views = [one for one in answers if not isinstance(one, RemoteError)]
    return views, [one for one in answers if isinstance(one, RemoteError)]


def look_here(kit: Kit, rank: int, paths: KitPaths, program: Sequence[str]) -> NodeView:
    """What this machine answers as the node of ``rank``; no peer is asked."""
    node = kit.nodes[rank]
    local = node.model_copy(update={"ssh": "local"})
    arguments = {**question(kit, node, program), "peers": []}
    began = time.time()
    answer = asker(kit, paths)(local, arguments)
    place = (node.name, rank, node.fabric)
    return NodeView.from_answer(place, answer, (began, time.time()))


def views_from_report(kit: Kit, report: Mapping[str, Any]) -> tuple[NodeView, ...]:
    """The views of ``kit``'s nodes in what ``glmspark doctor --json`` printed.

    Raises:
        ConfigError: it is no such report, or a node of the kit is not in it.
    """
    views = []
    for rank, node in enumerate(kit.nodes):
        try:
            said = report["nodes"][node.name]
            answer = {**said, "paths": [], "clock": [0.0, 0.0]}
            place = (node.name, rank, node.fabric)
            views.append(NodeView.from_answer(place, answer, (0.0, 0.0)))
        except (KeyError, TypeError) as error:
            raise ConfigError(
                f"the report says nothing usable of node {node.name} ({error!r})",
                hint="glmspark doctor --json > FILE, with this kit",
            ) from error
    return tuple(views)


def _node_findings(kit: Kit, view: NodeView, boots: set[str]) -> list[Finding]:
    """The checks of one node; API and rendezvous are ports of the head alone.

    An engine that a start brings need not be there, and one in an image is not seen.
    """
    strays = tuple(one for one in view.facts.strays if one.boot not in boots)
    facts = replace(view.facts, strays=strays)
    if view.rank == 0:  # the memory of these processes can be read here alone
        facts = without_ours(view.facts, boots)
    found = check_node(kit, view.name, facts, boots)
    elsewhere = [] if view.rank == 0 else ["port."]
    if kit.runtime is Runtime.OCI or (kit.runtime is Runtime.NIX and view.rank):
        elsewhere.append("engine.")
    return [one for one in found if not one.check.startswith(tuple(elsewhere))]


def examine(
    kit: Kit,
    ask: Ask,
    program: Sequence[str],
    boots: Iterable[str] = (),
    wanted: Wanted = ANYTHING,
) -> Examination:
    """Ask all nodes of ``kit`` and check them; nothing is changed.

    ``boots`` names the kit's own boots, whose ranks and memory are not in the way,
    ``wanted`` the engine that a start brings to nodes that lack it.
    """
    views, errors = look_at_all(kit, ask, program, wanted)
    findings = list(unreachable(errors))
    for view in views:
        findings += _node_findings(kit, view, set(boots))
    findings += check_nodes(kit, views)
    return Examination(tuple(views), tuple(findings))
