"""The memory that nodes had before a boot, for plans made while it serves.

What a rank holds on unified memory is no process's resident set, so it cannot be told
from what others hold; what was there before the boot is there again after it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glmspark.boot import read_state, write_json
from glmspark.doctor import Ask
from glmspark.paths import KitPaths
from glmspark.schema import Node
from glmspark.views import NodeView

Memory = Mapping[str, Mapping[str, int]]


def _file(folder: Path) -> Path:
    return folder / "nodes-memory.json"


def write_nodes_memory(folder: Path, views: Sequence[NodeView]) -> None:
    """Leave each node's sizes, in bytes, in the boot's ``folder``."""
    write_json(_file(folder), {view.name: view.facts.memory for view in views})


def read_nodes_memory(folder: Path) -> Memory:
    """What :func:`write_nodes_memory` left; nothing where it left nothing."""
    try:
        found: Memory = json.loads(_file(folder).read_text())
    except (OSError, ValueError):
        return {}
    return found


def remembering(ask: Ask, paths: KitPaths) -> Ask:
    """``ask``, and while the kit is up its nodes' memory is what was there before."""
    state = read_state(paths.state_file)
    if state is None or not state.is_up:
        return ask
    return with_memory(ask, read_nodes_memory(paths.boots / state.boot))


def with_memory(ask: Ask, known: Memory) -> Ask:
    """``ask`` with answers in which the ``known`` nodes' memory is what it was."""

    def again(node: Node, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = ask(node, arguments)
        if node.name not in known:
            return answer
        facts = {**answer["facts"], "memory": dict(known[node.name])}
        return {**answer, "facts": facts}

    return again
