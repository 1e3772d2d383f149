"""Tokens of prefill that vLLM 0.32.0 schedules beside decoding requests.

Asked by test_chunks_vllm.py; answers are chunk lengths. The budget is spent as
Scheduler.schedule does it; how many slots a drafter holds back, and where a chunk is
cut, are vLLM's own functions.
"""

from __future__ import annotations

from types import SimpleNamespace

from vllm.config.speculative import SpeculativeConfig
from vllm.v1.core.sched.scheduler import Scheduler


def slots(method, tokens):
    """Slots held back a request, from SpeculativeConfig itself."""
    if not tokens:
        return 0
    config = SimpleNamespace(
        num_speculative_tokens=tokens,
        use_dflash=lambda: method == "dflash2",
        parallel_drafting=False,
        uses_draft_model=lambda: False,
    )
    return SpeculativeConfig.max_num_new_slots_for_drafting.fget(config)


def chunk(case):
    held_back = slots(case["method"], case["drafts"])
    left = case["batched"]
    for _ in range(case["decoding"]):
        left -= case["drafts"] + 1 + held_back
    scheduler = SimpleNamespace(
        cache_config=SimpleNamespace(block_size=case["block"]),
        block_size=case["block"],
        hash_block_size=case["hash_block"],
        mamba_partial_cache_hit=case["hash_block"] < case["block"],
        mamba_shared_prefix_checkpoint=False,
        mamba_has_prefill_checkpoint_blocks=True,
        mamba_prefill_checkpoint_alignment=16,
        use_eagle_block_drop=False,
        max_num_scheduled_tokens=case["batched"],
        scheduler_config=SimpleNamespace(
            long_prefill_token_threshold=case["long_prefill"]
        ),
    )
    prompt = case["prompt"]
    request = SimpleNamespace(
        num_computed_tokens=case["start"],
        num_prompt_tokens=prompt,
        num_tokens=prompt,
        shared_prefix_boundary=0,
    )
    new = min(prompt - case["start"], left - held_back)
    if case["long_prefill"]:
        new = min(new, case["long_prefill"])
    return Scheduler._mamba_block_aligned_split(scheduler, request, max(new, 0))


def answers(cases):
    """One length a case; see :func:`chunk`."""
    return [chunk(case) for case in cases]
