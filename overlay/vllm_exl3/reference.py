"""Routed experts in plain torch: the CPU path, and what the kernels are held to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from vllm_exl3.format import Exl3Linear


def swiglu(gate: Tensor, up: Tensor, limit: float | None) -> Tensor:
    """``silu(gate) * up``; a limit clamps gate from above and up on both sides.

    The clamp comes before the activation, as in vLLM.
    """
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    return functional.silu(gate) * up


def dense_experts(
    layers: Sequence[Sequence[Exl3Linear]], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The dense weights of (gate, up, down) layers.

    *Shapes*: w13 [experts, 2·intermediate, hidden], w2 [experts, hidden,
    intermediate], both in ``dtype`` and laid out for ``functional.linear``.
    """
    w13 = [torch.cat([g.dense().T, u.dense().T]).to(dtype) for g, u, _ in layers]
    w2 = [down.dense().T.to(dtype) for _, _, down in layers]
    return torch.stack(w13), torch.stack(w2)


def routed_experts(  # noqa: PLR0913, PLR0917 (the parts of one call of the layer)
    x: Tensor,
    weights: Tensor,
    ids: Tensor,
    w13: Tensor,
    w2: Tensor,
    limit: float | None = None,
) -> Tensor:
    """The sum over each token's experts, in the dtype of x, summed in float32.

    *Shapes*: x [tokens, hidden]; weights, ids [tokens, k]; ids outside the experts
    held here (w13's first dimension) add nothing: they are another rank's.
    """
    total = torch.zeros_like(x, dtype=torch.float32)
    for expert in torch.unique(ids).tolist():
        if not 0 <= expert < len(w13):
            continue
        token, slot = torch.where(ids == expert)
        gate, up = functional.linear(x[token], w13[expert]).chunk(2, dim=-1)
        out = functional.linear(swiglu(gate, up, limit), w2[expert]).float()
        total.index_add_(0, token, out * weights[token, slot, None].float())
    return total.to(x.dtype)
