"""Safetensors files as the tool reads and writes them: headers and whole tensors."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from glmspark.boost.layers import Tensor, describe
from glmspark.errors import IntegrityError
from glmspark.weights.hashing import Hashes

MAX_HEADER_BYTES = 100_000_000


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header of the file ``path``, and where its data begins."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if length <= MAX_HEADER_BYTES else b""
    try:
        header = json.loads(text)
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise IntegrityError(f"{path} has no safetensors header")
    return header, 8 + length


def folder_tensors(files: Mapping[str, Path]) -> dict[str, Tensor]:
    """Name -> tensor of the ``files`` (name in the checkpoint -> path).

    Raises IntegrityError for a name that two files have.
    """
    found: dict[str, Tensor] = {}
    for file, path in sorted(files.items()):
        for name, tensor in describe(file, *read_header(path)).items():
            if name in found:
                raise IntegrityError(
                    f"{file} holds {name}, and so does {found[name].file}"
                )
            found[name] = tensor
    return found


def header_bytes(tensors: Mapping[str, tuple[str, tuple[int, ...], int]]) -> bytes:
    """The first bytes of a file of ``tensors``: name -> (dtype, shape, size)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape, size) in tensors.items():
        span = [offset, offset + size]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": span}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write(path: Path, chunks: Iterable[bytes]) -> Hashes:
    """Write ``chunks`` to the new file ``path``, synced; its size and sha256."""
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return Hashes(size, digest.hexdigest())


def values(dtype: str, data: bytes) -> Iterator[float]:
    """The numbers of a small F16 or I32 tensor."""
    from struct import iter_unpack

    code = {"F16": "<e", "I32": "<i"}[dtype]
    return (value for (value,) in iter_unpack(code, data))


def is_finite(data: bytes) -> bool:
    """Whether no value of an F16 tensor is NaN or infinite."""
    return all(map(math.isfinite, values("F16", data)))


def copy(path: Path, rows: Mapping[str, tuple[Path, Tensor]]) -> Hashes:
    """Write the tensors ``rows`` (name -> file and place) to the new file ``path``."""
    sizes = {n: (t.dtype, t.shape, t.size) for n, (_, t) in rows.items()}

    def chunks() -> Iterator[bytes]:
        yield header_bytes(sizes)
        for name, (source, tensor) in rows.items():
            with source.open("rb") as file:
                file.seek(tensor.start)
                left = tensor.end - tensor.start
                while left:
                    data = file.read(min(left, 1 << 20))
                    if not data:
                        raise IntegrityError(f"{source} ends inside tensor {name}")
                    left -= len(data)
                    yield data

    return write(path, chunks())
