"""Bytes of weights that one rank holds, by kind, from the census and the cut."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from glmspark.serving.census import Kind, Tensor, checkpoint_tensors, draft_tensors
from glmspark.serving.kv import Drafting
from glmspark.serving.model import ModelShape
from glmspark.serving.topology import Cut, Topology, cut

# Kinds whose bf16 matrices dense FP8 replaces: attention projections, shared expert.
FP8_KINDS = frozenset({Kind.KDA, Kind.MLA, Kind.SHARED})


@dataclass(frozen=True)
class Weights:
    """Resident bytes of one rank: ``by_kind``, and copies vLLM makes of some."""

    by_kind: dict[Kind, int]
    copies: int

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(self.by_kind.values()) + self.copies


def _is_matrix(tensor: Tensor) -> bool:
    return len(tensor.shape) == 2 and tensor.resident == 2 and min(tensor.shape) > 64


def resident_bytes(tensor: Tensor, share: Cut, *, dense_fp8: bool) -> int:
    """Bytes of one rank's share of ``tensor`` in vLLM's parameter type."""
    width = tensor.resident
    if dense_fp8 and tensor.kind in FP8_KINDS and _is_matrix(tensor):
        width = 1
    return round(tensor.elements * width * share.share(tensor.split))


def _sum(tensors: Iterable[Tensor], share: Cut, *, dense_fp8: bool) -> dict[Kind, int]:
    found: dict[Kind, int] = {}
    for tensor in tensors:
        size = resident_bytes(tensor, share, dense_fp8=dense_fp8)
        found[tensor.kind] = found.get(tensor.kind, 0) + size
    return found


def _copies(model: ModelShape, topo: Topology, drafting: Drafting) -> int:
    """Copies made at first use: fp32 index gates, merged convolutions, draft KV.

    Source: Indexer.forward, Glm5NextLinearAttention._forward and
    DFlashQwen3Model._build_fused_kv_buffers@0.32.0.
    """
    gates = len(model.mla_layers) * model.index_heads * model.hidden * 4
    width = 3 * topo.pad(model.kda_heads) // topo.ranks * model.kda_head_dim
    conv = len(model.kda_layers) * width * model.conv_kernel * 4
    draft = drafting.draft
    fused = 0
    if draft is not None:
        kv = topo.pad(draft.kv_heads) // topo.ranks * draft.head_dim
        fused = draft.layers * 2 * kv * draft.hidden * 2
    return gates + conv + fused


def rank_weights(
    model: ModelShape,
    topo: Topology,
    drafting: Drafting,
    *,
    dense_fp8: bool = False,
    vision: bool = True,
) -> Weights:
    """What one rank holds: the target, the tower, and the drafter or MTP block.

    The MTP block is in the checkpoint but loaded only when it drafts.
    """
    share = cut(topo, model, drafting.draft)
    skip = set() if drafting.method == "mtp" else {Kind.MTP}
    if not vision:
        skip.add(Kind.VISION)
    tensors = [t for t in checkpoint_tensors(model) if t.kind not in skip]
    if drafting.draft is not None:
        tensors += draft_tensors(drafting.draft)
    return Weights(
        by_kind=_sum(tensors, share, dense_fp8=dense_fp8),
        copies=_copies(model, topo, drafting),
    )
