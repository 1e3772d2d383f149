"""Which linear layers a build takes from the EXL3 pack, checked before any is read.

Pure: two files' worth of tensor descriptions in, layers out. A name that was expected
and is not there, a type, a shape or a rate that the engine's plugin cannot load stops
the build here, before gigabytes have come.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glmspark.errors import ConfigError, IntegrityError

TILE = 16
HADAMARD = 128
# Source: exllamav3 1.6.5's format; the marker names the codebook.
MARKERS = {"mcg": -877912083, "mul1": -2082680531}
# Layers that vLLM fuses into one: all of them are EXL3 at one rate, or none is.
FUSED = (("gate_proj", "up_proj"), ("q_proj", "k_proj", "v_proj"))
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


@dataclass(frozen=True)
class Tensor:
    """A tensor of a safetensors file: type, shape, and its bytes [start, end) in it."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.end - self.start


@dataclass(frozen=True)
class Layer:
    """What is taken of one layer: its tensors by full name.

    ``bits`` a weight and ``codebook`` are those of an EXL3 layer, 0 and empty else.
    """

    name: str
    bits: float
    codebook: str
    tensors: Mapping[str, Tensor]


def describe(
    file: str, header: Mapping[str, Any], data_start: int
) -> dict[str, Tensor]:
    """Name -> tensor of one safetensors header.

    Raises IntegrityError where an entry is not what the format says.
    """
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            low, high = (int(at) for at in entry["data_offsets"])
            shape = tuple(int(n) for n in entry["shape"])
            dtype = str(entry["dtype"])
        except (KeyError, TypeError, ValueError) as error:
            raise IntegrityError(f"{file} describes {name} as {entry!r}") from error
        if not 0 <= low <= high:
            raise IntegrityError(f"{file}: {name} has the bytes {low} to {high}")
        found[name] = Tensor(file, dtype, shape, data_start + low, data_start + high)
    return found


def wanted(names: Iterable[str], kinds: Sequence[str], layers: int) -> list[str]:
    """The layers (names without ``.weight``) of ``kinds`` in the first ``layers``.

    A kind is the end of a name, such as ``self_attn.o_proj``. Raises ConfigError for a
    kind of which there is none, which would else be left out in silence.
    """
    found: dict[str, list[str]] = {kind: [] for kind in kinds}
    for name in names:
        match = _LAYER.search(name)
        if match is None or int(match[1]) >= layers:
            continue
        kind = name[match.end() :].removesuffix(".weight")
        if kind in found and name.endswith(".weight"):
            found[kind].append(name.removesuffix(".weight"))
    empty = [kind for kind, some in found.items() if not some]
    if empty:
        raise ConfigError(
            f"the checkpoint has no layer that ends in {', '.join(empty)}",
            hint="correct the list `layers` in a copy of the profile",
        )
    return sorted(name for some in found.values() for name in some)


def choose(
    names: Iterable[str],
    base: Mapping[str, Tensor],
    pack: Mapping[str, Tensor],
    source: str,
) -> list[Layer]:
    """The EXL3 layers of ``pack`` that take the place of ``names`` in ``base``.

    Raises ConfigError or IntegrityError, naming the tensor: ``pack`` (called
    ``source``) lacks it, or it does not fit the base's weight, the format or the
    engine's fused layers.
    """
    found = [_layer(name, base[f"{name}.weight"], pack, source) for name in names]
    _check_fused({layer.name: layer for layer in found}, base, source)
    return found


def _layer(name: str, own: Tensor, pack: Mapping[str, Tensor], source: str) -> Layer:
    trellis = pack.get(f"{name}.trellis")
    if trellis is None:
        raise ConfigError(_absent(name, pack, source))
    if len(own.shape) != 2:
        raise ConfigError(
            f"{name}.weight has shape {list(own.shape)}, needed [out, in]"
        )
    columns, rows = own.shape
    markers = [kind for kind in MARKERS if f"{name}.{kind}" in pack]
    if len(markers) > 1:
        raise IntegrityError(f"{source}: {name} has the markers of two codebooks")
    codebook = markers[0] if markers else "3inst"
    for side, size in (("input", rows), ("output", columns)):
        if size % HADAMARD:
            raise ConfigError(f"{name}: {side} {size} is no multiple of {HADAMARD}")
    words = trellis.shape[-1] if len(trellis.shape) == 3 else 0
    needed: dict[str, tuple[str, tuple[int, ...]]] = {
        "trellis": ("I16", (rows // TILE, columns // TILE, words)),
        "suh": ("F16", (rows,)),
        "svh": ("F16", (columns,)),
    }
    tensors = {}
    for field, (dtype, shape) in needed.items():
        tensor = pack.get(f"{name}.{field}")
        if tensor is None:
            raise ConfigError(f"{source} has {name}.trellis and no {name}.{field}")
        _check(f"{source}: {name}.{field}", tensor, dtype, shape)
        tensors[f"{name}.{field}"] = tensor
    if markers:
        marker = pack[f"{name}.{codebook}"]
        _check(f"{source}: {name}.{codebook}", marker, "I32", marker.shape)
        tensors[f"{name}.{codebook}"] = marker
    if f"{name}.bias" in pack:
        raise ConfigError(
            f"{source}: {name} has a bias, which the engine does not take"
        )
    return Layer(name, _bits(name, words, codebook), codebook, tensors)


_BYTES = {"I16": 2, "F16": 2, "I32": 4}


def _check(what: str, tensor: Tensor, dtype: str, shape: tuple[int, ...]) -> None:
    count = 1
    for size in tensor.shape:
        count *= size
    good = (tensor.dtype, tensor.shape) == (dtype, shape)
    if not good or tensor.end - tensor.start != count * _BYTES[dtype]:
        raise IntegrityError(
            f"{what} is {tensor.dtype} {list(tensor.shape)} in "
            f"{tensor.end - tensor.start} bytes, needed {dtype} {list(shape)}"
        )
    if dtype == "I32" and count != 1:
        raise IntegrityError(f"{what} has {count} values, needed 1")


def _bits(name: str, words: int, codebook: str) -> float:
    bits = words / TILE
    whole = bits in range(1, 9)
    if not whole and not (codebook == "mul1" and bits in (1.5, 2.5, 3.5)):
        raise IntegrityError(f"{name}.trellis has {words} words a tile: {bits:g} bits")
    return bits


def _absent(name: str, pack: Mapping[str, Tensor], source: str) -> str:
    some = sorted(n for n in pack if n.endswith(".trellis") and ".experts." not in n)
    shown = f"; it has {', '.join(some[:3])} and {max(len(some) - 3, 0)} more"
    return (
        f"{source} has no tensor {name}.trellis"
        + (shown if some else "; it holds no EXL3 tensor but of experts")
        + ": the profile's list of layers does not fit this pack"
    )


def _check_fused(
    layers: Mapping[str, Layer], base: Mapping[str, Tensor], source: str
) -> None:
    for name in layers:
        parent, _, leaf = name.rpartition(".")
        if leaf in FUSED[1] and f"{parent}.f_a_proj.weight" in base:
            raise ConfigError(
                f"{name} is one layer with {parent}.b_proj for the engine, whose "
                "output has no whole EXL3 block",
                hint="leave q, k and v of KDA out of the profile's list of layers",
            )
        for group in FUSED:
            if leaf not in group:
                continue
            parts = [f"{parent}.{part}" for part in group]
            parts = [part for part in parts if f"{part}.weight" in base]
            rates = {
                (layers[p].bits, layers[p].codebook) if p in layers else None
                for p in parts
            }
            if len(rates) > 1:
                raise ConfigError(
                    f"{source}: {', '.join(parts)} are one layer for the engine, and "
                    "are not EXL3 at one rate",
                    hint="take all of them or none into the profile's list of layers",
                )
