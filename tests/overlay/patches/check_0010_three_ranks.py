import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the field's name

sys.path.insert(0, str(Path(__file__).parent))
import glm5next_stub

glm5next_stub.install()
# Their own imports need torchvision; the text model takes only names from them.
for module, names in {
    "vllm.model_executor.models.glm4_1v": (
        "Glm4vDummyInputsBuilder",
        "Glm4vForConditionalGeneration",
    ),
    "vllm.models.glm5next.common.multimodal": (
        "Glm5NextMultiModalProcessor",
        "Glm5NextProcessingInfo",
        "Glm5NextVisionTransformer",
    ),
}.items():
    stub = sys.modules.setdefault(module, ModuleType(module))
    for name in names:
        setattr(stub, name, type(name, (), {}))

import vllm.utils.flashinfer as flashinfer_utils  # noqa: E402
from vllm.model_executor.layers import vocab_parallel_embedding as vocab  # noqa: E402
from vllm.models.glm5next.common import model as glm  # noqa: E402
from vllm.v1.attention.backends.mla import (  # noqa: E402
    flashinfer_mla_sparse_sm120 as sm120,
)


def embedding(rank, ranks, rows, weight):
    with (
        mock.patch.object(vocab, "get_tensor_model_parallel_rank", lambda: rank),
        mock.patch.object(vocab, "get_tensor_model_parallel_world_size", lambda: ranks),
    ):
        made = vocab.VocabParallelEmbedding(rows, 8, params_dtype=torch.float32)
        made.weight.weight_loader(made.weight, weight)
    return made


def test_vocabulary_divides_by_three_and_keeps_its_rows():
    rows = 5 * 64
    weight = torch.arange(rows * 8, dtype=torch.float32).view(rows, 8)
    parts = [embedding(rank, 3, rows, weight).weight for rank in range(3)]
    assert {part.shape[0] for part in parts} == {128}
    whole = torch.cat(list(parts))
    assert torch.equal(whole[:rows], weight)
    assert not whole[rows:].any()


def test_both_even_ranks_as_before():
    weight = torch.ones(5 * 64, 8)
    assert embedding(1, 2, 5 * 64, weight).weight.shape[0] == 160
    assert embedding(3, 4, 5 * 64, weight).weight.shape[0] == 80


def shared_width(ranks):
    """Width of the shared expert that the MoE block builds at ``ranks``."""
    config = SimpleNamespace(
        routed_scaling_factor=1.0,
        n_routed_experts=6,
        n_shared_experts=1,
        hidden_act="silu",
        hidden_size=16,
        topk_method="greedy",
        swiglu_limit=10.0,
        moe_intermediate_size=2048,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        n_group=1,
        topk_group=1,
        scoring_func="sigmoid",
    )
    parallel = SimpleNamespace(
        use_sequence_parallel_moe=False,
        eplb_config=SimpleNamespace(num_redundant_experts=0),
        enable_eplb=False,
    )
    group = SimpleNamespace(
        device_group=SimpleNamespace(size=lambda: 1), rank_in_group=0
    )
    gate = torch.nn.Identity()
    gate.out_dtype = torch.float32
    seen = {}

    def mlp(**kwargs):
        seen.update(kwargs)
        return torch.nn.Identity()

    with (
        mock.patch.object(glm, "get_tensor_model_parallel_world_size", lambda: ranks),
        mock.patch.object(glm, "get_tensor_model_parallel_rank", lambda: 0),
        mock.patch.object(glm, "get_ep_group", lambda: group),
        mock.patch.object(glm, "_get_moe_router_dtype", lambda _: None),
        mock.patch.object(glm, "GateLinear", lambda *_, **__: gate),
        mock.patch.object(glm, "resolve_layer_fused_shared_expert", lambda *_: False),
        mock.patch.object(glm, "FusedMoEFactory", lambda **_: torch.nn.Identity()),
        mock.patch.object(glm, "Glm5NextMLP", mlp),
    ):
        glm.Glm5NextMoE(config, parallel)
    return seen["intermediate_size"]


def test_shared_expert_is_2112_at_three_ranks():
    assert shared_width(3) == 2112


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_both_shared_expert_as_before(ranks):
    assert shared_width(ranks) == 2048


def run_kernel(heads):
    """(heads that FlashInfer saw, whether each head got its own query back)."""
    seen = []

    def kernel(*, query, out, **_):
        seen.append(query.shape[2])
        assert query.shape[2] == out.shape[2]
        return query[..., :512] * 2

    layer = SimpleNamespace(
        num_heads=heads,
        kv_lora_rank=512,
        qk_nope_head_dim=256,
        qk_rope_head_dim=0,
        scale=1.0,
        kv_scale_format="arbitrary_fp32",
        _workspace_buffer=torch.zeros(1),
    )
    q = torch.randn(5, heads, 512)
    with mock.patch.object(
        flashinfer_utils, "flashinfer_trtllm_batch_decode_with_kv_cache_mla", kernel
    ):
        out = sm120.FlashInferMLASparseSM120Impl._run_mqa_kernel(
            layer,
            q,
            torch.zeros(1, 64, 656, dtype=torch.uint8),
            torch.zeros(5, 2176, dtype=torch.int32),
        )
    assert out.shape == (5, heads, 512)
    return seen[0], torch.equal(out, 2 * q)


def test_22_heads_run_as_32():
    assert run_kernel(22) == (32, True)


@pytest.mark.parametrize("heads", [16, 32, 64])
def test_both_other_head_counts_as_before(heads):
    assert run_kernel(heads) == (heads, True)


def test_both_a_padded_query_head_changes_no_other():
    # Attention treats heads apart: the assumption behind running 22 as 32.
    q, k = torch.randn(4, 22, 16), torch.randn(9, 16)

    def attend(query):
        return torch.softmax(query @ k.T, -1) @ k

    padded = attend(F.pad(q, (0, 0, 0, 10)))[:, :22]
    torch.testing.assert_close(padded, attend(q))
