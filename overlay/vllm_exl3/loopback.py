"""A tiny model as EXL3, made in seconds without a quantizer (numpy only).

Every int16 is a valid trellis word, so the routed experts of the loopback kit are
random words with fixed scales: the real checkpoint's contract at toy size. The bf16
twin holds their dequantisation, so the two must answer alike.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vllm_exl3 import layout, stfile, tables
from vllm_exl3.errors import Exl3ConfigError, Exl3Error
from vllm_exl3.files import new_folder
from vllm_exl3.schema import Rate
from vllm_exl3.stfile import Raw

Floats = npt.NDArray[np.float32]
EXPERT = re.compile(r"(.*\.experts\.\d+\.(?:gate|up|down)_proj)\.weight")


def decode(trellis: tables.Words, rate: Rate) -> Floats:
    """The inner weights [in, out] of trellis words [in/16, out/16, 16K], as float32."""
    rows, columns, _ = trellis.shape
    first, following, shift = tables.window_tables(rate.bits)
    pairs = trellis.reshape(rows, columns, -1, 2)[..., ::-1]
    words = pairs.reshape(rows, columns, -1).view(np.uint16).astype(np.uint32)
    joined = (words[..., first] << np.uint32(16)) | words[..., following]
    states = (joined >> shift.astype(np.uint32)) & np.uint32(0xFFFF)
    values = tables.codebook_values(rate.codebook)[states].astype(np.float32)
    tiles = values[..., np.argsort(tables.tile_order())]
    tiles = tiles.reshape(rows, columns, tables.TILE, tables.TILE)
    matrix = tiles.transpose(0, 2, 1, 3).reshape(rows * 16, columns * 16)
    return np.asarray(matrix, dtype=np.float32)


def dense(trellis: tables.Words, suh: Floats, svh: Floats, rate: Rate) -> Floats:
    """The weight [in, out] of one EXL3 layer, as float32."""
    inner, block = decode(trellis, rate), tables.hadamard_matrix()
    rows, columns = inner.shape
    inner = (block @ inner.reshape(-1, tables.HADAMARD, columns)).reshape(rows, columns)
    inner = (inner.reshape(rows, -1, tables.HADAMARD) @ block).reshape(rows, columns)
    return np.asarray(suh[:, None] * inner * svh[None, :], dtype=np.float32)


def random_layer(
    name: str, shape: tuple[int, int], rate: Rate, seed: int
) -> tuple[dict[str, Raw], Raw]:
    """One layer's EXL3 tensors, and its dequantised bf16 weight as [out, in].

    ``shape`` is (in, out). The same name and seed give the same bytes on every
    machine. Weights get a standard deviation of 1/sqrt(in).
    """
    for length in shape:
        layout.check_split(name, length, 1)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:8], "little")))
    tiles = (shape[0] // tables.TILE, shape[1] // tables.TILE, rate.words)
    trellis = rng.integers(-32768, 32768, tiles, dtype=np.int16)
    spread = float(tables.codebook_values(rate.codebook).astype(np.float32).std())
    scale = 1 / (spread * np.sqrt(shape[0]))
    suh = (rng.choice([-1, 1], shape[0]) * scale).astype(np.float16)
    svh = rng.choice([-1, 1], shape[1]).astype(np.float16)
    weight = dense(trellis, suh.astype(np.float32), svh.astype(np.float32), rate)
    fields = {"trellis": Raw.of(trellis), "suh": Raw.of(suh), "svh": Raw.of(svh)}
    codebook = rate.codebook
    if codebook.suffix and codebook.marker is not None:
        fields[codebook.suffix] = Raw.of(np.array(codebook.marker, dtype=np.int32))
    packed = {f"{name}.{field}": raw for field, raw in fields.items()}
    return packed, Raw.bf16(weight.T)


def make(  # noqa: PLR0913 (two folders and three knobs, the knobs by name)
    source: Path,
    packed: Path,
    twin: Path | None = None,
    *,
    bits: float = 4,
    codebook: str = "mcg",
    seed: int = 0,
) -> None:
    """An EXL3 checkpoint in ``packed``, its bf16 dequantisation in ``twin``.

    ``source`` is a bf16 checkpoint in the Hugging Face layout; weights named
    ``….experts.N.{gate,up,down}_proj.weight`` are replaced, everything else is
    copied. Raises ``Exl3Error`` when there is none, a dimension is no multiple of 128
    or a folder to write exists.
    """
    rate = Rate(bits, tables.Codebook.from_name(codebook))
    tables.check_rate(rate.bits, rate.codebook)
    experts: dict[str, Raw] = {}
    same: dict[str, Raw] = {}
    dequantised: dict[str, Raw] = {}
    for key, raw in stfile.tensors(source):
        match = EXPERT.fullmatch(key)
        if match is None:
            same[key] = raw
            continue
        rows, columns = raw.shape
        fields, dequantised[key] = random_layer(match[1], (columns, rows), rate, seed)
        experts |= fields
    if not experts:
        raise Exl3Error(f"{source} holds no routed experts to replace", exit_code=3)
    write_checkpoint(source, packed, same | experts, quantization(rate))
    if twin is not None:
        write_checkpoint(source, twin, same | dequantised, None)


def quantization(rate: Rate) -> dict[str, object]:
    """The ``quantization_config`` of a checkpoint whose routed experts are EXL3."""
    return {
        "quant_method": "exl3",
        "bits": rate.bits,
        "codebook": rate.codebook.label,
        "scope": "routed_experts_only",
    }


def write_checkpoint(
    source: Path,
    folder: Path,
    content: dict[str, Raw],
    quantization_config: dict[str, object] | None,
) -> None:
    """A checkpoint folder: the source's side files, one file of tensors, config.

    The folder appears whole or not at all. Raises ``Exl3Error`` when it exists.
    """
    with new_folder(folder) as fresh:
        fill_checkpoint(source, fresh, content, quantization_config)


def fill_checkpoint(
    source: Path,
    folder: Path,
    content: dict[str, Raw],
    quantization_config: dict[str, object] | None,
) -> None:
    """``write_checkpoint`` into an empty folder that exists."""
    config = read_config(source)
    config.pop("quantization_config", None)
    if quantization_config is not None:
        config["quantization_config"] = quantization_config
    for path in source.iterdir():
        if path.is_file() and ".safetensors" not in path.name:
            shutil.copyfile(path, folder / path.name)
    stfile.write(folder / "model.safetensors", content)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def read_config(source: Path) -> dict[str, object]:
    """A checkpoint's ``config.json``; ``Exl3ConfigError`` when it is no object."""
    path = source / "config.json"
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise Exl3ConfigError(f"{path} is absent") from error
    except ValueError as error:
        raise Exl3ConfigError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise Exl3ConfigError(f"{path} is no JSON object")
    return found
