"""The CUDA kernels against float64 and exllamav3's own decoder; needs a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from vllm_exl3 import cuda, dispatch, fallback, kernel_file
from vllm_exl3 import format as exl3
from vllm_exl3.dispatch import Kernels, Limits, Tier
from vllm_exl3.tables import HALF_RATES, Codebook

from tests.gpu import exl3_case as case

pytestmark = pytest.mark.gpu
BOUND = 2e-3
TOKENS = [1, 2, 5, 8, 17, 32, 33, 64, 130, 512, 2048, 4608, 7168]
RATES = [(k, cb) for cb in Codebook for k in range(1, 9)]
RATES += [(k, Codebook.MUL1) for k in HALF_RATES]


@pytest.fixture(scope="module")
def experts() -> cuda.CudaExperts:
    made = case.make_experts()
    made.reserve(7168)
    return made


@pytest.fixture
def tiers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Call to force limits for the test."""

    def force(limits: Limits) -> None:
        monkeypatch.setattr(cuda, "limits", lambda: limits)

    return force


def own(coop_tokens: int) -> Limits:
    return replace(cuda.limits(), coop_tokens=coop_tokens)


@pytest.mark.parametrize(("bits", "codebook"), RATES)
def test_decoding_is_bit_exact(bits: float, codebook: Codebook) -> None:
    trellis = case.words(32, 48, int(16 * bits))
    out = torch.full((512, 768), float("nan"), dtype=torch.float16, device="cuda")
    mcg, mul1 = codebook is Codebook.MCG, codebook is Codebook.MUL1
    kernel_file.load().reconstruct(out, trellis, float(bits), mcg, mul1)
    assert torch.equal(out, exl3.decode_trellis(trellis, codebook))


@pytest.mark.parametrize("tokens", TOKENS)
def test_grouped_against_float64(
    experts: cuda.CudaExperts, tokens: int, tiers: Any
) -> None:
    tiers(own(0))
    x, weights, ids = case.make_call(tokens)
    out = experts.forward(x, weights, ids)
    assert case.error(out, case.answer(experts, x, weights, ids)) <= BOUND


@pytest.mark.parametrize(("hidden", "width"), [(256, 128), (256, 256), (4096, 512)])
@pytest.mark.parametrize(
    ("tokens", "coop_tokens"), [(2, 32), (3, 0), (62, 0), (900, 0)]
)
def test_other_widths(
    hidden: int, width: int, tokens: int, coop_tokens: int, tiers: Any
) -> None:
    """What two, four and eight ranks hold, and shorter loops than the pipeline."""
    tiers(own(coop_tokens))
    small = case.make_experts(16, hidden, width)
    small.reserve(900)
    x, weights, ids = case.make_call(tokens, experts=16, hidden=hidden)
    out = small.forward(x, weights, ids)
    assert case.error(out, case.answer(small, x, weights, ids)) <= BOUND


@pytest.mark.parametrize("tile", dispatch.ROW_TILES)
def test_every_row_tile(experts: cuda.CudaExperts, tile: int) -> None:
    x, weights, ids = case.make_call(300)
    ids[:, 0] = 7  # one expert with 300 rows, several tiles of any size
    ids[:, 1:][ids[:, 1:] == 7] = 8
    out = torch.full_like(x, float("nan"))
    call = (x, ids, weights, None, out, experts.weights, cuda.SCRATCH.arena)
    experts.kernels.moe_grouped(*call, 4, 1, 0.0, tile)
    assert case.error(out, case.answer(experts, x, weights, ids)) <= BOUND


@pytest.mark.parametrize("tokens", [1, 2, 8, 31, 32])
def test_coop_against_float64(
    experts: cuda.CudaExperts, tokens: int, tiers: Any
) -> None:
    tiers(own(32))
    x, weights, ids = case.make_call(tokens)
    out = experts.forward(x, weights, ids)
    assert case.error(out, case.answer(experts, x, weights, ids)) <= BOUND


@pytest.mark.parametrize("tokens", [1, 40, 600, 7168])
def test_exllamav3_alone_against_float64(
    experts: cuda.CudaExperts, tokens: int, tiers: Any
) -> None:
    limits = replace(cuda.limits(), coop_tokens=0, kernels=Kernels.EXLLAMAV3)
    tiers(limits)
    experts.reserve(7168)
    x, weights, ids = case.make_call(tokens)
    if tokens == 7168:
        ids[:, 0] = 3
        ids[:, 1:][ids[:, 1:] == 3] = 4
    out = experts.forward(x, weights, ids)
    assert case.error(out, case.answer(experts, x, weights, ids)) <= BOUND


@pytest.mark.parametrize("tokens", [3, 200, 4608])
@pytest.mark.parametrize("coop_tokens", [0, 4])
def test_all_tokens_to_the_same_experts(
    experts: cuda.CudaExperts, tokens: int, coop_tokens: int, tiers: Any
) -> None:
    tiers(own(coop_tokens))
    x, weights, ids = case.make_call(tokens)
    ids[:] = torch.arange(8, device="cuda", dtype=torch.int32) * 31
    out = experts.forward(x, weights, ids)
    assert case.error(out, case.answer(experts, x, weights, ids)) <= BOUND
    ids[:] = 287  # not a router's choice, but nothing may be lost
    out = experts.forward(x, weights, ids)
    assert case.error(out, case.answer(experts, x, weights, ids)) <= BOUND


@pytest.mark.parametrize("tokens", [2, 32, 300])
@pytest.mark.parametrize("coop_tokens", [0, 32])
def test_a_small_swiglu_limit(
    experts: cuda.CudaExperts, tokens: int, coop_tokens: int, tiers: Any
) -> None:
    tiers(own(coop_tokens))
    x, weights, ids = case.make_call(tokens)
    clamped = replace(experts, swiglu_limit=0.5)
    out = clamped.forward(x, weights, ids)
    assert case.error(out, case.answer(experts, x, weights, ids, 0.5)) <= BOUND
    assert case.error(out, case.answer(experts, x, weights, ids)) > 0.05


@pytest.mark.parametrize("tokens", [8, 100])
@pytest.mark.parametrize("coop_tokens", [0, 32])
def test_expert_parallel_parts_add_up(
    experts: cuda.CudaExperts, tokens: int, coop_tokens: int, tiers: Any
) -> None:
    tiers(own(coop_tokens))
    x, weights, ids = case.make_call(tokens)
    total = torch.zeros(x.shape, dtype=torch.float64, device="cuda")
    for rank in (0, 1, 2):
        held = slice(96 * rank, 96 * rank + 96)
        part = cuda.CudaExperts.of_weights(
            [w[held] for w in experts.weights], case.MCG4, 8, experts.kernels
        )
        mapping = torch.full((288,), -1, dtype=torch.int32, device="cuda")
        mapping[held] = torch.arange(96, dtype=torch.int32, device="cuda")
        part.expert_map = mapping
        total += part.forward(x, weights, ids).double()
    assert case.error(total, case.answer(experts, x, weights, ids)) <= BOUND


@pytest.mark.parametrize("tokens", [1, 8, 32, 128, 512, 4608])
@pytest.mark.parametrize("coop_tokens", [0, 32])
def test_graph_capture_and_replay(
    experts: cuda.CudaExperts, tokens: int, coop_tokens: int, tiers: Any
) -> None:
    tiers(own(coop_tokens))
    x, weights, ids = case.make_call(tokens)
    experts.forward(x, weights, ids)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = experts.forward(x, weights, ids)
    for seed in (5, 6):
        fresh = case.make_call(tokens, seed=seed)
        for buffer, value in zip((x, weights, ids), fresh, strict=True):
            buffer.copy_(value)
        out.fill_(float("nan"))
        graph.replay()
        assert case.error(out, case.answer(experts, *fresh)) <= BOUND


@pytest.mark.parametrize("tokens", [33, 128, 300])
def test_exllamav3_alone_under_capture(
    experts: cuda.CudaExperts, tokens: int, tiers: Any
) -> None:
    """Nothing waits for the device, and a replay routes anew, all to one expert too."""
    tiers(replace(cuda.limits(), coop_tokens=0, kernels=Kernels.EXLLAMAV3))
    experts.reserve(512)
    x, weights, ids = case.make_call(tokens)
    experts.forward(x, weights, ids)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = experts.forward(x, weights, ids)
    skewed = torch.arange(8, device="cuda", dtype=torch.int32).expand(tokens, 8)
    for chosen in (case.make_call(tokens, seed=9)[2], skewed):
        ids.copy_(chosen)
        out.fill_(float("nan"))
        graph.replay()
        assert case.error(out, case.answer(experts, x, weights, ids)) <= BOUND


@pytest.mark.parametrize("tokens", [8, 512, 7168])
def test_the_grouped_tier_repeats_bit_for_bit(
    experts: cuda.CudaExperts, tokens: int, tiers: Any
) -> None:
    tiers(own(0))
    call = case.make_call(tokens)
    first = experts.forward(*call)
    assert all(torch.equal(first, experts.forward(*call)) for _ in range(5))


def test_bf16_and_int64_ids(experts: cuda.CudaExperts) -> None:
    for tokens in (4, 700):
        x, weights, ids = case.make_call(tokens, torch.bfloat16)
        out = experts.forward(x, weights, ids.long())
        assert out.dtype == torch.bfloat16
        wanted = case.answer(experts, x, weights, ids)
        # The result's own rounding to bf16 is 1.1e-3 of this.
        assert case.error(out, wanted) <= 2.5e-3


def test_no_tokens(experts: cuda.CudaExperts) -> None:
    x, weights, ids = case.make_call(1)
    assert experts.forward(x[:0], weights[:0], ids[:0]).shape == (0, case.HIDDEN)


def test_scratch_is_what_dispatch_says(experts: cuda.CudaExperts) -> None:
    """One byte less than the plan's figure is refused, so the figure is exact."""
    x, weights, ids = case.make_call(100)
    size = dispatch.grouped_bytes(100, experts.shape)
    for bytes_, works in ((size, True), (size - 1, False)):
        arena = torch.empty(bytes_, dtype=torch.uint8, device="cuda")
        call = (x, ids, weights, None, torch.empty_like(x), experts.weights, arena)
        if works:
            experts.kernels.moe_grouped(*call, 4, 1, 0.0, 16)
            continue
        with pytest.raises(RuntimeError, match="too small"):
            experts.kernels.moe_grouped(*call, 4, 1, 0.0, 16)
    coop = sum(t.nbytes for t in cuda._coop_buffers(experts.shape, x.device))
    assert coop == dispatch.coop_bytes(experts.shape)


def test_wrong_tensors_are_refused(experts: cuda.CudaExperts) -> None:
    x, weights, ids = case.make_call(4)
    with pytest.raises(RuntimeError, match="weights has shape"):
        experts.forward(x, weights[:, :7], ids)
    with pytest.raises(RuntimeError, match="x is Float"):
        experts.forward(x.float(), weights, ids)
    call = (x, ids, weights, None, torch.empty_like(x), experts.weights)
    with pytest.raises(RuntimeError, match="built for K = 4"):
        experts.kernels.moe_grouped(*call, cuda.SCRATCH.arena, 3, 1, 0.0, 16)


@pytest.mark.parametrize("rows", [1, 5, 40, 200, 5000])
def test_dense_layers_against_float64(experts: cuda.CudaExperts, rows: int) -> None:
    trellis, suh, svh = (w[3, 0] for w in experts.weights[:3])
    up = tuple(w[3, 1] for w in experts.weights[:3])
    layer = cuda.CudaLinear([(trellis, suh, svh), up], case.MCG4, experts.kernels)
    x = torch.randn(rows, case.HIDDEN, device="cuda").half()
    wanted = torch.cat([x.double() @ case.dense(experts, 3, i) for i in (0, 1)], dim=-1)
    assert case.error(layer.forward(x), wanted) <= BOUND


def test_the_plan_counts_as_the_device_does(experts: cuda.CudaExperts) -> None:
    _, _, ids = case.make_call(500)
    limits = replace(cuda.limits(), kernels=Kernels.EXLLAMAV3)
    counts = fallback.counts(experts, ids, limits, capturing=False)
    assert counts is not None
    assert sum(counts) == 4000
    assert (
        dispatch.plan(500, experts.shape, limits, counts=counts)[0].tier is Tier.FUSED
    )
