"""The memory plan of one rank on unified memory, item by item, and what fits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from glmspark.errors import PreflightError
from glmspark.serving.kv import Drafting, KvKind, Layout, draft_block_for, layout
from glmspark.serving.model import DraftShape, ModelShape
from glmspark.serving.profiles import Engine
from glmspark.serving.shard import Weights, rank_weights
from glmspark.serving.topology import Topology

GIB = 2**30

# The EXL3 kernels: tokens of one pass, slots of a cooperative call, alignment.
# Source: overlay/vllm_exl3/dispatch.py, to which a test holds exl3_scratch_bytes.
EXL3_PASS_TOKENS = 4640
EXL3_SLOTS = 256
EXL3_ALIGNMENT = 256
# vLLM's bound on the indexer's logits (VLLM_SPARSE_INDEXER_MAX_LOGITS_MB).
INDEXER_LOGITS_BYTES = 512 * 2**20
# Captured graphs took -0.19 to 0.46 GiB where they were measured (public recipe, TP2).
GRAPH_BYTES = round(0.46 * GIB)
# API server and engine core of the head (public recipe, TP2): 2.0 and 1.2 GiB.
HEAD_PROCESS_BYTES = round(3.2 * GIB)
# Driver, CUDA context, NCCL, allocator slack, JIT and the worker process. Not
# measured one by one anywhere: of 121.69 GiB the public recipe's idle TP2 head had 6
# free, beside 82.94 of weights, 11 of KV, 3.2 of head processes, the items that are
# computed here (3.5) and an idle system (3.5). The first boot replaces it.
UNITEMISED_BYTES = round(11.5 * GIB)
# Largest pool that anybody ran (three Sparks); four saw NV_ERR_NO_MEMORY at a share
# of 0.85 and ran at 0.75, which is about as much. A profile's kv_gib may ask for more.
KV_CEILING_BYTES = 40 * GIB


@dataclass(frozen=True)
class NodeMemory:
    """A node's memory from its probe, in bytes (MemTotal, MemAvailable, MemFree).

    MemFree 0 means that it was not asked.
    """

    name: str
    total_bytes: int
    available_bytes: int
    free_bytes: int = 0


@dataclass(frozen=True)
class Item:
    """One line of the plan: what, bytes, and whence the number comes."""

    name: str
    bytes: int
    basis: str


@dataclass(frozen=True)
class RankMemory:
    """One rank's plan. ``left_bytes`` is for KV: below zero the weights do not fit."""

    node: NodeMemory
    rank: int
    items: tuple[Item, ...]
    left_bytes: int

    @property
    def drop_page_cache(self) -> bool:
        """Whether clean page cache must go before the load.

        MemAvailable counts it as free, and so does vLLM's start check on integrated
        GPUs, but CUDA allocates from MemFree until the kernel reclaims.
        """
        needed = sum(item.bytes for item in self.items)
        return 0 < self.node.free_bytes < min(needed, self.node.available_bytes)


@dataclass(frozen=True)
class MemoryPlan:
    """The plan of all ranks. KV bytes are one number: vLLM takes the smallest pool.

    ``needed_bytes`` holds one request of ``max_model_len``; ``longest_tokens`` is the
    largest context that fits; ``full_requests`` how many of ``max_model_len`` fit.
    """

    ranks: tuple[RankMemory, ...]
    weights: Weights
    layout: Layout
    max_model_len: int
    max_num_batched_tokens: int
    kv_bytes: int
    needed_bytes: int
    longest_tokens: int
    full_requests: float

    @property
    def shortfall_bytes(self) -> int:
        """Bytes missing on the tightest node; 0 where it fits."""
        return max(0, self.needed_bytes - self.kv_bytes)

    @property
    def gpu_share(self) -> float:
        """Value of --gpu-memory-utilization: what the plan takes, of MemTotal.

        vLLM checks it against free memory at start; KV itself is given in bytes.
        """
        shares = [
            (sum(i.bytes for i in r.items if i.name not in _HOST) + self.kv_bytes)
            / r.node.total_bytes
            for r in self.ranks
        ]
        return math.floor(100 * min(0.98, *shares)) / 100


_HOST = frozenset({"head processes", "reserve"})


def batched_tokens(engine: Engine, block: int, drafting: Drafting) -> int:
    """max_num_batched_tokens: whole blocks of prefill beside all decoding rows.

    A decoding request takes drafts + 1 rows, and vLLM 0.32.0 holds back a slot more for
    each of DFlash's mask queries (SpeculativeConfig.max_num_new_slots_for_drafting;
    0.33.0 holds none back, and this stays right there). With less, two running streams
    leave a prefill less than one block, vLLM cuts that down to nothing, and the prompt
    waits until they end (tests/unit/serving/test_chunks_vllm.py).
    """
    held_back = drafting.tokens if drafting.method == "dflash2" else 0
    rows = drafting.tokens + 1 + held_back
    return engine.prefill_blocks * block + engine.max_num_seqs * rows


def drafting_for(
    engine: Engine, method: str, draft: DraftShape | None, block: int | None = None
) -> Drafting:
    """How the profile drafts with ``method`` dflash2, mtp or none.

    ``block`` is the target's block once known: the drafter's follows from it.
    """
    tokens = {"dflash2": engine.draft_tokens, "mtp": engine.mtp_tokens, "none": 0}
    small = block and engine.small_draft_block and method == "dflash2"
    return Drafting(
        method,
        tokens[method],
        draft if method == "dflash2" else None,
        draft_block_for(block) if small and block else None,
    )


def engine_layout(
    model: ModelShape, topo: Topology, engine: Engine, method: str, draft: DraftShape
) -> Layout:
    """The KV pool's geometry for a profile and a drafting method."""
    counted = 512 if engine.kv_cache_dtype == "fp8" else 1024
    kind = KvKind(counted, 4 if engine.ssm_dtype == "float32" else 2)
    stock = layout(model, topo, drafting_for(engine, method, draft), kind=kind)
    small = drafting_for(engine, method, draft, stock.block_tokens)
    return layout(model, topo, small, kind=kind)


def exl3_scratch_bytes(tokens: int, shape: tuple[int, int, int, int]) -> int:
    """What the EXL3 plugin reserves on a rank for calls of up to ``tokens`` tokens.

    ``shape`` is (experts held, experts a token, hidden, this rank's width). The
    routing tables, two rotated inputs, gate and up of one pass, and the buffers of
    the cooperative calls.
    """
    experts, top_k, hidden, width = shape
    rows = min(tokens, EXL3_PASS_TOKENS) * top_k
    tables = [4 * (experts + 1)] * 2 + [4 * rows] * 3
    halves = [2 * rows * hidden] * 2 + [2 * rows * width] * 2
    grouped = sum(-(-n // EXL3_ALIGNMENT) * EXL3_ALIGNMENT for n in tables + halves)
    few = EXL3_SLOTS // top_k
    fp16 = EXL3_SLOTS * (2 * hidden + 3 * width) + few * hidden
    fp32 = (EXL3_SLOTS + few) * hidden
    counters = EXL3_SLOTS * (width // 128) + few * (hidden // 128) + 3 + 2 * EXL3_SLOTS
    return grouped + 2 * fp16 + 4 * fp32 + 4 * counters + 10 * EXL3_SLOTS


def _scratch(
    model: ModelShape, topo: Topology, engine: Engine, batched: int
) -> list[Item]:
    inner = model.expert_intermediate
    local = inner if topo.expert_parallel else inner // topo.ranks
    held = model.experts // topo.ranks if topo.expert_parallel else model.experts
    moe = exl3_scratch_bytes(
        batched, (held, model.experts_per_token, model.hidden, local)
    )
    columns = 128 * math.ceil((model.index_topk + model.index_kpool - 1) / 128)
    factor = 5 if engine.max_model_len <= 256 * 1024 else 2
    gather = engine.max_model_len * 8 * factor // model.index_kpool * 132
    heads = topo.pad(model.heads) // topo.ranks
    kda = topo.pad(model.kda_heads) // topo.ranks * model.kda_head_dim
    row = 3 * model.streams * model.hidden + 3 * heads * model.kv_lora + 9 * kda
    return [
        Item("EXL3 scratch", moe, "overlay/vllm_exl3: one pass, four fp16 rows"),
        Item("top-k rows", batched * columns * 4, "vLLM 0.32.0, one int32 buffer"),
        Item("indexer gather", gather, "vLLM 0.32.0, 8 x factor x length / kpool"),
        Item("indexer logits", INDEXER_LOGITS_BYTES, "vLLM 0.32.0's own bound"),
        Item("activations", batched * row * 2, "three copies of the widest rows"),
        Item("graphs", GRAPH_BYTES, "measured by the public recipe"),
        Item("unitemised", UNITEMISED_BYTES, "derived from the recipe's idle memory"),
    ]


def _rank(
    node: NodeMemory, rank: int, weights: Weights, scratch: list[Item], reserve: int
) -> RankMemory:
    items = [
        Item(kind.value, size, "census x sharding")
        for kind, size in weights.by_kind.items()
    ]
    items += [Item("derived copies", weights.copies, "census x sharding"), *scratch]
    if rank == 0:
        items.append(
            Item("head processes", HEAD_PROCESS_BYTES, "measured by the public recipe")
        )
    items.append(Item("reserve", reserve, "hosts failed below 1 to 2 GiB"))
    left = node.available_bytes - sum(item.bytes for item in items)
    return RankMemory(node, rank, tuple(items), left)


@dataclass(frozen=True)
class Load:
    """What is to be served: the profile's engine, the drafting, vision or not."""

    engine: Engine
    method: str
    draft: DraftShape
    vision: bool = True


def memory_plan(
    model: ModelShape, topo: Topology, load: Load, nodes: tuple[NodeMemory, ...]
) -> MemoryPlan:
    """The plan for all ranks; node i is rank i. Never raises for lack of memory.

    See :func:`check_fits` for the refusal.
    """
    engine = load.engine
    pool = engine_layout(model, topo, engine, load.method, load.draft)
    batched = batched_tokens(engine, pool.block_tokens, pool.drafting)
    weights = rank_weights(
        model,
        topo,
        pool.drafting,
        dense_fp8=engine.dense == "fp8",
        vision=load.vision,
    )
    scratch = _scratch(model, topo, engine, batched)
    reserve = round(engine.reserve_gib * GIB)
    ranks = tuple(
        _rank(node, rank, weights, scratch, reserve) for rank, node in enumerate(nodes)
    )
    left = min(rank.left_bytes for rank in ranks)
    ceiling = round(engine.kv_gib * GIB) or KV_CEILING_BYTES
    ids = pool.pool_blocks(max(0, min(left, ceiling)))
    kv_bytes = ids * pool.bytes_per_block
    flight = 2 * batched
    need = pool.blocks(engine.max_model_len, flight)
    return MemoryPlan(
        ranks=ranks,
        weights=weights,
        layout=pool,
        max_model_len=engine.max_model_len,
        max_num_batched_tokens=batched,
        kv_bytes=kv_bytes,
        needed_bytes=(need + 1) * pool.bytes_per_block,
        longest_tokens=pool.longest(kv_bytes, flight, model.max_positions),
        full_requests=(max(ids, 1) - 1) / need,
    )


def check_fits(plan: MemoryPlan) -> None:
    """Raises PreflightError, with shortfall and the largest context, if it cannot."""
    if not plan.shortfall_bytes:
        return
    tight = min(plan.ranks, key=lambda rank: rank.left_bytes)
    short = plan.shortfall_bytes / GIB
    if plan.longest_tokens:
        hint = f"set max_model_len = {plan.longest_tokens} or less"
    else:
        hint = f"free at least {short:.1f} GiB on {tight.node.name}, or use more nodes"
    raise PreflightError(
        f"a context of {plan.max_model_len} tokens needs {plan.needed_bytes / GIB:.2f} "
        f"GiB of KV, {plan.kv_bytes / GIB:.2f} GiB are left: {short:.2f} GiB short; "
        f"the largest context that fits is {plan.longest_tokens} tokens",
        hint=hint,
        node=tight.node.name,
    )
