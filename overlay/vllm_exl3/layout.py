"""Where the pieces of an expert lie, whole and on one rank; pure arithmetic.

A tensor-parallel split keeps Hadamard blocks of 128 whole: gate and up are cut by
output columns (trellis dim 1, svh), down by input rows (trellis dim 0, suh).
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_exl3.errors import Exl3ConfigError, Exl3Error
from vllm_exl3.schema import Rate
from vllm_exl3.tables import HADAMARD, TILE

PROJECTIONS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
DTYPES = {"trellis": "int16", "suh": "float16", "svh": "float16", "marker": "int32"}


@dataclass(frozen=True)
class Split:
    """One rank's share of a dimension that is cut into equal parts."""

    rank: int = 0
    size: int = 1

    def part(self, length: int) -> tuple[int, int]:
        """(start, length) of this rank's part of ``length`` elements."""
        share = length // self.size
        return self.rank * share, share


@dataclass(frozen=True)
class LinearLayout:
    """Shapes of one EXL3 linear layer, and which side of it a rank cuts.

    ``cut`` is ``"columns"``, ``"rows"`` or ``""`` (kept whole); features are those
    of the whole layer.
    """

    in_features: int
    out_features: int
    rate: Rate
    cut: str = ""

    def whole(self, field: str) -> tuple[int, ...]:
        """The checkpoint's shape of ``field``."""
        shapes: dict[str, tuple[int, ...]] = {
            "trellis": (
                self.in_features // TILE,
                self.out_features // TILE,
                self.rate.words,
            ),
            "suh": (self.in_features,),
            "svh": (self.out_features,),
            "marker": (),
        }
        return shapes[field]

    def cut_dimension(self, field: str) -> int | None:
        """The dimension of ``field`` that is cut between ranks, if any."""
        by_cut = {"columns": {"trellis": 1, "svh": 0}, "rows": {"trellis": 0, "suh": 0}}
        return by_cut.get(self.cut, {}).get(field)


def working_sizes(length: int, limit: int = 16) -> list[int]:
    """The tensor-parallel sizes up to ``limit`` that cut no Hadamard block."""
    return [n for n in range(1, limit + 1) if length % (n * HADAMARD) == 0]


def check_split(what: str, length: int, size: int, experts: int = 0) -> None:
    """Nothing, or an ``Exl3ConfigError`` naming the sizes that work.

    ``length`` is the whole dimension that ``size`` ranks would share.
    """
    if length % HADAMARD:
        raise Exl3ConfigError(
            f"{what} has {length} elements, needed a multiple of {HADAMARD}"
        )
    if length % (size * HADAMARD) == 0:
        return
    sizes = ", ".join(map(str, working_sizes(length)))
    remedy = f"use a tensor-parallel size of {sizes}"
    if experts and experts % size == 0:
        remedy += f", or keep {size} with --enable-expert-parallel"
    raise Exl3ConfigError(
        f"{what} of {length} elements cannot be split over {size} ranks: a Hadamard "
        f"block of {HADAMARD} would be cut",
        hint=remedy,
    )


def check_tensor(
    name: str, field: str, dtype: str, shape: tuple[int, ...], needed: tuple[int, ...]
) -> None:
    """Nothing, or an ``Exl3Error`` when a checkpoint tensor is not what it must be.

    A marker may be stored as a scalar or as one element.
    """
    if dtype != DTYPES[field]:
        raise Exl3Error(f"{name} is {dtype}, needed {DTYPES[field]}")
    if field == "marker" and shape in {(), (1,)}:
        return
    if shape != needed:
        raise Exl3Error(
            f"{name} has shape {list(shape)}, needed {list(needed)}",
            hint="the file is truncated or of another model: verify the weights",
        )


def check_marker(name: str, value: int, rate: Rate) -> None:
    """Nothing, or an ``Exl3Error`` when a marker is not the codebook's own number."""
    if value != rate.codebook.marker:
        raise Exl3Error(
            f"{name} holds {value}, needed {rate.codebook.marker} "
            f"({rate.codebook.label})"
        )
