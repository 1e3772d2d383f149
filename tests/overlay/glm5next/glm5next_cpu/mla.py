"""Sparse MLA over the tokens that the indexer chose, densely, in float32.

A backend of vLLM's: its layer makes the latent query and value projections; this
stores a latent row a token and attends, one latent head for all query heads.
"""

import torch
from vllm.model_executor.layers.attention.sparse_mla_attention import (
    SharedTopkIndicesBuffer,
)
from vllm.v1.attention.backend import (
    AttentionBackend,
    MLAAttentionImpl,
    MultipleOf,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from glm5next_cpu.batch import BatchBuilder, place
from glm5next_cpu.latent import attend, rms_norm


def norm_both(qr, kv, q_weight, kv_weight, eps):
    """RMSNorm of the two low-rank projections, which vLLM fuses on a GPU."""
    return rms_norm(qr, q_weight, eps), rms_norm(kv, kv_weight, eps)


class Impl(MLAAttentionImpl, SharedTopkIndicesBuffer):
    """Attention of one layer on one rank."""

    is_sparse = True
    supports_dense_mha_prefill = False

    def __init__(self, num_heads, head_size, scale, num_kv_heads, **rest):
        self.num_heads, self.head_size, self.scale = num_heads, head_size, scale
        self.num_kv_heads, self.kv_cache_dtype = num_kv_heads, rest["kv_cache_dtype"]
        self.init_topk_indices_buffer(rest["indexer"], rest["topk_indices_buffer"])

    def record_logical_topk_ready(self):
        """Nothing waits: the indexer has run before."""

    def process_weights_after_loading(self, act_dtype):
        """Nothing to pack."""

    def do_kv_cache_update(self, kv_c_normed, k_pe, kv_cache, slot_mapping, *_, **__):
        """Latent rows into the cache [blocks, page, latent]; slots < 0 are padding."""
        assert not k_pe.numel(), "NoPE: there is no rotary part"
        if not kv_cache.numel():
            return
        page = kv_cache.shape[1]
        for row, slot in zip(
            kv_c_normed, slot_mapping.flatten().tolist(), strict=False
        ):
            if slot >= 0:
                kv_cache[slot // page, slot % page] = row

    def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer):
        """([tokens, heads, latent], no logsumexp) for latent queries."""
        latent, cache = q[0], kv_c_and_k_pe_cache
        out = torch.zeros_like(latent)
        for span, _, blocks in attn_metadata.requests:
            for token in range(span.start, span.stop):
                chosen = self.topk_indices_buffer[token]
                at = [
                    place(blocks, cache.shape[1], i) for i in chosen.tolist() if i >= 0
                ]
                rows = torch.stack([cache[block, offset] for block, offset in at])
                out[token] = attend(latent[token], rows, self.scale).to(out.dtype)
        return out, None


class Backend(AttentionBackend):
    """What vLLM asks of a sparse MLA backend."""

    @staticmethod
    def get_name():
        return "GLM5NEXT_CPU_REFERENCE"

    @staticmethod
    def get_impl_cls():
        return Impl

    @staticmethod
    def get_builder_cls():
        return BatchBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None):
        return [MultipleOf(16)]

    @classmethod
    def is_mla(cls):
        return True

    @classmethod
    def is_sparse(cls):
        return True


def install():
    """Make it the CPU's answer where vLLM says that it has no sparse attention."""
    from vllm.model_executor.layers import mla
    from vllm.platforms.cpu import CpuPlatform

    register_backend(AttentionBackendEnum.CUSTOM, f"{__name__}.Backend")
    theirs = CpuPlatform.get_attn_backend_cls.__func__

    def get_attn_backend_cls(cls, selected_backend, attn_selector_config, **rest):
        if attn_selector_config.use_sparse:
            return AttentionBackendEnum.CUSTOM.get_path()
        return theirs(cls, selected_backend, attn_selector_config, **rest)

    CpuPlatform.get_attn_backend_cls = classmethod(get_attn_backend_cls)
    mla.fused_q_kv_rmsnorm = norm_both
