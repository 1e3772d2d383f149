"""What rank rendering takes: the kit's shape, and what is served from where."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from glmspark.errors import ConfigError
from glmspark.serving.memory import NodeMemory
from glmspark.serving.topology import Topology, topology


@dataclass(frozen=True)
class NodeShape:
    """One node's own fabric facts; nothing is shared between nodes by assumption.

    ``address`` and ``netdev`` carry the fabric's IPv4, ``hcas`` the RDMA devices of
    its rails, ``gid_index`` the RoCE v2 entry of that IPv4 on this node.
    ``control_address`` and ``control_netdev`` name the network on which all nodes
    meet where no one fabric subnet does (three and four in a ring); empty means the
    fabric. ``subnet_bits`` is the fabric's prefix length.
    """

    name: str
    address: str
    netdev: str
    hcas: tuple[str, ...]
    gid_index: int
    mem_total_bytes: int
    mem_available_bytes: int
    mem_free_bytes: int = 0
    control_address: str = ""
    control_netdev: str = ""
    subnet_bits: int = 24

    @property
    def meeting_address(self) -> str:
        """Address at which the other ranks reach this one."""
        return self.control_address or self.address

    @property
    def meeting_netdev(self) -> str:
        """Network device of :attr:`meeting_address`."""
        return self.control_netdev or self.netdev

    @property
    def memory(self) -> NodeMemory:
        """The node's memory as the plan takes it."""
        return NodeMemory(
            self.name,
            self.mem_total_bytes,
            self.mem_available_bytes,
            self.mem_free_bytes,
        )


@dataclass(frozen=True)
class KitShape:
    """Topology by name and its nodes; node i is rank i, node 0 the head."""

    topology: str
    nodes: tuple[NodeShape, ...]


@dataclass(frozen=True)
class Serving:
    """What is served from where; paths are the same on every node.

    ``drafter`` is dflash2, mtp or none. ``cache_dir`` keeps compiled kernels and has
    to be one per engine. ``donor_dir`` holds the second repository of a transplant.
    ``config`` and ``draft_config`` are the two config.json. ``padded_draft_dir`` is
    a folder of links to the drafter whose config.json is drafter.padded_draft_config;
    only three ranks need it.
    """

    model_dir: str
    draft_dir: str
    config: Mapping[str, Any]
    draft_config: Mapping[str, Any]
    cache_dir: str
    drafter: str = "dflash2"
    served_name: str = "glm-5.3-flash"
    host: str = "127.0.0.1"
    port: int = 8888
    master_port: int = 29501
    chat_template: str = ""
    donor_dir: str = ""
    padded_draft_dir: str = ""
    plugins: tuple[str, ...] = field(default=("exl3",))


DRAFTERS = ("dflash2", "mtp", "none")


def check_kit(kit: KitShape, serving: Serving) -> Topology:
    """The kit's topology, after the relations between the inputs were checked.

    Raises ConfigError: number of nodes, drafter, RDMA devices, addresses that clash.
    """
    topo = topology(kit.topology)
    if len(kit.nodes) != topo.ranks:
        raise ConfigError(
            f"topology {topo.name} needs {topo.ranks} nodes, the kit has "
            f"{len(kit.nodes)}",
            hint="glmspark init",
        )
    if serving.drafter not in DRAFTERS:
        raise ConfigError(
            f"drafter '{serving.drafter}' is not known; known: {', '.join(DRAFTERS)}"
        )
    if serving.drafter == "dflash2" and not serving.draft_dir:
        raise ConfigError(
            "drafter dflash2 needs its weights", hint="glmspark weights fetch drafter"
        )
    if len({node.meeting_address for node in kit.nodes}) != topo.ranks:
        raise ConfigError("two nodes have the same address", hint="glmspark init")
    for node in kit.nodes:
        _check_node(node)
    return topo


def _check_node(node: NodeShape) -> None:
    if not node.hcas:
        raise ConfigError(
            f"no RDMA device is known for {node.netdev}: NCCL would fall back to TCP",
            hint="glmspark doctor",
            node=node.name,
        )
    if bool(node.control_address) != bool(node.control_netdev):
        raise ConfigError(
            "control address and control device go together", node=node.name
        )


def capture_sizes(max_num_seqs: int, draft_tokens: int) -> tuple[int, ...]:
    """Batch sizes whose graphs are captured: whole verify steps, one a sequence.

    Above eight sequences every second one, so that capture stays short.
    """
    step = draft_tokens + 1
    stride = math.ceil(max_num_seqs / 8)
    counts = {*range(stride, max_num_seqs + 1, stride), 1, max_num_seqs}
    return tuple(step * count for count in sorted(counts))
