"""The doctor's checks: the facts of all nodes in, findings out; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from glmspark.checks import fabric, hosts, serving
from glmspark.preflight import Finding
from glmspark.remoteerrors import RemoteError
from glmspark.schema import Kit
from glmspark.views import NodeView

# id -> what holds when the check has nothing to say
CHECKS = {
    "node.reach": "the node can be reached and asked",
    "node.read": "everything that the checks look at could be read",
    **fabric.CHECKS,
    **hosts.CHECKS,
    **serving.CHECKS,
}


def unreachable(errors: Iterable[RemoteError]) -> Iterator[Finding]:
    """A finding for each node that could not be asked."""
    for error in errors:
        yield Finding("node.reach", error.node, str(error), "an answer", error.hint)


def _unread(view: NodeView) -> Iterator[Finding]:
    for what in (*view.fabric.unread, *view.host.unread):
        yield Finding(
            "node.read",
            view.name,
            f"could not read {what}",
            "a node that can be looked at",
            "let this user read it, or run as one who may",
        )


def check_nodes(kit: Kit, views: Sequence[NodeView]) -> list[Finding]:
    """What the nodes' facts say about a start of ``kit``, errors and warnings."""
    found = [finding for view in views for finding in _unread(view)]
    found += fabric.check(kit, views)
    found += hosts.check(kit, views)
    found += serving.check(kit, views)
    return found
