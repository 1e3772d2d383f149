"""Safetensors files as raw tensors: every dtype, numpy or not, and no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vllm_exl3.errors import Exl3Error

NUMPY = {"I16": "<i2", "I32": "<i4", "F16": "<f2", "F32": "<f4", "BF16": "<u2"}
# A header longer than this is none: the format's own bound.
MAX_HEADER = 100_000_000
VERIFY = "verify the weights"


@dataclass(frozen=True)
class Raw:
    """A tensor as it lies in the file: safetensors dtype name, shape, bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, array: npt.NDArray[np.generic]) -> Raw:
        """An int16, int32, fp16 or fp32 array."""
        names = {"i2": "I16", "i4": "I32", "f2": "F16", "f4": "F32"}
        contiguous = np.ascontiguousarray(array)
        name = names[contiguous.dtype.str.lstrip("<|")]
        return cls(name, array.shape, contiguous.tobytes())

    @classmethod
    def bf16(cls, array: npt.NDArray[np.float32]) -> Raw:
        """A float32 array, rounded to the nearest bf16 (ties to even)."""
        bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
        rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        words = (rounded >> np.uint32(16)).astype(np.uint16)
        return cls("BF16", array.shape, words.tobytes())

    def array(self) -> npt.NDArray[np.generic]:
        """The values as numpy has them; bf16 comes as float32."""
        if self.dtype not in NUMPY:
            raise Exl3Error(f"a tensor of dtype {self.dtype} cannot be read as numbers")
        values = np.frombuffer(self.data, NUMPY[self.dtype]).reshape(self.shape)
        if self.dtype != "BF16":
            return values
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)


def tensors(folder: Path) -> Iterator[tuple[str, Raw]]:
    """Every tensor of the ``*.safetensors`` files of a folder, file by file.

    ``Exl3Error`` names the file that is none or cut short, and a tensor that two
    files have.
    """
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise Exl3Error(f"{folder} holds no *.safetensors file", exit_code=3)
    seen: dict[str, str] = {}
    for path in paths:
        for name, raw in _read(path):
            if name in seen:
                raise Exl3Error(f"{path} holds {name}, and so does {seen[name]}")
            seen[name] = path.name
            yield name, raw


def _read(path: Path) -> Iterator[tuple[str, Raw]]:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = _header(path, file.read(size) if size <= MAX_HEADER else b"")
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            try:
                begin, end = (int(offset) for offset in entry["data_offsets"])
                dtype, shape = str(entry["dtype"]), tuple(map(int, entry["shape"]))
            except (TypeError, KeyError, ValueError) as error:
                raise Exl3Error(f"{path} describes {name} as {entry!r}") from error
            _check_size(path, name, dtype, shape, end - begin)
            file.seek(8 + size + begin)
            data = file.read(end - begin)
            if len(data) != end - begin:
                raise Exl3Error(f"{path} ends inside tensor {name}")
            yield name, Raw(dtype, shape, data)


def check_folder(folder: Path) -> None:
    """Nothing, or an ``Exl3Error`` for a checkpoint that is not whole.

    Headers and sizes alone are read. Each file that the index names (without one,
    each there is) ends where its header says, and no tensor of the index is absent.
    """
    index = folder / "model.safetensors.index.json"
    listed = _weight_map(index) if index.exists() else {}
    names = set(listed.values()) or {path.name for path in folder.glob("*.safetensors")}
    seen: set[str] = set()
    for path in sorted(folder / name for name in names):
        if not path.is_file():
            raise Exl3Error(f"{path} is absent, which {index.name} names", hint=VERIFY)
        seen.update(_whole_header(path))
    missing = [tensor for tensor in listed if tensor not in seen]
    if missing:
        raise Exl3Error(
            f"{folder / listed[missing[0]]} lacks {missing[0]}, which {index.name} "
            f"names ({len(missing)} such tensors)",
            hint=VERIFY,
        )


def _weight_map(index: Path) -> dict[str, str]:
    try:
        found = json.loads(index.read_text())["weight_map"]
        return {str(tensor): str(name) for tensor, name in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Exl3Error(
            f"{index} is no index with a weight_map", hint=VERIFY
        ) from error


def _whole_header(path: Path) -> list[str]:
    """The tensors of a file whose size is what its header says."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = _header(path, file.read(size) if size <= MAX_HEADER else b"")
    header.pop("__metadata__", None)
    try:
        needed = max((int(e["data_offsets"][1]) for e in header.values()), default=0)
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise Exl3Error(f"{path} has a tensor without offsets", hint=VERIFY) from error
    needed, held = 8 + size + needed, path.stat().st_size
    if held != needed:
        raise Exl3Error(f"{path} has {held} bytes, needed {needed}", hint=VERIFY)
    return list(header)


def _header(path: Path, text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Exl3Error(f"{path} has no safetensors header") from error
    if not isinstance(found, dict):
        raise Exl3Error(f"{path} has no safetensors header")
    return found


def _check_size(
    path: Path, name: str, dtype: str, shape: tuple[int, ...], size: int
) -> None:
    """``Exl3Error`` unless the shape is what the bytes hold, as far as known."""
    needed = math.prod(shape) * int(NUMPY[dtype][2]) if dtype in NUMPY else size
    if size != needed or size < 0:
        raise Exl3Error(
            f"{path} has {size} bytes of {name}, needed {needed} for {dtype} "
            f"{list(shape)}"
        )


def write(path: Path, content: Mapping[str, Raw]) -> None:
    """One safetensors file with these tensors, in their order."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, raw in content.items():
        end = offset + len(raw.data)
        header[name] = {
            "dtype": raw.dtype,
            "shape": list(raw.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for raw in content.values():
            file.write(raw.data)
