"""A long prefill in two chunks: is the first chunk's logits gone when the second's
are made? The op itself runs; kernels and metadata are stand-ins."""

import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).parent))
import glm5next_stub

glm5next_stub.install()

from vllm.models.glm5next.nvidia import sparse_indexer as op  # noqa: E402
from vllm.utils import deep_gemm  # noqa: E402

ROWS, POOLS, KPOOL, TOPK = 8, 64, 4, 16


class Metadata(SimpleNamespace):
    """Passes the op's isinstance check in place of DeepseekV32IndexerMetadata."""


def chunk(start):
    return SimpleNamespace(
        local_cu_seq_lens=torch.tensor([0, POOLS]),
        max_local_total_seq_lens=POOLS,
        local_total_seq_lens=POOLS,
        skip_kv_gather=True,
        token_start=start,
        token_end=start + ROWS,
        cu_seqlen_ks=torch.zeros(ROWS, dtype=torch.int32),
        cu_seqlen_ke=torch.full((ROWS,), POOLS, dtype=torch.int32),
    )


def run():
    """How many logits were alive when each chunk's were made."""
    made, alive = [], []

    def logits(*_, **__):
        alive.append(sum(ref() is not None for ref in made))
        out = torch.zeros(ROWS, POOLS)
        made.append(weakref.ref(out))
        return out

    tokens = 2 * ROWS
    metadata = Metadata(
        slot_mapping=torch.zeros(tokens, dtype=torch.int64),
        num_decodes=0,
        num_prefills=1,
        num_decode_tokens=0,
        prefill=SimpleNamespace(
            max_prefill_seq_len=10**6, chunks=[chunk(0), chunk(ROWS)]
        ),
    )
    workspace = SimpleNamespace(
        get_simultaneous=lambda *specs: [torch.zeros(s, dtype=d) for s, d in specs]
    )
    kernels = SimpleNamespace(
        expand_pools_and_append_tail=lambda ids, *_: torch.zeros(
            ids.shape[0], TOPK, dtype=torch.int32
        )
    )
    torch.ops._C.top_k_per_row_prefill = lambda *_: None
    with (
        mock.patch.object(
            op,
            "get_forward_context",
            lambda: SimpleNamespace(attn_metadata={"k": metadata}),
        ),
        mock.patch.object(op, "DeepseekV32IndexerMetadata", Metadata),
        mock.patch.object(op, "current_workspace_manager", lambda: workspace),
        mock.patch.object(op, "kpool_ops", kernels),
        mock.patch.object(op, "_merge_dcp_topk_global", lambda *_, **__: None),
        mock.patch.object(
            op, "PrefillRowShard", SimpleNamespace(from_metadata=lambda *_: None)
        ),
        mock.patch.object(deep_gemm, "fp8_fp4_mqa_logits", logits),
    ):
        op.sparse_attn_indexer_kpool(
            torch.zeros(tokens, 4),
            "k",
            torch.zeros(1),
            torch.zeros(tokens, 2, 8),
            None,
            torch.zeros(tokens, 8),
            torch.zeros(tokens, 2),
            128,
            "ue8m0",
            TOPK,
            8,
            POOLS,
            POOLS,
            torch.zeros(tokens, TOPK, dtype=torch.int32),
            skip_k_cache_insert=True,
            index_kpool=KPOOL,
            positions=torch.arange(tokens),
        )
    return alive


def test_no_earlier_logits_live_when_the_next_are_made():
    assert run() == [0, 0]


def test_both_score_every_chunk():
    assert len(run()) == 2
