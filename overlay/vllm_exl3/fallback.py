"""exllamav3's own kernels for every size: ``exl3_moe``, and dequantised fat experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vllm_exl3 import dispatch, reference
from vllm_exl3.dispatch import Kernels, Limits, Pass, Shape

if TYPE_CHECKING:
    from vllm_exl3.cuda import CudaExperts


def local_ids(experts: CudaExperts, ids: Tensor) -> Tensor:
    """int64 [tokens · k] expert slots of this rank; ``experts`` for other ranks'."""
    flat = ids.flatten().long()
    count = experts.shape.experts
    if experts.expert_map is not None:
        flat = experts.expert_map.long()[flat]
    return torch.where((flat >= 0) & (flat < count), flat, count)


def counts(
    experts: CudaExperts, ids: Tensor, limits: Limits, *, capturing: bool
) -> list[int] | None:
    """The rows of each expert, where a plan of exllamav3's kernels needs them.

    This waits for the device, so it is asked for long eager calls only.
    """
    if limits.kernels is Kernels.OWN or capturing or len(ids) <= limits.fused_rows:
        return None
    values: list[int] = rows_of(experts, local_ids(experts, ids))[:-1].tolist()
    return values


def rows_of(experts: CudaExperts, flat: Tensor) -> Tensor:
    """The rows of each expert, int64 [experts + 1]; the last are other ranks'.

    Not ``torch.bincount``, which waits for the device and cannot be captured.
    """
    found = torch.zeros(
        experts.shape.experts + 1, dtype=torch.int64, device=flat.device
    )
    return found.scatter_add_(0, flat, torch.ones_like(flat))


def run(  # noqa: PLR0913, PLR0917 (one call's tensors)
    experts: CudaExperts,
    step: Pass,
    arena: Tensor,
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    out: Tensor,
) -> None:
    """One FUSED pass and, for its fat experts, RECONSTRUCT; into ``out``."""
    half = x.to(torch.float16)
    flat = local_ids(experts, ids)
    order = torch.argsort(flat)
    found = rows_of(experts, flat)
    if step.fat:
        dispatch.check_nothing_skipped(step, found[:-1].tolist())
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    token = order // ids.shape[1]
    gains = weights.flatten()[order].to(torch.float16)
    fused(experts, step.rows, arena, half, (found, token, gains), total)
    for expert in step.fat:
        rows = torch.where(flat[order] == expert)[0]
        part = dense_expert(experts, expert, half[token[rows]])
        total.index_add_(0, token[rows], part * gains[rows, None].float())
    out.copy_(total)


def fused(  # noqa: PLR0913, PLR0917 (one call's tensors)
    experts: CudaExperts,
    rows: int,
    arena: Tensor,
    x: Tensor,
    routing: tuple[Tensor, Tensor, Tensor],
    total: Tensor,
) -> None:
    """``exl3_moe`` over every expert of at most ``rows`` rows, added to ``total``.

    ``routing`` is (rows of each expert int64 [experts + 1], token of each row int64,
    weight of each row fp16), rows sorted by expert.
    """
    scratch = _fused_scratch(experts, arena, rows)
    bits, t = float(experts.rate.bits), experts.tables
    mcg, mul1 = experts.rate.codebook == 1, experts.rate.codebook == 2
    experts.kernels.exl3_moe(
        x, total, *routing, *scratch, 0, bits, bits, bits,
        t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8],
        mcg, mul1, mcg, mul1, mcg, mul1, experts.swiglu_limit, -1,
        None, None, 1, rows, 16,
    )  # fmt: skip


def _fused_scratch(experts: CudaExperts, arena: Tensor, rows: int) -> list[Tensor]:
    shape: Shape = experts.shape
    groups = experts.kernels.exl3_moe_max_concurrency(torch.cuda.current_device())
    parts, at = [], 0
    for columns in (shape.hidden, shape.hidden, shape.width, shape.width):
        size = 2 * groups * rows * columns
        part = arena[at : at + size].view(torch.float16)
        parts.append(part.view(groups, rows, columns))
        at += size
    return parts


def dense_expert(experts: CudaExperts, expert: int, x: Tensor) -> Tensor:
    """One expert's float32 output for fp16 x, from dequantised weights."""
    shape, t = experts.shape, experts.tables
    mcg, mul1 = experts.rate.codebook == 1, experts.rate.codebook == 2
    bits = float(experts.rate.bits)

    def weight(first: int, rows: int, columns: int) -> Tensor:
        dense = torch.empty(1, rows, columns, dtype=torch.float16, device=x.device)
        ptrs = [t[first + i, expert : expert + 1].contiguous() for i in range(3)]
        experts.kernels.reconstruct_had_batch(dense, *ptrs, bits, mcg, mul1)
        return dense[0]

    gate = x @ weight(0, shape.hidden, shape.width)
    up = x @ weight(3, shape.hidden, shape.width)
    act = reference.swiglu(gate.float(), up.float(), experts.swiglu_limit or None)
    return (act.half() @ weight(6, shape.width, shape.hidden)).float()
