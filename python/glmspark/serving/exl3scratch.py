"""Scratch of the EXL3 kernels in bytes, for plans made where no engine is installed.

The fact lives in overlay/vllm_exl3/dispatch.py; this tool runs without that package, so
the arithmetic stands here again and tests/unit/serving/test_exl3scratch.py compares
both over every shape that a topology has.
"""

from __future__ import annotations

from collections.abc import Iterable

# vllm_exl3.dispatch: COOP_SLOTS, Limits.pass_tokens, ALIGNMENT.
COOP_SLOTS = 256
PASS_TOKENS = 4640
ALIGNMENT = 256


def _aligned(sizes: Iterable[int]) -> int:
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)


def _grouped(tokens: int, experts: int, top_k: int, hidden: int, width: int) -> int:
    rows = tokens * top_k
    tables = [4 * (experts + 1)] * 2 + [4 * rows] * 3
    return _aligned([*tables, *[2 * rows * hidden] * 2, *[2 * rows * width] * 2])


def _coop(top_k: int, hidden: int, width: int) -> int:
    slots, rows = COOP_SLOTS, COOP_SLOTS // top_k
    halves = slots * (2 * hidden + 3 * width) + rows * hidden
    floats = (slots + rows) * hidden
    work = slots * (width // 128) + rows * (hidden // 128)
    counters = work + 2 + 2 * slots + 1
    return 2 * halves + 4 * floats + 10 * slots + 4 * counters


def scratch_bytes(
    max_tokens: int, *, experts: int, top_k: int, hidden: int, width: int
) -> int:
    """What one rank's process holds for all of its MoE layers.

    ``max_tokens`` is the longest call (max_num_batched_tokens); ``experts`` and
    ``width`` are the rank's own, ``top_k`` the choices a token.
    """
    tokens = min(max_tokens, PASS_TOKENS)
    grouped = _grouped(tokens, experts, top_k, hidden, width)
    return _coop(top_k, hidden, width) + grouped
