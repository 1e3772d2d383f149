"""The four ways to cut the model over Sparks, and the numbers that follow."""

from __future__ import annotations

import math
from dataclasses import dataclass

from glmspark.errors import ConfigError
from glmspark.serving.census import Split
from glmspark.serving.model import DraftShape, ModelShape


@dataclass(frozen=True)
class Topology:
    """How many ranks there are and what tensor parallelism has to pad for them.

    ``expert_parallel`` gives each rank whole experts (EXL3 tiles split at multiples
    of 128 only, and 2048 / 3 is none); ``vision_replicated`` runs the tower whole on
    every rank; ``ring`` means no cable between opposite nodes.
    """

    name: str
    ranks: int
    expert_parallel: bool = False
    vision_replicated: bool = False
    ring: bool = False

    def pad(self, units: int) -> int:
        """``units`` rounded up so that every rank gets the same whole number."""
        return self.ranks * math.ceil(units / self.ranks)

    def padded_vocab(self, vocab: int) -> int:
        """Rows of the embedding and the head: a multiple of 64 and of the ranks."""
        step = math.lcm(64, self.ranks)
        return step * math.ceil(vocab / step)

    def padded_ffn(self, width: int) -> int:
        """Width of a dense MLP: each rank's share is a multiple of 64 if padded."""
        if width % self.ranks == 0:
            return width
        step = 64 * self.ranks
        return step * math.ceil(width / step)


TOPOLOGIES: dict[str, Topology] = {
    t.name: t
    for t in (
        Topology("tp2", 2),
        Topology("tp3", 3, expert_parallel=True, vision_replicated=True),
        Topology("tp4", 4),
        Topology("tp4-ring", 4, ring=True),
    )
}


def topology(name: str) -> Topology:
    """The topology of that name; ConfigError names the known ones."""
    if name not in TOPOLOGIES:
        raise ConfigError(
            f"topology '{name}' is not known; known: {', '.join(TOPOLOGIES)}",
            hint="glmspark config show",
        )
    return TOPOLOGIES[name]


@dataclass(frozen=True)
class Cut:
    """Fraction of each :class:`Split` that one rank holds, padding included."""

    by_split: dict[Split, float]

    def share(self, split: Split) -> float:
        """What one rank holds of a tensor, as a factor of its checkpoint elements."""
        return self.by_split[split]


def draft_heads(topo: Topology, draft: DraftShape) -> tuple[int, int]:
    """Query and key-value heads of the drafter, padded so that both divide.

    Whole groups are added (36 and 9 at three ranks): each key-value head keeps its
    four query heads.
    """
    group = draft.heads // draft.kv_heads
    kv = topo.pad(draft.kv_heads)
    return kv * group, kv


def cut(topo: Topology, model: ModelShape, draft: DraftShape | None) -> Cut:
    """How one rank's share of every tensor follows from the topology."""
    one = 1 / topo.ranks

    def padded(units: int, whole: int) -> float:
        return units / whole * one

    experts = topo.pad(model.experts) / model.experts * one
    shared = model.expert_intermediate * model.shared_experts
    shares = {
        Split.WHOLE: 1.0,
        Split.KDA_HEADS: padded(topo.pad(model.kda_heads), model.kda_heads),
        Split.MLA_HEADS: padded(topo.pad(model.heads), model.heads),
        Split.FFN: padded(topo.padded_ffn(model.intermediate), model.intermediate),
        Split.SHARED_FFN: padded(topo.padded_ffn(shared), shared),
        Split.EXPERT_FFN: experts if topo.expert_parallel else one,
        Split.EXPERTS: experts if topo.expert_parallel else 1.0,
        Split.VOCAB: padded(topo.padded_vocab(model.vocab), model.vocab),
        Split.VISION: 1.0 if topo.vision_replicated else one,
    }
    if draft is not None:
        q, kv = draft_heads(topo, draft)
        ffn = topo.padded_ffn(draft.intermediate)
        shares[Split.DRAFT_HEADS] = padded(q, draft.heads)
        shares[Split.DRAFT_KV] = padded(kv, draft.kv_heads)
        shares[Split.DRAFT_FFN] = padded(ffn, draft.intermediate)
    return Cut(shares)
