"""Padded checkpoints through vLLM's own parallel layers, three ranks in turn: the sum
of what the ranks give is what one rank gives without padding."""

import contextlib
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the field's name
from vllm.model_executor import parameter
from vllm.model_executor.layers import linear
from vllm.model_executor.model_loader import padded_heads

RANKS, HIDDEN, DIM = 3, 32, 8

TEXT = SimpleNamespace(
    model_type="glm5_next_text",
    layer_types=["linear_attention", "deepseek_sparse_attention"],
    linear_num_heads=6,
    linear_head_dim=DIM,
    num_attention_heads=6,
    qk_nope_head_dim=DIM,
    qk_rope_head_dim=0,
    v_head_dim=DIM,
    moe_intermediate_size=64,
    n_shared_experts=1,
)
HEADS = 4  # of the checkpoint


@contextlib.contextmanager
def rank(number, ranks=RANKS):
    names = {
        "get_tensor_model_parallel_rank": lambda: number,
        "get_tensor_model_parallel_world_size": lambda: ranks,
    }
    with contextlib.ExitStack() as stack:
        for module in (linear, parameter, padded_heads):
            for name, value in names.items():
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, value))
        yield


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def padded(tensors, config=TEXT):
    with rank(0):
        return dict(padded_heads.pad_heads(tensors.items(), config))


def column(weight):
    made = linear.ColumnParallelLinear(
        weight.shape[1], weight.shape[0], bias=False, params_dtype=torch.float32
    )
    made.weight.weight_loader(made.weight, weight)
    return made.weight


def row(weight):
    made = linear.RowParallelLinear(
        weight.shape[1],
        weight.shape[0],
        bias=False,
        params_dtype=torch.float32,
        reduce_results=False,
    )
    made.weight.weight_loader(made.weight, weight)
    return made.weight


def heads_op(x):
    """Something that mixes inside a head only, as attention does."""
    per_head = x.unflatten(-1, (-1, DIM))
    return torch.softmax(per_head, -1).mul(per_head).flatten(-2)


def test_attention_over_three_ranks_is_attention_over_one():
    q = random(HEADS * DIM, HIDDEN)
    o = random(HIDDEN, HEADS * DIM)
    x = random(5, HIDDEN)
    want = F.linear(heads_op(F.linear(x, q)), o)
    name = "model.language_model.layers.0.self_attn.{}.weight"
    got = padded({name.format("q_proj"): q, name.format("o_proj"): o})
    q, o = got.values()
    total = 0
    for number in range(RANKS):
        with rank(number):
            total = total + F.linear(heads_op(F.linear(x, column(q))), row(o))
    torch.testing.assert_close(total, want)


def test_shared_expert_over_three_ranks_is_over_one():
    gate, up, down = random(64, HIDDEN), random(64, HIDDEN) * 2, random(HIDDEN, 64)
    x = random(5, HIDDEN)
    want = F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)
    name = "model.language_model.layers.3.mlp.shared_experts.{}.weight"
    parts = {"gate_proj": gate, "up_proj": up, "down_proj": down}
    got = padded({name.format(part): w for part, w in parts.items()})
    gate, up, down = got.values()
    assert gate.shape[0] == down.shape[1] == 192
    total = 0
    for number in range(RANKS):
        with rank(number):
            merged = linear.MergedColumnParallelLinear(
                HIDDEN, [192, 192], bias=False, params_dtype=torch.float32
            )
            merged.weight.weight_loader(merged.weight, gate, 0)
            merged.weight.weight_loader(merged.weight, up, 1)
            g, u = F.linear(x, merged.weight).chunk(2, -1)
            total = total + F.linear(F.silu(g) * u, row(down))
    torch.testing.assert_close(total, want)


@pytest.mark.parametrize(
    ("name", "shape", "want"),
    [
        ("layers.0.self_attn.A_log", (4,), (6,)),
        ("layers.0.self_attn.dt_bias", (32,), (48,)),
        ("layers.0.self_attn.b_proj.weight", (4, 32), (6, 32)),
        ("layers.0.self_attn.k_conv1d.weight", (32, 1, 4), (48, 1, 4)),
        ("layers.0.self_attn.f_a_proj.weight", (8, 32), (8, 32)),
        ("layers.0.self_attn.o_norm.weight", (8,), (8,)),
        ("layers.1.self_attn.q_b_proj.weight", (32, 16), (48, 16)),
        ("layers.1.self_attn.kv_b_proj.weight", (64, 16), (96, 16)),
        ("layers.1.self_attn.q_a_proj.weight", (16, 32), (16, 32)),
        ("layers.1.self_attn.o_proj.weight", (32, 32), (32, 48)),
        ("layers.1.self_attn.indexer.wq_b.weight", (64, 16), (64, 16)),
        ("layers.5.self_attn.q_b_proj.weight", (32, 16), (48, 16)),
        ("layers.3.mlp.experts.0.gate_proj.suh", (32,), (32,)),
        ("model.visual.blocks.0.attn.qkv.weight", (48, 16), (48, 16)),
    ],
)
def test_lengths(name, shape, want):
    (got,) = padded({f"model.language_model.{name}": torch.ones(shape)}).values()
    assert tuple(got.shape) == want
    assert got.sum() == torch.ones(shape).sum()  # only zeros were added
    assert torch.equal(got[tuple(slice(0, n) for n in shape)], torch.ones(shape))


def test_the_drafter_gets_whole_kv_groups():
    config = SimpleNamespace(
        model_type="qwen3", num_attention_heads=36, num_key_value_heads=9, head_dim=DIM
    )
    got = padded(
        {
            "layers.0.self_attn.q_proj.weight": torch.ones(32 * DIM, HIDDEN),
            "layers.0.self_attn.v_proj.weight": torch.ones(8 * DIM, HIDDEN),
            "layers.0.self_attn.o_proj.weight": torch.ones(HIDDEN, 32 * DIM),
            "layers.0.self_attn.q_norm.weight": torch.ones(DIM),
        },
        config,
    )
    shapes = [tuple(tensor.shape) for tensor in got.values()]
    assert shapes == [(36 * DIM, HIDDEN), (9 * DIM, HIDDEN), (HIDDEN, 36 * DIM), (DIM,)]


def test_a_longer_tensor_is_refused():
    with pytest.raises(ValueError, match="is longer than 48"):
        padded({"layers.0.self_attn.q_proj.weight": torch.ones(56, HIDDEN)})


def test_nothing_is_copied_where_heads_divide():
    same = SimpleNamespace(**{**vars(TEXT), "linear_num_heads": HEADS})
    q = torch.ones(HEADS * DIM, HIDDEN)
    (got,) = padded({"layers.0.self_attn.q_proj.weight": q}, same).values()
    assert got is q
