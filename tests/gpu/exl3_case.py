"""Random EXL3 layers and their float64 answers, for the GPU tests and the benchmark."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from vllm_exl3 import format as exl3
from vllm_exl3 import kernel_file
from vllm_exl3.cuda import CudaExperts
from vllm_exl3.schema import Rate
from vllm_exl3.tables import Codebook

MCG4 = Rate(4, Codebook.MCG)
HIDDEN, WIDTH, EXPERTS, TOP_K = 4096, 1024, 288, 8


def signs(*shape: int, scale: float) -> Tensor:
    """Scales of the real checkpoint's kind: one size, random signs."""
    flips = torch.randint(0, 2, shape, device="cuda") * 2 - 1
    return (flips * scale).half()


def words(*shape: int) -> Tensor:
    return torch.randint(-32768, 32768, shape, dtype=torch.int16, device="cuda")


def make_experts(
    experts: int = EXPERTS, hidden: int = HIDDEN, width: int = WIDTH, seed: int = 0
) -> CudaExperts:
    """Experts whose weights have a standard deviation of about 1/sqrt(in)."""
    torch.manual_seed(seed)
    gain = 1.24
    weights = [
        words(experts, 2, hidden // 16, width // 16, 64),
        signs(experts, 2, hidden, scale=1 / (gain * hidden**0.5)),
        signs(experts, 2, width, scale=1.0),
        words(experts, width // 16, hidden // 16, 64),
        signs(experts, width, scale=1 / (gain * width**0.5)),
        signs(experts, hidden, scale=1.0),
    ]
    return CudaExperts.of_weights(weights, MCG4, TOP_K, kernel_file.load())


def make_call(
    tokens: int,
    dtype: torch.dtype = torch.float16,
    experts: int = EXPERTS,
    seed: int = 1,
    hidden: int = HIDDEN,
) -> tuple[Tensor, Tensor, Tensor]:
    """(x, weights, ids): normal rows, distinct choices, weights that sum to 1."""
    torch.manual_seed(seed)
    x = torch.randn(tokens, hidden, device="cuda").to(dtype)
    scores = torch.rand(tokens, experts, device="cuda")
    weights, ids = scores.topk(TOP_K, dim=-1)
    return x, weights / weights.sum(-1, keepdim=True), ids.int()


def dense(experts: CudaExperts, expert: int, index: int) -> Tensor:
    """The float64 weight of gate (0), up (1) or down (2)."""
    side = experts.weights[:3] if index < 2 else experts.weights[3:]
    parts = [t[expert, index] if index < 2 else t[expert] for t in side]
    trellis, suh, svh = parts
    inner = exl3.decode_trellis(trellis, experts.rate.codebook).double()
    turn = exl3._hadamard(inner.device).double()
    rows, columns = inner.shape
    inner = (turn @ inner.view(-1, 128, columns)).view(rows, columns)
    inner = (inner.view(rows, -1, 128) @ turn).view(rows, columns)
    return suh.double()[:, None] * inner * svh.double()[None, :]


def answer(
    experts: CudaExperts, x: Tensor, weights: Tensor, ids: Tensor, limit: float = 0.0
) -> Tensor:
    """The routed sum in float64."""
    total = torch.zeros(x.shape, dtype=torch.float64, device="cuda")
    for expert in torch.unique(ids).tolist():
        if not 0 <= expert < experts.shape.experts:
            continue
        token, slot = torch.where(ids == expert)
        rows = x[token].double()
        gate, up = rows @ dense(experts, expert, 0), rows @ dense(experts, expert, 1)
        if limit:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        out = (torch.nn.functional.silu(gate) * up) @ dense(experts, expert, 2)
        total.index_add_(0, token, out * weights[token, slot, None].double())
    return total


def error(out: Tensor, wanted: Tensor) -> float:
    """The norm of the difference over the norm of what is wanted; NaN is infinite."""
    value = float((out.double() - wanted).norm() / wanted.norm())
    return float("inf") if math.isnan(value) else value
