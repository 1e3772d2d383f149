"""The ceiling that memory and link set: bytes a rank reads for one decoding step."""

from __future__ import annotations

from dataclasses import dataclass

from glmspark.serving.census import (
    Kind,
    Split,
    Tensor,
    checkpoint_tensors,
    draft_tensors,
)
from glmspark.serving.kv import (
    INDEX_STATE_BYTES,
    MLA_STATE_BYTES,
    Drafting,
    state_bytes,
)
from glmspark.serving.model import ModelShape
from glmspark.serving.profiles import Engine
from glmspark.serving.shard import is_dense
from glmspark.serving.topology import Cut, Topology, cut

# LPDDR5X of GB10, NVIDIA's own figure, bytes a second.
MEMORY_BYTES_S = 273e9
# One rail as measured by the public recipes (ib_write_bw 108.9 Gb/s), bytes a second.
LINK_BYTES_S = 108.9e9 / 8
# A small all-gather between two Sparks, tuned (TensorFold's recipe): 32 us.
COLLECTIVE_S = 32e-6
# Tokens a step that DFlash2 (k = 7) got accepted: prose and structured text (public
# vLLM recipe, two Sparks, 5 x 400 tokens, 2026-08-30).
ACCEPTED = {"prose": 2.39, "structured": 6.71}
# Bits a weight of the dense EXL3 tensors that the speed-boost profile takes.
DENSE_EXL3_BITS = 4.05


@dataclass(frozen=True)
class Reads:
    """Bytes one rank reads for one step of ``rows`` tokens, by kind.

    ``by_kind`` has all rows choose the same experts, the least that can be read;
    ``apart_bytes`` is what more they read if every row chooses for itself. Rows of one
    text lie between the two.
    """

    by_kind: dict[str, float]
    rows: int
    apart_bytes: float

    @property
    def total(self) -> float:
        """Least bytes of one step."""
        return sum(self.by_kind.values())


@dataclass(frozen=True)
class Ceiling:
    """One topology's ceiling for one stream at one context length.

    Milliseconds of reading, of the collectives' latency and of their bytes, as if
    nothing else took time.
    """

    topology: str
    method: str
    dense: str
    context_tokens: int
    reads: Reads
    memory_ms: float
    latency_ms: float
    link_ms: float

    def tokens_s(self, accepted: float, *, apart: bool = False) -> float:
        """Tokens a second at ``accepted`` tokens a step; 1 is steps a second.

        The ceiling; with ``apart`` the figure for rows that share no expert by more
        than chance.
        """
        more = self.reads.apart_bytes / MEMORY_BYTES_S if apart else 0.0
        step_s = (self.memory_ms + self.latency_ms + self.link_ms) / 1000 + more
        return accepted / step_s


def distinct_experts(experts: int, per_token: int, rows: int) -> float:
    """Experts that ``rows`` tokens touch on average, routed evenly and apart."""
    return experts * (1 - (1 - per_token / experts) ** rows)


def _width(tensor: Tensor, dense: str) -> float:
    if dense == "bf16" or not is_dense(tensor):
        return float(tensor.resident)
    return 1.0 if dense == "fp8" else DENSE_EXL3_BITS / 8


def _weight_reads(model: ModelShape, share: Cut, dense: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for tensor in checkpoint_tensors(model):
        if tensor.kind in (Kind.MTP, Kind.VISION, Kind.EMBEDDING):
            continue
        size = tensor.elements * _width(tensor, dense) * share.share(tensor.split)
        if tensor.kind is Kind.EXPERTS:
            size *= model.experts_per_token / model.experts
        found[tensor.kind.value] = found.get(tensor.kind.value, 0.0) + size
    return found


def _draft_reads(model: ModelShape, drafting: Drafting, share: Cut) -> float:
    if drafting.draft is not None:
        skip = "selector codebooks"  # gathered by token, not read whole
        body = sum(
            t.elements * t.resident * share.share(t.split)
            for t in draft_tensors(drafting.draft)
            if t.name != skip
        )
        head = model.vocab * model.hidden * 2 * share.share(Split.VOCAB)
        return body + head
    if drafting.method != "mtp":
        return 0.0
    block = 0.0
    for tensor in checkpoint_tensors(model):
        if tensor.kind is Kind.MTP:
            size = tensor.elements * tensor.resident * share.share(tensor.split)
            expert = ".experts." in tensor.name
            block += size * (model.experts_per_token / model.experts if expert else 1)
    head = model.vocab * model.hidden * 2 * share.share(Split.VOCAB)
    return (block + head) * drafting.tokens


def _cache_reads(
    model: ModelShape, topo: Topology, drafting: Drafting, context: int
) -> float:
    selected = min(context, model.index_topk + model.index_kpool - 1)
    latent = len(model.mla_layers) * selected * MLA_STATE_BYTES
    keys = len(model.mla_layers) * context / model.index_kpool * INDEX_STATE_BYTES
    # The recurrent state is read and written once a step.
    state = state_bytes(model, topo, drafting.tokens, 4) * len(model.kda_layers)
    return latent + keys + 2 * state


def collectives(model: ModelShape) -> int:
    """All-reduces of one step: after attention and after the MLP of each layer."""
    return 2 * model.layers


def ceiling(
    model: ModelShape, topo: Topology, engine: Engine, drafting: Drafting, context: int
) -> Ceiling:
    """The ceiling of one stream at ``context`` tokens; nothing but bytes is counted."""
    rows = drafting.tokens + 1
    share = cut(topo, model, drafting.draft)
    by_kind = _weight_reads(model, share, engine.dense)
    experts = by_kind[Kind.EXPERTS.value]
    touched = distinct_experts(model.experts, model.experts_per_token, rows)
    apart = experts * (touched / model.experts_per_token - 1)
    by_kind[Kind.DRAFTER.value] = _draft_reads(model, drafting, share)
    by_kind["caches"] = _cache_reads(model, topo, drafting, context)
    reads = Reads(by_kind, rows, apart)
    calls = collectives(model)
    # A ring all-reduce moves 2 (n-1)/n of the rows' bytes over each link.
    moved = calls * rows * model.hidden * 2 * 2 * (topo.ranks - 1) / topo.ranks
    return Ceiling(
        topology=topo.name,
        method=drafting.method,
        dense=engine.dense,
        context_tokens=context,
        reads=reads,
        memory_ms=1000 * reads.total / MEMORY_BYTES_S,
        latency_ms=1000 * calls * (topo.ranks - 1) * COLLECTIVE_S,
        link_ms=1000 * moved / LINK_BYTES_S,
    )
