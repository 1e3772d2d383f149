"""The choice of kernels: every token in one pass, nothing skipped, scratch bounded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_exl3 import dispatch
from vllm_exl3.dispatch import Kernels, Limits, Pass, Shape, Tier

GLM = Shape(experts=288, top_k=8, hidden=4096, width=1024)
OWN = Limits()
THEIRS = Limits(kernels=Kernels.EXLLAMAV3)


@pytest.mark.parametrize(
    ("tokens", "tiers"),
    [
        (0, []),
        (1, [Tier.COOP]),
        (2, [Tier.COOP]),
        (3, [Tier.GROUPED]),
        (512, [Tier.GROUPED]),
        (4640, [Tier.GROUPED]),
        (7168, [Tier.GROUPED] * 2),
    ],
)
def test_tiers_by_tokens(tokens: int, tiers: list[Tier]) -> None:
    assert [p.tier for p in dispatch.plan(tokens, GLM, OWN)] == tiers


@given(
    st.integers(1, 20000),
    st.sampled_from([OWN, THEIRS, replace(OWN, pass_tokens=100, coop_tokens=32)]),
)
def test_passes_cover_every_token_once(tokens: int, limits: Limits) -> None:
    at = 0
    for step in dispatch.plan(tokens, GLM, limits):
        assert step.start == at
        assert step.tokens > 0
        at += step.tokens
    assert at == tokens


def test_long_calls_are_cut_evenly() -> None:
    assert dispatch.cut(4640, 4640) == [(0, 4640)]
    assert dispatch.cut(4641, 4640) == [(0, 2320), (2320, 2321)]
    sizes = [p.tokens for p in dispatch.plan(7168, GLM, OWN)]
    assert sizes == [3584] * 2


def test_the_cooperative_kernels_slots_are_not_exceeded() -> None:
    wide = replace(OWN, coop_tokens=1000)
    assert dispatch.plan(32, GLM, wide)[0].tier is Tier.COOP
    assert dispatch.plan(33, GLM, wide)[0].tier is Tier.GROUPED
    many = replace(GLM, top_k=16)
    assert dispatch.plan(17, many, wide)[0].tier is Tier.GROUPED


def test_fat_experts_are_dequantised_apart() -> None:
    counts = [7168] + [129] + [128] + [0] * 285
    (step,) = dispatch.plan(7168, GLM, THEIRS, counts=counts)
    assert step == Pass(Tier.FUSED, 0, 7168, rows=128, fat=(0, 1))
    dispatch.check_nothing_skipped(step, counts)


def test_without_counts_no_expert_can_overflow() -> None:
    steps = dispatch.plan(1000, GLM, THEIRS, capturing=True)
    assert all(s.tokens <= s.rows and s.fat == () for s in steps)
    worst = [max(s.tokens for s in steps)] * GLM.experts
    for step in steps:
        dispatch.check_nothing_skipped(step, worst)


def test_a_skipped_expert_is_an_assertion() -> None:
    step = Pass(Tier.FUSED, 0, 500, rows=128, fat=(2,))
    with pytest.raises(AssertionError, match=r"would skip experts \[0\]"):
        dispatch.check_nothing_skipped(step, [129, 128, 400])


def test_a_captured_graph_must_not_know_the_routing() -> None:
    with pytest.raises(AssertionError, match="captured graph"):
        dispatch.plan(500, GLM, THEIRS, counts=[1] * 288, capturing=True)


@pytest.mark.parametrize(
    ("tokens", "tile"),
    [(33, 16), (576, 16), (577, 32), (865, 64), (4608, 64), (7168, 128)],
)
def test_row_tiles_follow_the_mean_share(tokens: int, tile: int) -> None:
    assert dispatch.row_tile(tokens, GLM) == tile


def test_scratch_is_bounded_however_long_the_call() -> None:
    most = dispatch.scratch_bytes(10**6, GLM, OWN)
    assert most == dispatch.scratch_bytes(4640, GLM, OWN)
    # 37,120 rows of 2 x 4096 and 2 x 1024 halves, three tables; 10.8 MB for COOP.
    rows = 37_120
    grouped = rows * (2 * 8192 + 2 * 2048) + 3 * 4 * rows + 2 * 1280
    assert most == grouped + 10_764_812
    assert round(most / 2**30, 2) == 0.72
    assert dispatch.scratch_bytes(512, GLM, OWN) < most / 7
    theirs = dispatch.scratch_bytes(10**6, GLM, THEIRS)
    assert theirs == dispatch.coop_bytes(GLM) + 4 * 6 * 128 * 5120 + 6 * 4096 * 1024
    assert dispatch.scratch_report(4608, GLM, OWN) == (
        "EXL3 scratch of this rank: 0.71 GiB, for steps of 4608 tokens"
    )
