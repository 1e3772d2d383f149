"""Weights into EXL3: a Viterbi search over the tail-biting trellis, in plain torch.

Small and exact rather than fast: a pass over the 65,536 states of one tile's 256
positions costs tens of milliseconds on one core, so it is for tiny models and tests;
on a GPU it does a few thousand tiles a minute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_exl3 import format as exl3
from vllm_exl3 import tables
from vllm_exl3.errors import Exl3Error
from vllm_exl3.format import Exl3Linear
from vllm_exl3.schema import Rate
from vllm_exl3.tables import STATES, TILE, TILE_VALUES

STATE_BITS = 16
# The source's spread over the codebook's. The codebook is bounded and a Gaussian is
# not: the finer the steps, the more the tails cost. Found by search at K = 1...8.
GAIN_COARSE, GAIN_FINE = 1.0, 0.85
# Tiles searched at once: on a CPU what stays in its cache.
CPU_BATCH, GPU_BATCH = 2, 128


@dataclass(frozen=True)
class Trellis:
    """The code: values of the states, and the new bits at each of the positions."""

    values: Tensor
    steps: tuple[int, ...]

    @classmethod
    def of(cls, rate: Rate, device: torch.device) -> Trellis:
        """The trellis of a rate."""
        values = exl3.codebook_tensor(rate.codebook, device).float()
        ends = tables.end_bits(rate.bits)
        steps = [int(e) for e in ends[:1]] + [int(d) for d in ends[1:] - ends[:-1]]
        return cls(values, tuple(steps))

    @property
    def spread(self) -> float:
        """The standard deviation of its values."""
        return float(self.values.std())


def quantize_tiles(targets: Tensor, trellis: Trellis) -> Tensor:
    """The states of the best tail-biting path for each tile.

    *Shapes*: targets float32 [tiles, 256] in stream order, result int32 [tiles, 256].
    A first search from the middle of the ring finds where it is likely to close; the
    second is optimal among the paths that close there.
    """
    half = TILE_VALUES // 2
    turned = _search(targets.roll(half, dims=-1), trellis, None)
    overlap = STATE_BITS - trellis.steps[0]
    joint = turned[:, half - 1] & ((1 << overlap) - 1)
    return _search(targets, trellis, joint)


def _search(targets: Tensor, trellis: Trellis, joint: Tensor | None) -> Tensor:
    """Viterbi; ``joint`` [tiles] are the low bits that close the ring, or None."""
    values = trellis.values
    energy = values.square()
    tiles = len(targets)
    cost = torch.addcmul(energy, values, targets[:, :1], value=-2)
    if joint is not None:
        first = torch.arange(STATES, device=values.device) >> trellis.steps[0]
        cost = cost.masked_fill(first != joint[:, None], torch.inf)
    choices = []
    for position in range(1, TILE_VALUES):
        new = trellis.steps[position]
        best, choice = _cheapest(cost.view(tiles, 1 << new, -1))
        choices.append(choice)
        reached = best[..., None].expand(-1, -1, 1 << new).reshape(tiles, STATES)
        here = targets[:, position : position + 1]
        cost = torch.addcmul(reached.add_(energy), values, here, value=-2)
    return _trace(cost, choices, trellis, joint)


def _cheapest(cost: Tensor) -> tuple[Tensor, Tensor]:
    """The minimum over dimension 1, a power of two, and where it is (uint8).

    A tournament of halves: torch's own ``min`` with indices is several times slower
    on a CPU.
    """
    half = cost.shape[1] // 2
    picked = torch.zeros((), dtype=torch.uint8, device=cost.device).expand(cost.shape)
    while half:
        low, high = cost[:, :half], cost[:, half:]
        later = high < low
        cost = torch.minimum(low, high)
        picked = torch.where(later, picked[:, half:], picked[:, :half])
        picked = picked + later.to(torch.uint8) * half
        half //= 2
    return cost[:, 0], picked[:, 0]


def _trace(
    cost: Tensor, choices: list[Tensor], trellis: Trellis, joint: Tensor | None
) -> Tensor:
    """The states behind the cheapest end, last position to first."""
    if joint is not None:
        overlap = STATE_BITS - trellis.steps[0]
        low = torch.arange(STATES, device=cost.device) & ((1 << overlap) - 1)
        cost = cost.masked_fill(low != joint[:, None], torch.inf)
    state = cost.argmin(dim=1)
    path = [state]
    for position in range(TILE_VALUES - 1, 0, -1):
        new = trellis.steps[position]
        rest = state >> new
        picked = choices[position - 1].gather(1, rest[:, None])[:, 0].long()
        state = picked << (STATE_BITS - new) | rest
        path.append(state)
    return torch.stack(path[::-1], dim=1).to(torch.int32)


def quantize(
    weight: Tensor,
    rate: Rate,
    *,
    seed: int = 0,
    progress: Callable[[int], None] = lambda _: None,
) -> Exl3Linear:
    """The EXL3 layer nearest to ``weight`` float32 [in, out] that this search finds.

    Columns are brought to one size, signs are flipped at random (from ``seed``) and
    both sides rotated, which makes any weight look Gaussian to the trellis.
    ``progress`` is called with the number of tiles done. Raises ``Exl3Error`` for
    dimensions that are no multiples of 128, and for values that fp16 scales cannot
    reach.
    """
    weight = weight.float()
    rows, columns = weight.shape
    exl3.check_dimension("the weight's input", rows)
    exl3.check_dimension("the weight's output", columns)
    generator = torch.Generator().manual_seed(seed)
    left, right = (
        (torch.randint(0, 2, (n,), generator=generator) * 2 - 1).to(weight)
        for n in (rows, columns)
    )
    trellis = Trellis.of(rate, weight.device)
    spread = weight.square().mean(dim=0).sqrt()
    gain = GAIN_COARSE if rate.bits <= 2 else GAIN_FINE
    scale = torch.where(spread > 0, spread, torch.ones_like(spread)) / (
        trellis.spread * gain
    )
    svh = _fp16_scales(right * scale)
    suh = left.half()
    inner = weight * left[:, None] / svh.float()
    inner = exl3.hadamard_rows(exl3.hadamard_columns(inner))
    tiles = exl3.encode_tiles(inner).view(-1, TILE_VALUES)
    parts = []
    size = GPU_BATCH if weight.is_cuda else CPU_BATCH
    for at in range(0, len(tiles), size):
        batch = tiles[at : at + size]
        parts.append(exl3.pack_states(quantize_tiles(batch, trellis), rate.bits))
        progress(len(batch))
    packed = torch.cat(parts).view(rows // TILE, columns // TILE, -1)
    return _refit(Exl3Linear(packed, suh, svh, rate.codebook), weight)


def _fp16_scales(scales: Tensor) -> Tensor:
    """The scales as fp16; those too small for it are 1, as of a column of zeros."""
    half = scales.half()
    if not bool(half.isfinite().all()):
        raise Exl3Error(
            f"the weight has columns of size {float(scales.abs().max()):.3g}, which is "
            "NaN, infinite or beyond fp16 scales"
        )
    return torch.where(half == 0, torch.ones_like(half), half)


def _refit(layer: Exl3Linear, weight: Tensor) -> Exl3Linear:
    """The same codes with each column's scale by least squares."""
    dense = layer.dense()
    power = dense.square().sum(dim=0)
    gain = (dense * weight).sum(dim=0) / torch.where(power > 0, power, 1)
    svh = torch.where(power > 0, layer.svh.float() * gain, 0).half()
    return Exl3Linear(layer.trellis, layer.suh, svh, layer.codebook)


def relative_error(layer: Exl3Linear, weight: Tensor) -> float:
    """The mean squared error over the mean square of the weight."""
    difference = layer.dense() - weight.float()
    return float(difference.square().mean() / weight.float().square().mean())
