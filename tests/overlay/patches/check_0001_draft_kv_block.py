from types import SimpleNamespace

import pytest
import torch
from vllm.config.speculative import SpeculativeConfig
from vllm.model_executor.models import qwen3_dflash
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.kv_cache_interface import SlidingWindowSpec


def layer():
    """A drafter's attention layer as far as its KV spec goes."""
    made = object.__new__(qwen3_dflash.DFlashDraftAttention)
    torch.nn.Module.__init__(made)
    made.attn_type = "decoder"
    made.kv_cache_dtype = "auto"
    made.sliding_window = 2048
    made.num_kv_heads = 4
    made.head_size = made.head_size_v = 128
    made.kv_cache_torch_dtype = torch.bfloat16
    made.attn_backend = SimpleNamespace(
        is_mla=lambda: False,
        customize_spec=lambda spec: spec,
        get_supported_kernel_block_sizes=lambda _=None: [MultipleOf(16)],
    )
    return made


def config(draft_block):
    return SimpleNamespace(
        cache_config=SimpleNamespace(block_size=4608, skip_page_size_padded=None),
        speculative_config=SimpleNamespace(draft_kv_block_size=draft_block),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
    )


def test_block_is_the_one_asked_for():
    spec = layer().get_kv_cache_spec(config(768))
    assert isinstance(spec, SlidingWindowSpec)
    assert spec.block_size == 768
    assert spec.page_size_bytes == 768 * 4 * 128 * 2 * 2


def test_without_the_field_it_is_the_targets():
    assert layer().get_kv_cache_spec(config(None)).block_size == 4608


def test_a_block_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="1000 does not divide"):
        layer().get_kv_cache_spec(config(1000))


def test_the_speculative_config_takes_the_field():
    config = SpeculativeConfig(
        method="ngram", num_speculative_tokens=2, draft_kv_block_size=768
    )
    assert config.draft_kv_block_size == 768


def test_the_dflash_layer_uses_it():
    source = qwen3_dflash.DFlashQwen3Attention.__init__.__code__.co_names
    assert "DFlashDraftAttention" in source


def test_both_refuse_unknown_fields():
    with pytest.raises(Exception, match="no_such_field"):
        SpeculativeConfig(method="ngram", num_speculative_tokens=2, no_such_field=1)
