"""Cached tokens of a second request, by vLLM 0.32.0's own manager and scheduler.

Asked by test_prefix_vllm.py. A first request of ``prompt`` tokens is prefilled
in the chunks that the scheduler cuts, answers, and ends; then an exact replay of its
prompt is looked up.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parent))
import vllm_kv_oracle as kv
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import (
    register_all_kvcache_specs,
)
from vllm.v1.request import Request


def make(case):
    """(manager, stand-in scheduler, hash block) of one kit."""
    config = kv.vllm_config(case)
    kv.align(case, config)
    cache = config.cache_config
    cache.enable_prefix_caching = True
    cache.prefix_match_unit = None
    config.kv_transfer_config = None
    register_all_kvcache_specs(config)
    groups = kv_cache_utils.get_kv_cache_groups(config, kv.specs(case, config))
    made = kv_cache_utils.get_kv_cache_config_from_groups(
        config, groups, case["kv_bytes"]
    )
    made = kv_cache_utils.generate_scheduler_kv_cache_config([made])
    block, hashed = kv_cache_utils.resolve_kv_cache_block_sizes(made, config)
    manager = KVCacheManager(
        kv_cache_config=made,
        max_model_len=case["max_model_len"],
        scheduler_block_size=block,
        hash_block_size=hashed,
        max_in_flight_tokens=case["in_flight"],
        enable_caching=True,
        use_eagle=case["drop"],
    )
    scheduler = SimpleNamespace(
        cache_config=cache,
        block_size=block,
        hash_block_size=hashed,
        mamba_partial_cache_hit=hashed < block
        and manager.coordinator.enable_partial_hash_hits,
        mamba_shared_prefix_checkpoint=False,
        mamba_has_prefill_checkpoint_blocks=True,
        mamba_prefill_checkpoint_alignment=16,
        use_eagle_block_drop=case["drop"],
        max_num_scheduled_tokens=case["batched"],
        scheduler_config=SimpleNamespace(long_prefill_token_threshold=0),
    )
    return manager, scheduler, hashed


def request(name, tokens, hashed):
    return Request(
        request_id=name,
        prompt_token_ids=tokens,
        sampling_params=SamplingParams(max_tokens=10_000),
        pooling_params=None,
        block_hasher=kv_cache_utils.get_request_block_hasher(hashed, sha256),
    )


def serve(manager, scheduler, one, answer, lookahead):
    """Prefill in the scheduler's chunks, then answer token by token, then end."""
    while one.num_computed_tokens < one.num_prompt_tokens:
        left = one.num_prompt_tokens - one.num_computed_tokens
        new = Scheduler._mamba_block_aligned_split(
            scheduler, one, min(left, scheduler.max_num_scheduled_tokens)
        )
        assert new > 0
        manager.new_step_starts()
        assert manager.allocate_slots(one, new, num_lookahead_tokens=lookahead)
        one.num_computed_tokens += new
    for token in range(answer):
        one.append_output_token_ids(token)
        manager.new_step_starts()
        assert manager.allocate_slots(one, 1, num_lookahead_tokens=lookahead)
        one.num_computed_tokens += 1
    manager.free(one)


def found(case):
    manager, scheduler, hashed = make(case)
    kv_cache_utils.init_none_hash(sha256)
    tokens = list(range(case["prompt"]))
    first = request("first", tokens, hashed)
    serve(manager, scheduler, first, 300, case["spec"] + 1)
    again = request("again", tokens, hashed)
    return {"hash_block": hashed, "cached": manager.get_computed_blocks(again)[1]}


def answers(cases):
    """One dict a case; see :func:`found`."""
    return [found(case) for case in cases]
