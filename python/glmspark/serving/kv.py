"""Exact page arithmetic of vLLM 0.32.0's hybrid KV cache for this model.

tests/unit/serving/test_kv_vllm.py compares it with vLLM's own grouping.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from glmspark.errors import ConfigError
from glmspark.serving.model import DraftShape, ModelShape
from glmspark.serving.topology import Topology, draft_heads

# Bytes a token and layer of packed sparse MLA: 512 fp8 + 4 scales + 64 bf16.
# Source: vllm model_executor/layers/attention/mla_attention.py@0.32.0.
MLA_STATE_BYTES = 656
# Bytes of one pooled indexer key: 128 fp8 and one fp32 scale.
INDEX_STATE_BYTES = 132
# Rows of a FlashInfer page and states of a DeepGEMM page on SM12x.
PAGE_STATES = 64
# FlashKDA exports one state checkpoint a prompt; vLLM reserves a block for it.
CHECKPOINT_BLOCKS = 1


@dataclass(frozen=True)
class Drafting:
    """What drafts and how far: ``method`` dflash2, mtp or none; ``tokens`` a step.

    ``block_tokens`` is the drafter's own KV block; None takes the target's.
    """

    method: str
    tokens: int
    draft: DraftShape | None = None
    block_tokens: int | None = None


@dataclass(frozen=True)
class Group:
    """One block table. ``kind`` says how many blocks a request needs of it."""

    kind: str
    layers: int
    bytes_per_block: int
    block_tokens: int


@dataclass(frozen=True)
class Layout:
    """The pool's geometry on one rank; all groups draw ids from one pool.

    ``block_tokens`` is the target's block, ``state_bytes`` one KDA state,
    ``bytes_per_block`` what each id costs.
    """

    block_tokens: int
    state_bytes: int
    bytes_per_block: int
    groups: tuple[Group, ...]
    drafting: Drafting

    def blocks(self, tokens: int, in_flight_tokens: int) -> int:
        """Ids that one request of ``tokens`` holds at most.

        ``in_flight_tokens`` is what may be scheduled and not settled: twice
        max_num_batched_tokens under asynchronous scheduling.
        """
        return sum(
            _group_blocks(self, group, tokens, in_flight_tokens)
            for group in self.groups
        )

    def pool_blocks(self, kv_bytes: int) -> int:
        """Ids in a pool of ``kv_bytes``."""
        return kv_bytes // self.bytes_per_block

    def longest(self, kv_bytes: int, in_flight_tokens: int, limit: int) -> int:
        """Most tokens of one request in a pool of ``kv_bytes``, at most ``limit``.

        0 where not even one token fits. One id is vLLM's null block.
        """
        usable = self.pool_blocks(kv_bytes) - 1
        low, high = 0, limit
        while low < high:
            mid = (low + high + 1) // 2
            fits = self.blocks(mid, in_flight_tokens) <= usable
            low, high = (mid, high) if fits else (low, mid - 1)
        return low

    def bytes_for(self, tokens: int, in_flight_tokens: int, requests: int = 1) -> int:
        """Pool bytes in which ``requests`` of ``tokens`` each fit, null block too."""
        ids = self.blocks(tokens, in_flight_tokens) * requests + 1
        return ids * self.bytes_per_block


def _group_blocks(layout: Layout, group: Group, tokens: int, in_flight: int) -> int:
    if group.kind == "kda":
        return 2 + layout.drafting.tokens + CHECKPOINT_BLOCKS
    if group.kind == "mla":
        return math.ceil(tokens / group.block_tokens)
    if group.kind == "tail":
        return 1
    draft = layout.drafting.draft
    window = draft.window if draft else 0
    held = min(window - 1 + in_flight, tokens)
    return math.ceil(held / group.block_tokens) + 1


def state_bytes(model: ModelShape, topo: Topology, spec: int, ssm_bytes: int) -> int:
    """Bytes of one KDA state on one rank: bf16 convolution window and recurrence.

    Source: MambaStateShapeCalculator.kda_state_shape@0.32.0; the window is as wide
    as the drafts that may have to be undone.
    """
    heads = topo.pad(model.kda_heads) // topo.ranks
    conv = 3 * heads * model.kda_head_dim * (model.conv_kernel - 1 + spec) * 2
    return conv + heads * model.kda_head_dim**2 * ssm_bytes


def target_block(state: int, counted_bytes: int) -> int:
    """Tokens of the target's block: the smallest that covers one KDA state.

    ``counted_bytes`` a token: 512 under fp8 KV (vLLM counts the latent, not the 656
    bytes it stores), 1024 under auto. Source: Platform._align_hybrid_block_size.
    """
    align = 128
    block = align * math.ceil(state / (align * counted_bytes))
    kernel = math.lcm(PAGE_STATES, 4 * PAGE_STATES)
    return kernel * math.ceil(block / kernel)


def _fewest_padded(counts: list[int], least: int) -> int:
    """Repeats a group: the one with the least padding; vLLM's _approximate_gcd."""
    candidates = range(least, max(*counts, least) + 1)
    return min(candidates, key=lambda d: (sum(-c % d for c in counts), -d))


@dataclass(frozen=True)
class _Pages:
    """Bytes of one layer's page of each kind, and how many layers have it."""

    kda: int
    kda_layers: int
    mla: int
    mla_layers: int
    tail: int
    draft: int
    draft_layers: int


def _pages(
    model: ModelShape, topo: Topology, drafting: Drafting, block: int, counted: int
) -> _Pages:
    mtp = model.mtp_layers if drafting.method == "mtp" else 0
    pools = block // model.index_kpool
    span = math.ceil((model.index_kpool + drafting.tokens) / model.index_kpool)
    ring = model.index_kpool * 2 ** math.ceil(math.log2(span))
    draft, draft_bytes, draft_layers = drafting.draft, 0, 0
    if draft is not None:
        _, kv_heads = draft_heads(topo, draft)
        width = 2 * max(1, kv_heads // topo.ranks) * draft.head_dim * 2
        draft_bytes = width * (drafting.block_tokens or block)
        draft_layers = draft.layers
    return _Pages(
        kda=block * counted,
        kda_layers=len(model.kda_layers),
        mla=MLA_STATE_BYTES * block + INDEX_STATE_BYTES * pools,
        mla_layers=len(model.mla_layers) + mtp,
        tail=2 * ring * model.index_head_dim * 2,
        draft=draft_bytes,
        draft_layers=draft_layers,
    )


def _groups(pages: _Pages, block: int, draft_block: int) -> tuple[Group, ...]:
    counts = [pages.kda_layers, pages.mla_layers, pages.mla_layers]
    if pages.draft_layers:
        counts.append(pages.draft_layers)
    repeats = _fewest_padded(counts, pages.mla_layers)
    draft_groups = math.ceil(pages.draft_layers / repeats)
    draft_width = math.ceil(pages.draft_layers / max(1, draft_groups)) * pages.draft
    anchor = max(pages.mla_layers * pages.mla, draft_width, pages.kda)
    states = max(anchor // pages.kda, 1)
    kda_groups = max(
        math.ceil(pages.kda_layers / repeats), math.ceil(pages.kda_layers / states)
    )
    groups = [
        Group("kda", n, n * pages.kda, block)
        for n in _spread(pages.kda_layers, kda_groups)
    ]
    n = pages.mla_layers
    groups.append(Group("mla", n, n * pages.mla, block))
    groups.append(Group("tail", n, n * pages.tail, 0))
    for width in _spread(pages.draft_layers, draft_groups):
        groups.append(Group("draft", width, width * pages.draft, draft_block))
    return tuple(groups)


def _spread(layers: int, groups: int) -> list[int]:
    return [len(range(start, layers, groups)) for start in range(groups)]


@dataclass(frozen=True)
class KvKind:
    """Element sizes: bytes a token that vLLM counts, bytes of the recurrent state."""

    counted_bytes: int = 512
    ssm_bytes: int = 4


def layout(
    model: ModelShape,
    topo: Topology,
    drafting: Drafting,
    *,
    kind: KvKind = KvKind(),
    block_tokens: int | None = None,
) -> Layout:
    """The pool's geometry; ``block_tokens`` overrides the computed target block.

    Raises ConfigError where the draft block does not divide the target's.
    """
    state = state_bytes(model, topo, drafting.tokens, kind.ssm_bytes)
    block = block_tokens or target_block(state, kind.counted_bytes)
    draft_block = drafting.block_tokens or block
    check_draft_block(draft_block, block)
    pages = _pages(model, topo, drafting, block, kind.counted_bytes)
    groups = _groups(pages, block, draft_block)
    # Blocks keep whole FlashInfer pages and whole DeepGEMM pages apart.
    step = math.lcm(PAGE_STATES * MLA_STATE_BYTES, PAGE_STATES * INDEX_STATE_BYTES)
    widest = max(group.bytes_per_block for group in groups)
    return Layout(
        block_tokens=block,
        state_bytes=state,
        bytes_per_block=step * math.ceil(widest / step),
        groups=groups,
        drafting=drafting,
    )


def check_draft_block(draft_block: int, block: int) -> None:
    """Raises ConfigError unless ``draft_block`` divides ``block``, 16 by 16."""
    if block % draft_block or draft_block % 16:
        raise ConfigError(
            f"draft KV block {draft_block} must divide the target's {block} and be a "
            "multiple of 16",
            hint=f"use draft_kv_block = {draft_block_for(block)}",
        )


def draft_block_for(block: int) -> int:
    """The draft block to use: the largest proper divisor up to 1024, 16 by 16.

    768 at two and four ranks. Smaller blocks find shorter prefixes again but cost
    more ids a request; above 1024 the drafter widens every id at two ranks.
    """
    sizes = range(16, min(block // 2, 1024) + 1, 16)
    return max(size for size in sizes if block % size == 0)
