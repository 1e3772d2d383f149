"""Random bfloat16 weights that are the same bits everywhere, and the safetensors file.

numpy promises a stable stream only for its bit generators, not for its distributions,
so the values are made from PCG64's raw bits here.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Tensor:
    """One tensor of a safetensors file.

    ``dtype`` is safetensors' name for it (``BF16``, ``F32``, ``I16``), ``data`` its
    elements in row-major order, little-endian.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def random_values(
    name: str, shape: tuple[int, ...], scale: float
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Uniform float32 values with standard deviation ``scale``.

    They depend on ``name`` and ``shape`` alone. Uniform, because that needs no libm,
    whose last bit differs between machines.
    """
    generator = np.random.PCG64(zlib.crc32(name.encode()))
    count = int(np.prod(shape))
    bits = generator.random_raw(count) >> np.uint64(40)  # 24 bits: exact in float32
    unit = bits.astype(np.float32) * np.float32(2.0**-23) - np.float32(1.0)
    # A uniform value in [-1, 1) has the standard deviation 1 / sqrt(3).
    return (unit * np.float32(scale * 3.0**0.5)).reshape(shape)


def bfloat16(
    values: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
) -> Tensor:
    """``values`` (float32, any shape) rounded to the nearest even bfloat16."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> (
        np.uint32(16)
    )
    return Tensor("BF16", values.shape, rounded.astype("<u2").tobytes())


def float32(
    values: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
) -> Tensor:
    """``values`` as they are."""
    return Tensor("F32", values.shape, np.ascontiguousarray(values, "<f4").tobytes())


def safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """The bytes of a safetensors file with ``tensors``, in the order of their names.

    Layout: 8 bytes of header length (little-endian), the JSON header padded with blanks
    to a multiple of 8, then the data. Source: the format's own description.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        end = offset + len(tensor.data)
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = (tensors[name].data for name in sorted(tensors))
    return b"".join([len(text).to_bytes(8, "little"), text, *data])
