"""The constants of the EXL3 format as numpy tables; no torch, no vLLM.

Source: the format as exllamav3 1.6.5 reads it, checked bit for bit against its CUDA
``reconstruct`` for K = 1...8, the half-integer rates and all three codebooks.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from vllm_exl3.errors import Exl3Error

TILE = 16
TILE_VALUES = TILE * TILE
HADAMARD = 128
STATES = 1 << 16
MCG_MULTIPLIER = 0xCBAC1FED
MUL1_MULTIPLIER = 0x83DCD12D
# Rates whose even positions take floor(K) bits and odd ones a bit more (mul1 only).
HALF_RATES = (1.5, 2.5, 3.5)

Words = npt.NDArray[np.int16]


class Codebook(IntEnum):
    """How a 16-bit trellis state becomes a value; the number is the kernels' own."""

    THREE_INST = 0
    MCG = 1
    MUL1 = 2

    @property
    def marker(self) -> int | None:
        """The int32 that the checkpoint's marker tensor holds; None has no marker."""
        values = {Codebook.MCG: MCG_MULTIPLIER, Codebook.MUL1: MUL1_MULTIPLIER}
        value = values.get(self)
        return None if value is None else int(np.uint32(value).astype(np.int32))

    @property
    def suffix(self) -> str | None:
        """The name of the marker tensor behind the layer's prefix."""
        return {Codebook.MCG: "mcg", Codebook.MUL1: "mul1"}.get(self)

    @classmethod
    def from_name(cls, name: str) -> Codebook:
        """The codebook of a config's name ``3inst``, ``mcg`` or ``mul1``."""
        if name not in NAMES:
            raise Exl3Error(f"codebook {name!r} is unknown; known: {', '.join(NAMES)}")
        return NAMES[name]

    @property
    def label(self) -> str:
        """The name that ``from_name`` takes."""
        return next(name for name, codebook in NAMES.items() if codebook is self)


# What config.json and the command lines call them.
NAMES = {"3inst": Codebook.THREE_INST, "mcg": Codebook.MCG, "mul1": Codebook.MUL1}


def check_rate(bits: float, codebook: Codebook) -> float:
    """``bits`` when it is a rate of the format, an ``Exl3Error`` when it is not."""
    if bits in HALF_RATES:
        if codebook is not Codebook.MUL1:
            raise Exl3Error(f"K = {bits} exists for the mul1 codebook only")
        return bits
    if not 1 <= bits <= 8 or bits != int(bits):
        raise Exl3Error(f"K = {bits} is no EXL3 rate: 1 to 8, or 1.5, 2.5, 3.5 (mul1)")
    return bits


@lru_cache(maxsize=8)
def codebook_values(codebook: Codebook) -> npt.NDArray[np.float16]:
    """The 65,536 fp16 values of a codebook, indexed by state.

    3INST and MCG add two fp16 halves, MUL1 is one fused multiply-add; both are exact
    in float32, so the one rounding here is the one that the hardware does.
    """
    state = np.arange(STATES, dtype=np.uint32)
    if codebook is Codebook.MUL1:
        mixed = state * np.uint32(MUL1_MULTIPLIER)
        total = sum((mixed >> np.uint32(s)) & np.uint32(0xFF) for s in (0, 8, 16, 24))
        scale, bias = np.array([0x1EEE, 0xC931], np.uint16).view(np.float16)
        biased = np.asarray(total, np.float32) + np.float32(1024)
        value = biased * np.float32(scale) + np.float32(bias)
        return value.astype(np.float16)
    if codebook is Codebook.MCG:
        mixed = state * np.uint32(MCG_MULTIPLIER)
    else:
        mixed = state * np.uint32(89226354) + np.uint32(64248484)
    mixed = (mixed & np.uint32(0x8FFF8FFF)) ^ np.uint32(0x3B603B60)
    halves = mixed.view(np.uint16).reshape(-1, 2).view(np.float16)
    return np.asarray(halves.astype(np.float32).sum(axis=1), dtype=np.float16)


@lru_cache(maxsize=16)
def end_bits(bits: float) -> npt.NDArray[np.int64]:
    """For each of a tile's 256 positions, the stream bit just behind its new bits."""
    low = int(bits)
    step = np.full(TILE_VALUES, low, dtype=np.int64)
    if bits != low:
        step[1::2] += 1
    return np.cumsum(step)


@lru_cache(maxsize=16)
def window_tables(
    bits: float,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Where the 16-bit state of each position lies in a tile's 16-bit words.

    Returns (first word, following word, right shift), each of shape [256]: the state
    is ``((w[first] << 16 | w[next]) >> shift) & 0xffff`` of the unswapped stream, which
    is a ring (tail-biting), so the first states reach back to its last words.
    """
    words = int(bits * TILE)
    start = (end_bits(bits) - 16) % (words * 16)
    first = start // 16
    shift = 16 - start % 16
    return first, (first + 1) % words, shift.astype(np.int32)


@lru_cache(maxsize=16)
def bit_sources(bits: float) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """For each bit of a tile's stream: the position it belongs to, and its shift.

    Both of shape [256·K]; the bit is ``(state[position] >> shift) & 1``.
    """
    ends = end_bits(bits)
    bit = np.arange(ends[-1])
    position = np.searchsorted(ends, bit, side="right")
    return position, (ends[position] - 1 - bit).astype(np.int32)


@lru_cache(maxsize=1)
def tile_order() -> npt.NDArray[np.int64]:
    """Row-major place (16·row + column) of each of the 256 stream positions.

    Position t = 8·lane + j sits where lane ``lane`` of a warp holds element ``j`` of a
    tensor-core B fragment (m16n8k16, two of them side by side).
    """
    lane, j = np.divmod(np.arange(TILE_VALUES), 8)
    row = 2 * (lane % 4) + np.array([0, 1, 8, 9])[j % 4]
    column = lane // 4 + np.where(j >= 4, 8, 0)
    return np.asarray(row * TILE + column, dtype=np.int64)


@lru_cache(maxsize=1)
def hadamard_matrix() -> npt.NDArray[np.float32]:
    """The 128x128 Sylvester Hadamard matrix over sqrt(128): its own inverse."""
    matrix = np.ones((1, 1), dtype=np.float32)
    while len(matrix) < HADAMARD:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.asarray(matrix / np.sqrt(HADAMARD), dtype=np.float32)


def rate_of(trellis_words: int) -> float:
    """K from a trellis tensor's last dimension (16·K words a tile)."""
    return trellis_words / TILE
