"""Page arithmetic: the measured numbers of the hybrid layout, and its refusals."""

import pytest
from glmspark.errors import ConfigError
from glmspark.serving.kv import (
    Drafting,
    KvKind,
    check_draft_block,
    draft_block_for,
    layout,
    state_bytes,
    target_block,
)
from glmspark.serving.topology import TOPOLOGIES, topology
from hypothesis import given
from hypothesis import strategies as st

POOL = 14 * 2**30
REQUEST = 262_144

# Measured with vLLM 0.32.0's own functions, k = 7, 14 GiB: ranks, draft block,
# in-flight tokens -> MB a block, blocks, blocks of one request of 262,144 tokens.
MEASURED = [
    ("tp2", None, 16384, 48.5, 310, 93),
    ("tp2", 2304, 16384, 36.0, 417, 97),
    ("tp2", 768, 8192, 36.0, 417, 103),
    ("tp2", 256, 8192, 36.0, 417, 129),
    ("tp4", None, 16384, 18.0, 834, None),
]


@pytest.mark.parametrize("measured", MEASURED)
def test_measured_layouts(model, dflash, measured):
    name, block, flight, mb, blocks, ids = measured
    found = layout(model, topology(name), dflash(block))
    assert round(found.bytes_per_block / 1e6, 1) == mb
    assert found.pool_blocks(POOL) == blocks
    if ids is not None:
        assert found.blocks(REQUEST, flight) == ids


def test_one_request_at_two_ranks_is_kda_mla_tail_and_draft(model, dflash):
    found = layout(model, topology("tp2"), dflash())
    kinds = [(g.kind, g.layers) for g in found.groups]
    assert kinds == [
        ("kda", 12),
        ("kda", 11),
        ("kda", 11),
        ("mla", 11),
        ("tail", 11),
        ("draft", 5),
    ]


@pytest.mark.parametrize(
    "expected",
    [
        ("tp2", 4608, 2_342_912, 768),
        ("tp3", 3328, 1_610_752, 832),
        ("tp4", 2304, 1_171_456, 768),
        ("tp4-ring", 2304, 1_171_456, 768),
    ],
)
def test_blocks_of_the_topologies(model, dflash, expected):
    name, block, state, small = expected
    found = layout(model, topology(name), dflash())
    assert (found.block_tokens, found.state_bytes) == (block, state)
    assert draft_block_for(block) == small


def test_auto_kv_halves_the_block(model):
    state = state_bytes(model, topology("tp2"), 7, 4)
    assert target_block(state, 1024) == 2304


def test_bf16_state_halves_the_recurrent_part(model, dflash):
    tp2 = topology("tp2")
    assert layout(model, tp2, dflash(), kind=KvKind(ssm_bytes=2)).state_bytes == (
        2_342_912 - 2_097_152 // 2
    )


def test_small_draft_block_buys_a_third_more_blocks(model, dflash):
    tp2 = topology("tp2")
    stock = layout(model, tp2, dflash()).pool_blocks(POOL)
    small = layout(model, tp2, dflash(768)).pool_blocks(POOL)
    assert small / stock == pytest.approx(1.345, abs=0.001)


@pytest.mark.parametrize("block", [1000, 4600, 24, 9216])
def test_draft_block_that_does_not_divide_is_refused(model, dflash, block):
    with pytest.raises(ConfigError, match=f"draft KV block {block} must divide"):
        layout(model, topology("tp2"), dflash(block))


@given(st.integers(1, 64))
def test_computed_draft_block_always_passes(times):
    block = 256 * times
    check_draft_block(draft_block_for(block), block)


@given(
    st.sampled_from(sorted(TOPOLOGIES)),
    st.integers(1, 64 * 2**30),
    st.integers(512, 40_000),
)
def test_longest_is_the_last_that_fits(model, draft, name, kv_bytes, flight):
    found = layout(model, topology(name), Drafting("dflash2", 7, draft))
    limit = 1_048_576
    longest = found.longest(kv_bytes, flight, limit)
    usable = found.pool_blocks(kv_bytes) - 1
    if longest:
        assert found.blocks(longest, flight) <= usable
        assert found.bytes_for(longest, flight) <= kv_bytes
    if longest < limit:
        assert found.blocks(longest + 1, flight) > usable


def test_no_pool_holds_nothing(model, dflash):
    assert layout(model, topology("tp2"), dflash()).longest(2**20, 9248, 100) == 0
