"""Who is in a batch and where its states lie: the metadata of the reference."""

from dataclasses import dataclass

import torch
from vllm.v1.attention.backend import AttentionMetadataBuilder


@dataclass
class Batch:
    """One step of the engine as one KV cache group sees it.

    ``requests`` are (token slice in the batch, length with them, row of blocks).
    """

    num_actual_tokens: int
    requests: list[tuple[slice, int, torch.Tensor]]
    slot_mapping: torch.Tensor
    num_prefills: int = 0

    # vLLM's MLA layer asks; all tokens go the way that it calls decoding.
    @property
    def num_decodes(self):
        return len(self.requests)

    @property
    def num_decode_tokens(self):
        return self.num_actual_tokens


class BatchBuilder(AttentionMetadataBuilder):
    """Builds a ``Batch`` from what the model runner knows."""

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device, **_):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        common = common_attn_metadata
        starts, lengths = common.query_start_loc.tolist(), common.seq_lens.tolist()
        requests = [
            (slice(starts[n], starts[n + 1]), lengths[n], common.block_table_tensor[n])
            for n in range(common.num_reqs)
            if starts[n + 1] > starts[n]
        ]
        return Batch(common.num_actual_tokens, requests, common.slot_mapping)


def place(blocks, page, index):
    """(block, offset in it) of state ``index`` of a request, ``page`` states each."""
    return int(blocks[index // page]), index % page
