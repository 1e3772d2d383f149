"""The memory plan of a kit: its topology, profile and drafter over its nodes."""

from __future__ import annotations

from collections.abc import Mapping

from glmspark.errors import ConfigError
from glmspark.schema import Engine, Kit
from glmspark.serving.gpukit import kit_profile
from glmspark.serving.memory import GIB, Load, MemoryPlan, NodeMemory, memory_plan
from glmspark.serving.model import draft_shape, model_shape, shipped_config
from glmspark.serving.topology import topology
from glmspark.views import NodeView

# A DGX Spark before a start, as the public recipe and its users report it: 121.69 GiB
# in all, 102 to 110 GiB of them available. Asked of the node where it can be asked.
ASSUMED_TOTAL_BYTES = int(121.69 * GIB)
ASSUMED_AVAILABLE_BYTES = 110 * GIB


def parse_node_memory(text: str) -> NodeMemory:
    """The memory of a node from ``NAME=TOTAL_GIB,AVAILABLE_GIB``.

    Raises:
        ConfigError: another form, or sizes that cannot be.
    """
    name, _, sizes = text.partition("=")
    try:
        total, available = (float(size) for size in sizes.split(","))
    except ValueError:
        total, available = 0.0, 0.0
    if not name or not 0 < available <= total:
        raise ConfigError(
            f"--node-memory {text} is not NAME=TOTAL_GIB,AVAILABLE_GIB",
            hint="for instance --node-memory spark-1=121.7,112",
        )
    return NodeMemory(name, int(total * GIB), int(available * GIB))


def node_memory(view: NodeView) -> NodeMemory:
    """A node's memory as it answered."""
    sizes = view.facts.memory
    return NodeMemory(
        view.name,
        sizes.get("MemTotal", 0),
        sizes.get("MemAvailable", 0),
        sizes.get("MemFree", 0),
    )


def kit_memory(kit: Kit, known: Mapping[str, NodeMemory]) -> MemoryPlan:
    """The memory plan of ``kit``; nodes that are not ``known`` are assumed alike.

    An assumed node says so in its name.

    Raises:
        ConfigError: the kit's engine needs no plan, or ``known`` names no node.
    """
    if kit.engine is not Engine.VLLM_GB10:
        raise ConfigError(
            f"engine {kit.engine} needs no memory plan; it is for vllm-gb10",
            hint="set engine and topology in kit.toml, or --set topology=tp2",
        )
    names = [node.name for node in kit.nodes]
    unknown = sorted(set(known) - set(names))
    if unknown:
        raise ConfigError(
            f"--node-memory names {unknown[0]}, which is no node of the kit",
            hint=f"nodes: {', '.join(names)}",
        )
    assumed = (ASSUMED_TOTAL_BYTES, ASSUMED_AVAILABLE_BYTES)
    nodes = tuple(
        known.get(name) or NodeMemory(f"{name} (assumed, not probed)", *assumed)
        for name in names
    )
    engine = kit_profile(kit).engine
    load = Load(
        engine,
        kit.weights.drafter,
        draft_shape(shipped_config("dflash2")),
        vision=bool(engine.images or engine.videos),
    )
    model = model_shape(shipped_config("glm-5.3-flash"))
    return memory_plan(model, topology(kit.topology.value), load, nodes)
