"""Bytes of weights that one rank holds, by kind, from the census and the cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glmspark.serving.census import Kind, Tensor, checkpoint_tensors, draft_tensors
from glmspark.serving.kv import Drafting
from glmspark.serving.model import ModelShape
from glmspark.serving.topology import Cut, Topology, cut

# bf16 matrices that dense FP8 takes (render.DENSE_FP8_TARGETS): KDA's projections, of
# MLA the two large ones that no other code reads, the shared expert.
DENSE_NAMES = {
    Kind.KDA: frozenset(
        f"{part}_proj" for part in ("q", "k", "v", "b", "f_a", "f_b", "g_a", "g_b", "o")
    ),
    Kind.MLA: frozenset({"q_b_proj", "o_proj"}),
}


@dataclass(frozen=True)
class Weights:
    """Resident bytes of one rank: ``by_kind``, and copies vLLM makes of some."""

    by_kind: dict[Kind, int]
    copies: int

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(self.by_kind.values()) + self.copies


def is_dense(tensor: Tensor) -> bool:
    """Whether the profile's ``dense`` setting decides how ``tensor`` is held."""
    if tensor.kind is Kind.SHARED:
        return True
    return tensor.name in DENSE_NAMES.get(tensor.kind, frozenset())


def resident_bytes(tensor: Tensor, share: Cut, *, dense_fp8: bool) -> int:
    """Bytes of one rank's share of ``tensor`` in vLLM's parameter type."""
    width = tensor.resident
    if dense_fp8 and is_dense(tensor):
        width = 1
    return round(tensor.elements * width * share.share(tensor.split))


def _sum(tensors: Sequence[Tensor], share: Cut, *, dense_fp8: bool) -> dict[Kind, int]:
    found: dict[Kind, int] = {}
    sizes: dict[int, int] = {}  # layers of one kind hold the very same tensors
    for tensor in tensors:
        size = sizes.get(id(tensor), -1)
        if size < 0:
            size = resident_bytes(tensor, share, dense_fp8=dense_fp8)
            sizes[id(tensor)] = size
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
