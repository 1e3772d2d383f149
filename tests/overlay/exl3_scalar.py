"""A second EXL3 decoder for the tests: Python integers, one value at a time.

It shares nothing with the package, so that a mistake would have to be made twice.
"""

from __future__ import annotations

import struct


def half(bits: int) -> float:
    return struct.unpack("<e", struct.pack("<H", bits & 0xFFFF))[0]


def round_half(value: float) -> float:
    return struct.unpack("<e", struct.pack("<e", value))[0]


def codebook_value(state: int, codebook: str) -> float:
    if codebook == "mul1":
        mixed = (state * 0x83DCD12D) & 0xFFFFFFFF
        total = sum(mixed.to_bytes(4, "little"))
        return round_half((1024 + total) * half(0x1EEE) + half(0xC931))
    mixed = state * 0xCBAC1FED if codebook == "mcg" else state * 89226354 + 64248484
    mixed = (mixed & 0x8FFF8FFF) ^ 0x3B603B60
    return round_half(half(mixed) + half(mixed >> 16))


def stream_of(words: list[int]) -> str:
    """The tile's bits, most significant first, of 16-bit words as stored."""
    swapped = [w for pair in zip(words[1::2], words[::2], strict=True) for w in pair]
    return "".join(f"{w & 0xFFFF:016b}" for w in swapped)


def states_of(words: list[int], bits: float) -> list[int]:
    ring = stream_of(words)
    low, end, states = int(bits), 0, []
    for position in range(256):
        end += low + (1 if bits != low and position % 2 else 0)
        states.append(int((ring + ring)[end + len(ring) - 16 : end + len(ring)], 2))
    return states


def tile_of(words: list[int], bits: float, codebook: str) -> list[list[float]]:
    """The 16x16 values of one tile, by row."""
    tile = [[0.0] * 16 for _ in range(16)]
    for t, state in enumerate(states_of(words, bits)):
        lane, j = divmod(t, 8)
        row = 2 * (lane % 4) + (0, 1, 8, 9)[j % 4]
        tile[row][lane // 4 + (8 if j >= 4 else 0)] = codebook_value(state, codebook)
    return tile
