"""Requests that make every shape compile before users come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from glmspark.serving.memory import MemoryPlan
from glmspark.serving.profiles import Engine

# Prompts whose rows land in each bucket of the sparse-attention and MoE kernels: below
# and above FlashInfer's 64-row decode form, EXL3's 32-row path and its 128-row tiles.
SHORT_PROMPTS = (1, 24, 56, 120, 248)


@dataclass(frozen=True)
class WarmUp:
    """``parallel`` equal requests: tokens in, tokens out, and how they sample."""

    prompt_tokens: int
    max_tokens: int
    parallel: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    thinking: bool = False


def _prompts(engine: Engine, plan: MemoryPlan) -> Iterator[int]:
    block = plan.layout.block_tokens
    room = engine.max_model_len - 64
    longest = min(65_536, room)
    ladder = [*SHORT_PROMPTS, 2300, block, plan.max_num_batched_tokens, 2 * block + 1]
    yield from sorted({length for length in [*ladder, longest] if 0 < length <= room})


def warm_up(engine: Engine, plan: MemoryPlan) -> tuple[WarmUp, ...]:
    """Every shape that traffic may bring first, short prompts before long ones.

    Widths up to ``max_num_seqs`` are covered; prompts above 65,536 tokens are not:
    they bring no new shape, only time.
    """
    step = plan.layout.drafting.tokens + 1
    singles = [WarmUp(length, 2 * step) for length in _prompts(engine, plan)]
    samplers = [
        WarmUp(24, 2 * step, temperature=1.0),
        WarmUp(24, 2 * step, temperature=1.0, top_k=40),
        WarmUp(24, 2 * step, temperature=1.0, top_p=0.95),
        WarmUp(24, 2 * step, temperature=1.0, top_p=0.95, top_k=40),
        WarmUp(24, 4 * step, thinking=True),
    ]
    bursts = [
        WarmUp(120, 4 * step, parallel=width)
        for width in range(2, engine.max_num_seqs + 1)
    ]
    return (*singles, *samplers, *bursts)
