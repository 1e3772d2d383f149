"""vLLM's own KV grouping for a list of cases; asked by test_kv_vllm.py.

Every number in a result comes from vLLM 0.32.0's functions: the block size from
``Platform._align_hybrid_block_size``, groups from ``get_kv_cache_groups``, blocks
from ``get_kv_cache_config_from_groups``, needs from the specs themselves.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import torch
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator
from vllm.platforms.interface import Platform
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.mla.sparse_utils import (
    align_blocks_to_rows,
)
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import (
    CircularBufferSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    SparseCacheRole,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

KDA, MLA, KPOOL = 34, 11, 4


class Rows64:
    """Kernel pages of the SM12x sparse-MLA backend: 64 rows."""

    @staticmethod
    def get_supported_kernel_block_sizes():
        return [MultipleOf(64)]


class Pools64:
    """Kernel pages of the pooled indexer: 64 states of four tokens."""

    @staticmethod
    def get_supported_kernel_block_sizes():
        return [KPOOL * 64]


def vllm_config(case):
    cache = SimpleNamespace(
        cache_dtype=case["cache_dtype"],
        block_size=16,
        mamba_cache_mode="align",
        mamba_block_size=None,
        mamba_page_size_padded=None,
        num_gpu_blocks_override=None,
        prefix_cache_retention_interval=0,
        get_resolved_kv_cache_layout=lambda: KVCacheLayout.BLHNC,
    )
    model = SimpleNamespace(
        dtype=torch.bfloat16,
        use_mla=True,
        architecture="Glm5NextForCausalLM",
        max_model_len=case["max_model_len"],
        get_num_kv_heads=lambda _: 1,
        get_head_size=lambda: 512,
        hf_config=SimpleNamespace(model_type="glm5_next"),
    )
    return SimpleNamespace(
        cache_config=cache,
        model_config=model,
        parallel_config=SimpleNamespace(
            tensor_parallel_size=case["tp"], decode_context_parallel_size=1
        ),
        speculative_config=None,
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        attention_config=SimpleNamespace(hisparse_config=None),
        num_speculative_tokens=case["spec"],
        max_in_flight_tokens=case["in_flight"],
    )


def shapes(case):
    return MambaStateShapeCalculator.kda_state_shape(
        case["tp"], case["heads"], 128, conv_kernel_size=4, num_spec=case["spec"]
    )


def align(case, config):
    """The target block, by vLLM's own alignment over stand-in backends."""

    class Model:
        @staticmethod
        def get_mamba_state_shape_from_config(_):
            return shapes(case)

        @staticmethod
        def get_mamba_state_dtype_from_config(_):
            return (torch.bfloat16, torch.float32)

    class Aligned(Platform):
        @classmethod
        def _find_non_ssm_backends(cls, _):
            return [Rows64, Pools64]

    import contextlib
    from unittest import mock

    registry = SimpleNamespace(resolve_model_cls=lambda *_, **__: (Model, ""))
    with (
        mock.patch("vllm.model_executor.models.ModelRegistry", registry),
        mock.patch(
            "vllm.config.vllm.set_current_vllm_config",
            lambda _: contextlib.nullcontext(),
        ),
    ):
        Aligned._align_hybrid_block_size(config, Rows64)


def specs(case, config):
    cache, found = config.cache_config, {}
    for i in range(KDA):
        found[f"kda.{i}"] = MambaSpec(
            shapes=shapes(case),
            dtypes=(torch.bfloat16, torch.float32),
            block_size=cache.mamba_block_size,
            page_size_padded=cache.mamba_page_size_padded,
            mamba_cache_mode="align",
            num_speculative_blocks=case["spec"],
            num_prefill_checkpoint_blocks=1,
            prefill_checkpoint_alignment=16,
        )
    span = -(-(KPOOL + case["spec"]) // KPOOL)
    ring = KPOOL * 2 ** (span - 1).bit_length()
    for i in range(MLA + case["mtp"]):
        latent = MLAAttentionSpec(
            block_size=cache.block_size,
            num_kv_heads=1,
            max_tp_shards=1,
            head_size=512,
            dtype=torch.uint8,
            cache_dtype_str="fp8_ds_mla",
            kv_quant_mode=KVQuantMode.NONE,
            state_content_bytes=656,
            is_index_group_leader=True,
        )
        found[f"mla.{i}"] = align_blocks_to_rows(latent, 64)
        found[f"index.{i}"] = replace(
            MLAAttentionSpec(
                block_size=cache.block_size,
                num_kv_heads=1,
                max_tp_shards=1,
                head_size=132,
                dtype=torch.uint8,
                cache_role=SparseCacheRole.INDEXER,
                block_stride_alignment=MultipleOf(KPOOL * 64),
            ),
            tokens_per_state=KPOOL,
        )
        found[f"tail.{i}"] = CircularBufferSpec(
            block_size=ring,
            num_kv_heads=2,
            head_size=128,
            head_size_v=0,
            dtype=torch.bfloat16,
            dcp_sharded=False,
        )
    for i in range(case["draft_layers"]):
        found[f"draft.{i}"] = SlidingWindowSpec(
            block_size=case["draft_block"] or cache.block_size,
            num_kv_heads=case["draft_kv_heads"],
            head_size=128,
            dtype=torch.bfloat16,
            sliding_window=2048,
        )
    return found


def answer(case):
    config = vllm_config(case)
    if case["block"]:
        counted = 512 if case["cache_dtype"] == "fp8" else 1024
        config.cache_config.block_size = case["block"]
        config.cache_config.mamba_block_size = case["block"]
        config.cache_config.mamba_page_size_padded = case["block"] * counted
    else:
        align(case, config)
    groups = kv_cache_utils.get_kv_cache_groups(config, specs(case, config))
    made = kv_cache_utils.get_kv_cache_config_from_groups(
        config, groups, case["kv_bytes"]
    )
    per_block = kv_cache_utils._pool_bytes_per_block(config, groups)
    need = kv_cache_utils._max_memory_usage_bytes_from_groups(config, groups)
    return {
        "block": config.cache_config.block_size,
        "bytes_per_block": per_block,
        "groups": sorted(len(group.layer_names) for group in groups),
        "blocks": made.num_blocks,
        "per_request": need // per_block,
        "longest": kv_cache_utils._estimate_max_model_len_from_groups(
            config, groups, case["kv_bytes"] - per_block
        ),
    }


def answers(cases):
    """One dict a case; see :func:`answer`."""
    return [answer(case) for case in cases]
