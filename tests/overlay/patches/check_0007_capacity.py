from types import SimpleNamespace
from unittest import mock

import torch
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec, MambaSpec


def lines():
    full = FullAttentionSpec(
        block_size=16, num_kv_heads=1, head_size=8, dtype=torch.bfloat16
    )
    state = MambaSpec(
        shapes=((4,),),
        dtypes=(torch.float32,),
        block_size=16,
        mamba_cache_mode="align",
        num_speculative_blocks=7,
        num_prefill_checkpoint_blocks=1,
    )
    groups = [KVCacheGroupSpec(["a"], full), KVCacheGroupSpec(["b"], state)]
    config = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=160),
        cache_config=SimpleNamespace(mamba_cache_mode="align"),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        attention_config=SimpleNamespace(hisparse_config=None),
        device_config=SimpleNamespace(device_type="cuda"),
    )
    pool = SimpleNamespace(num_blocks=101, kv_cache_groups=groups)
    for group in groups:
        assert group.host_resident is False
    said = []
    with mock.patch.object(
        kv_cache_utils.logger, "info_once", lambda text, *args: said.append(text % args)
    ):
        kv_cache_utils.update_kv_cache_capacity(config, pool)
    return said


def test_blocks_and_ids_by_group_are_said():
    (line,) = [line for line in lines() if line.startswith("KV pool")]
    assert "101 blocks, one of them null" in line
    assert "a request of 160 tokens holds 20 (by group: 10+10)" in line
    assert "every 16 tokens add one" in line


def test_both_keep_upstreams_line():
    assert lines()[0].startswith("GPU KV cache size: 808 tokens")
