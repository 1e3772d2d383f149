"""Checks of what a GPU kit serves: the memory plan of each node, the weights' views."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glmspark.preflight import GIB, Finding, missing_views
from glmspark.schema import Kit
from glmspark.views import NodeView

CHECKS = {
    "host.memory": "the rank fits into the available memory, by the memory plan",
}


def _largest(view: NodeView) -> str:
    largest = ", ".join(
        f"{one.name} (pid {one.pid}) {one.rss_bytes / GIB:.1f} GiB"
        for one in view.host.consumers[:4]
    )
    return largest or "unknown"


def _memory(kit: Kit, views: Sequence[NodeView]) -> Iterator[Finding]:
    """A finding for each node whose rank does not fit, with what would."""
    from glmspark.serving.kitplan import kit_memory, node_memory

    plan = kit_memory(kit, {view.name: node_memory(view) for view in views})
    wanted = max(plan.needed_bytes, kit.serve.kv_cache_bytes)
    by_name = {view.name: view for view in views}
    for rank in plan.ranks:
        short = wanted - rank.left_bytes
        view = by_name.get(rank.node.name)
        if short <= 0 or view is None:
            continue
        needed = rank.node.available_bytes + short
        longest = plan.longest_tokens
        lower = f", or --set serve.max_model_len={longest}" if longest else ""
        if wanted > plan.needed_bytes:
            lower = ", or lower serve.kv_cache_bytes"
        yield Finding(
            "host.memory",
            view.name,
            f"{rank.node.available_bytes / GIB:.1f} GiB available; "
            f"largest: {_largest(view)}",
            f"{needed / GIB:.1f} GiB for a context of {plan.max_model_len} tokens "
            f"({short / GIB:.1f} GiB more); the largest context that fits is "
            f"{longest} tokens",
            f"stop what is not needed{lower}; glmspark plan --memory lists it",
        )


def _views(kit: Kit, view: NodeView) -> Iterator[Finding]:
    missing = missing_views(kit, view.host.store)
    if missing:
        words = " ".join(alias for alias, _ in missing)
        names = ", ".join(name for _, name in missing)
        bring = "fetch" if view.rank == 0 else f"share --to {view.name}"
        yield Finding(
            "weights.view",
            view.name,
            f"the store has no view of {names}",
            "the folders that vLLM opens",
            f"glmspark weights {bring}, then on the node: glmspark weights link "
            f"{words}",
        )


def check(kit: Kit, views: Sequence[NodeView]) -> Iterator[Finding]:
    """What keeps the ranks of a GPU kit from loading; nothing for other kits."""
    if not kit.engine.uses_gpu:
        return
    yield from _memory(kit, views)
    for view in views:
        yield from _views(kit, view)
