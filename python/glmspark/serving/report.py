"""The memory plan as rows for a reader and as plain values for a program."""

from __future__ import annotations

from typing import Any

from glmspark.serving.memory import GIB, MemoryPlan, RankMemory


def _rank(plan: MemoryPlan, rank: RankMemory) -> list[str]:
    lines = [
        f"rank {rank.rank} on {rank.node.name}: "
        f"{rank.node.available_bytes / GIB:.2f} GiB available of "
        f"{rank.node.total_bytes / GIB:.2f}"
    ]
    for item in rank.items:
        lines.append(f"  {item.bytes / GIB:8.2f}  {item.name:<28} {item.basis}")
    pool = f"{plan.layout.pool_blocks(plan.kv_bytes)} blocks"
    lines.append(f"  {plan.kv_bytes / GIB:8.2f}  {'KV pool':<28} {pool}")
    spare = rank.left_bytes - plan.kv_bytes
    lines.append(f"  {spare / GIB:8.2f}  {'left over':<28} beyond the reserve")
    if rank.drop_page_cache:
        lines.append("  page cache has to be dropped before the load: MemFree is small")
    return lines


def memory_lines(plan: MemoryPlan) -> list[str]:
    """The plan for a reader: each rank's items in GiB, then what fits."""
    lines = [line for rank in plan.ranks for line in [*_rank(plan, rank), ""]]
    layout = plan.layout
    lines += [
        f"target block {layout.block_tokens} tokens, "
        f"{layout.bytes_per_block / 1e6:.1f} MB a block id",
        f"one request of {plan.max_model_len} tokens needs "
        f"{plan.needed_bytes / GIB:.2f} GiB; {plan.full_requests:.2f} of them fit",
        f"largest context that fits: {plan.longest_tokens} tokens",
    ]
    if plan.shortfall_bytes:
        lines.append(f"does not fit: {plan.shortfall_bytes / GIB:.2f} GiB short")
    return lines


def memory_values(plan: MemoryPlan) -> dict[str, Any]:
    """The plan for a program; all sizes in bytes."""
    layout = plan.layout
    return {
        "fits": plan.shortfall_bytes == 0,
        "shortfall_bytes": plan.shortfall_bytes,
        "kv_bytes": plan.kv_bytes,
        "needed_bytes": plan.needed_bytes,
        "max_model_len": plan.max_model_len,
        "longest_tokens": plan.longest_tokens,
        "full_requests": round(plan.full_requests, 3),
        "max_num_batched_tokens": plan.max_num_batched_tokens,
        "gpu_memory_utilization": plan.gpu_share,
        "kv": {
            "block_tokens": layout.block_tokens,
            "draft_block_tokens": layout.drafting.block_tokens,
            "bytes_per_block": layout.bytes_per_block,
            "blocks": layout.pool_blocks(plan.kv_bytes),
            "groups": [
                {"kind": g.kind, "layers": g.layers, "bytes": g.bytes_per_block}
                for g in layout.groups
            ],
        },
        "ranks": [
            {
                "rank": rank.rank,
                "node": rank.node.name,
                "available_bytes": rank.node.available_bytes,
                "left_for_kv_bytes": rank.left_bytes,
                "drop_page_cache": rank.drop_page_cache,
                "items": [
                    {"name": i.name, "bytes": i.bytes, "basis": i.basis}
                    for i in rank.items
                ],
            }
            for rank in plan.ranks
        ],
    }
