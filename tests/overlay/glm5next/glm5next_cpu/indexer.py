"""The kpool indexer on a CPU: vLLM's caches and buffers, ``pooling``'s arithmetic."""

import torch
from vllm.forward_context import get_forward_context
from vllm.model_executor.custom_op import CustomOp
from vllm.models.glm5next.common import attention
from vllm.models.glm5next.nvidia.sparse_indexer import SparseAttnIndexerKpool
from vllm.v1.attention.backends.mla import indexer

from glm5next_cpu import pooling
from glm5next_cpu.batch import BatchBuilder, place

SCALE_BYTES = 4


def rotated_query(q):
    """(fp8 rows, scale): what vLLM's ``fwht128_quant_fp8`` gives."""
    return pooling.quantize(pooling.rotate(q))


class PoolCache:
    """A layer's pools [blocks, page, 132] bytes: a page's keys, then its scales."""

    def __init__(self, cache, width, blocks):
        self.cache, self.width, self.blocks = cache, width, blocks
        self.page = cache.shape[1]

    def _entry(self, pool):
        block, offset = place(self.blocks, self.page, pool)
        flat = self.cache[block].view(-1)
        key = flat[offset * self.width : (offset + 1) * self.width]
        start = self.page * self.width + offset * SCALE_BYTES
        return key.view(pooling.FP8), flat[start : start + SCALE_BYTES].view(
            torch.float32
        )

    def write(self, pool, key):
        """One pool's bf16 key."""
        kept, scale = self._entry(pool)
        rows, scales = rotated_query(key[None])
        kept.copy_(rows[0])
        scale.copy_(scales[0])

    def read(self, count):
        """(fp8 keys [count, width], scales [count]) of the first pools."""
        entries = [self._entry(pool) for pool in range(count)]
        keys = [key.float() for key, _ in entries]
        if not keys:
            return torch.empty(0, self.width), torch.empty(0)
        return torch.stack(keys), torch.cat([scale for _, scale in entries])


class Reference(SparseAttnIndexerKpool):
    """vLLM's indexer operator, token by token."""

    def forward_cpu(self, hidden_states, q_quant, k, weights, **kpool):
        metadata = get_forward_context().attn_metadata
        if not isinstance(metadata, dict):
            return self.topk_indices_buffer
        self.topk_indices_buffer[: hidden_states.shape[0]] = -1
        batch = metadata[self.k_cache.prefix]
        tails = metadata[self.tail_cache.prefix]
        both = zip(batch.requests, tails.requests, strict=True)
        for (span, length, blocks), (_, _, tail_blocks) in both:
            tail = self.tail_cache.kv_cache[int(tail_blocks[0])]
            cache = PoolCache(self.k_cache.kv_cache, self.head_dim, blocks)
            for token in range(span.start, span.stop):
                at = length - (span.stop - token)
                self._keep(
                    cache, tail, at, (k[token], kpool["gate_score"][token]), kpool
                )
                self._select(
                    cache, at + 1, token, (q_quant[token], weights[token]), kpool
                )
        return self.topk_indices_buffer

    def _keep(self, cache, tail, at, states, kpool):
        """A token's key and gate into the ring; a pool that it completes, out of it."""
        ring, pool = tail.shape[1], kpool["index_kpool"]
        tail[0, at % ring], tail[1, at % ring] = states
        if at % pool != pool - 1:
            return
        places = torch.arange(at - pool + 1, at + 1) % ring
        key = pooling.pool_key(tail[0, places], tail[1, places], kpool["compress_ape"])
        cache.write(at // pool, key)

    def _select(self, cache, length, token, query, kpool):
        """The tokens that this one sees, into vLLM's buffer."""
        pool = kpool["index_kpool"]
        keys, scales = cache.read(length // pool)
        found = pooling.scores(*query, keys, scales)
        chosen = pooling.selected_tokens(found, length, pool, self.topk_tokens)
        self.topk_indices_buffer[token, : len(chosen)] = chosen.int()


class IndexerBackend(indexer.Glm5NextIndexerBackend):
    """vLLM's, with plain metadata."""

    @staticmethod
    def get_builder_cls():
        return BatchBuilder


class TailBackend(indexer.KpoolTailBackend):
    """vLLM's, with plain metadata."""

    @staticmethod
    def get_builder_cls():
        return BatchBuilder


def install():
    """Replace the operator, its query's rotation and its two backends' metadata."""
    CustomOp.register_oot(Reference, name="SparseAttnIndexerKpool")
    attention.fwht128_quant_fp8 = rotated_query
    attention.Glm5NextIndexerBackend = IndexerBackend
    indexer.KpoolTailBackend = TailBackend
