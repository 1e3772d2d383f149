"""Which kernels run a call of the layer, and how much scratch it needs; pure.

Measured on an H200 (tests/gpu/RESULTS.md); the order of the tiers, not the numbers,
is what carries over to a GB10.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

# exllamav3's cooperative kernels take at most this many (token, choice) slots.
COOP_SLOTS = 256
ROW_TILES = (16, 32, 64, 128)
# (largest mean rows of an expert, row tile); beyond the last, 128.
TILE_BY_MEAN = ((16, 16), (24, 32), (128, 64))
ALIGNMENT = 256


class Tier(Enum):
    """A way to run routed experts.

    COOP: exllamav3's cooperative kernels, one block of columns for each (token,
    choice). GROUPED: this package's grouped GEMM, weights decoded in registers.
    FUSED: exllamav3's ``exl3_moe``, tiles of 16 rows. RECONSTRUCT: weights
    dequantised expert by expert, then plain GEMMs; needs counts on the host.
    """

    COOP = "coop"
    GROUPED = "grouped"
    FUSED = "fused"
    RECONSTRUCT = "reconstruct"


class Kernels(Enum):
    """Whose kernels run beyond COOP: this package's, or exllamav3's alone."""

    OWN = "own"
    EXLLAMAV3 = "exllamav3"


@dataclass(frozen=True)
class Shape:
    """One rank's layer: experts held, choices a token, dimensions in elements."""

    experts: int
    top_k: int
    hidden: int
    width: int


@dataclass(frozen=True)
class Limits:
    """Where one tier ends and the next begins.

    ``coop_tokens``: the last token count for COOP. ``pass_tokens``: tokens that one
    GROUPED pass takes, a block of 4608 and 32 of decoding; longer calls are cut.
    ``fused_rows``: rows that FUSED has scratch for. ``fused_groups``: its concurrent
    experts, a property of the device.
    """

    coop_tokens: int = 2
    pass_tokens: int = 4640
    fused_rows: int = 128
    fused_groups: int = 6
    kernels: Kernels = Kernels.OWN


@dataclass(frozen=True)
class Pass:
    """One launch over the tokens [start, start + tokens).

    ``tile`` is GROUPED's row tile. ``fat`` are the experts that FUSED leaves to
    RECONSTRUCT, each with more rows than ``rows``, its capacity.
    """

    tier: Tier
    start: int
    tokens: int
    tile: int = 0
    rows: int = 0
    fat: tuple[int, ...] = ()


def row_tile(tokens: int, shape: Shape) -> int:
    """The row tile for GROUPED by an expert's mean share of rows.

    A larger tile decodes weights less often; one that is mostly empty multiplies
    zeros.
    """
    mean = tokens * shape.top_k / shape.experts
    return next((tile for most, tile in TILE_BY_MEAN if mean <= most), 128)


def cut(tokens: int, most: int) -> list[tuple[int, int]]:
    """(start, length) of the fewest near-equal parts of at most ``most`` tokens.

    A short last part would read every expert's weights for a few rows.
    """
    parts = -(-tokens // most)
    edges = [tokens * i // parts for i in range(parts + 1)]
    return [(a, b - a) for a, b in itertools.pairwise(edges)]


def plan(
    tokens: int,
    shape: Shape,
    limits: Limits,
    *,
    counts: Sequence[int] | None = None,
    capturing: bool = False,
) -> list[Pass]:
    """The passes of one call; every (token, choice) is in exactly one of them.

    ``counts`` are the rows of each expert where the host knows them. While a CUDA
    graph is captured it must not, and passes depend on shapes alone.
    """
    if capturing and counts is not None:
        raise AssertionError("a captured graph cannot depend on this step's routing")
    if tokens <= min(limits.coop_tokens, COOP_SLOTS // shape.top_k):
        return [Pass(Tier.COOP, 0, tokens)] if tokens else []
    if limits.kernels is Kernels.OWN:
        return [
            Pass(Tier.GROUPED, at, size, tile=row_tile(size, shape))
            for at, size in cut(tokens, limits.pass_tokens)
        ]
    return _exllamav3_plan(tokens, limits, counts)


def _exllamav3_plan(
    tokens: int, limits: Limits, counts: Sequence[int] | None
) -> list[Pass]:
    """FUSED with capacity for every expert it is given; the fatter ones apart.

    Without counts a token block is cut so short that no expert can overflow: a
    token chooses an expert at most once.
    """
    rows = limits.fused_rows
    if counts is None or tokens <= rows:
        return [Pass(Tier.FUSED, *part, rows=rows) for part in cut(tokens, rows)]
    fat = tuple(e for e, count in enumerate(counts) if count > rows)
    return [Pass(Tier.FUSED, 0, tokens, rows=rows, fat=fat)]


def check_nothing_skipped(step: Pass, counts: Sequence[int]) -> None:
    """``AssertionError`` when a kernel would leave out an expert's rows silently.

    exl3_moe skips experts with more rows than its scratch holds.
    """
    if step.tier is not Tier.FUSED:
        return
    lost = [e for e, n in enumerate(counts) if n > step.rows and e not in set(step.fat)]
    if lost:
        raise AssertionError(
            f"exl3_moe would skip experts {lost}: more than {step.rows} rows"
        )


def _sum_aligned(sizes: Sequence[int]) -> int:
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)


def grouped_bytes(tokens: int, shape: Shape) -> int:
    """Scratch of a GROUPED pass, as csrc/bindings.cpp cuts it.

    Routing tables, both rotated inputs, gate and up; the down projection reuses the
    first input's place.
    """
    rows = tokens * shape.top_k
    tables = [4 * (shape.experts + 1)] * 2 + [4 * rows] * 3
    return _sum_aligned(
        [*tables, *[2 * rows * shape.hidden] * 2, *[2 * rows * shape.width] * 2]
    )


def coop_bytes(shape: Shape) -> int:
    """Scratch of COOP: its slots' rotated inputs, projections, sums and copies."""
    slots, rows = COOP_SLOTS, COOP_SLOTS // shape.top_k
    halves = slots * (2 * shape.hidden + 3 * shape.width) + rows * shape.hidden
    floats = (slots + rows) * shape.hidden
    return 2 * halves + 4 * floats + 10 * slots + 4 * counters(shape)


def counters(shape: Shape) -> int:
    """The int32 counters of COOP, all zero between calls."""
    slots, rows = COOP_SLOTS, COOP_SLOTS // shape.top_k
    work = slots * (shape.width // 128) + rows * (shape.hidden // 128)
    return work + 2 + 2 * slots + 1


def fused_bytes(shape: Shape, limits: Limits) -> int:
    """Scratch of FUSED, and of one expert's dequantised weights for RECONSTRUCT."""
    rows = limits.fused_groups * limits.fused_rows
    weights = 3 * 2 * shape.hidden * shape.width
    return 4 * rows * (shape.hidden + shape.width) + weights


def scratch_bytes(max_tokens: int, shape: Shape, limits: Limits) -> int:
    """What one process holds for all of its layers, for calls up to ``max_tokens``."""
    total = coop_bytes(shape)
    if limits.kernels is Kernels.OWN:
        return total + grouped_bytes(min(max_tokens, limits.pass_tokens), shape)
    return total + fused_bytes(shape, limits)


def scratch_report(max_tokens: int, shape: Shape, limits: Limits) -> str:
    """``scratch_bytes`` in GiB, as an engine's log says it."""
    gib = scratch_bytes(max_tokens, shape, limits) / 2**30
    return f"EXL3 scratch of this rank: {gib:.2f} GiB, for steps of {max_tokens} tokens"
