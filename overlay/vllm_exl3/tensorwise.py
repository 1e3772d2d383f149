"""Chosen weights as EXL3, one at a time: ``python -m vllm_exl3.tensorwise SRC OUT``.

For a job that may be cut off at any point. The first line of standard input is a JSON
object, from a weight's name to the name of its file in OUT; each file appears whole or
not at all, and a JSON line on standard output says so: name, file, sha256 and relative
error. The end of standard input ends the program: its parent, which holds the other
side open, is gone, and the GPU's memory is wanted by somebody else.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import threading
from pathlib import Path

import numpy as np
import torch

from vllm_exl3 import layout, quantizer, stfile, tables
from vllm_exl3.errors import Exl3Error
from vllm_exl3.quantize import packed_fields
from vllm_exl3.schema import Rate
from vllm_exl3.stfile import Raw

# What the results are called in the address of a build; see glmspark.boost.names.
QUANTIZER = "vllm_exl3 viterbi 1"
_GONE = 9


def matrix(name: str, raw: Raw) -> torch.Tensor:
    """A checkpoint's [out, in] weight as float32 [in, out].

    ``Exl3Error`` names one that cannot be quantised.
    """
    if raw.dtype not in {"BF16", "F16", "F32"}:
        raise Exl3Error(f"{name} is {raw.dtype}, needed BF16, F16 or F32")
    if len(raw.shape) != 2:
        raise Exl3Error(f"{name} has shape {list(raw.shape)}, needed [out, in]")
    for side, length in zip(("output", "input"), raw.shape, strict=True):
        layout.check_split(f"{name}: {side}", length, 1)
    values = np.array(raw.array(), dtype=np.float32)
    if not np.isfinite(values).all():
        raise Exl3Error(f"{name} holds NaN or infinity")
    return torch.from_numpy(values).T.contiguous()


def write_whole(path: Path, content: dict[str, Raw]) -> str:
    """The sha256 of the new file ``path``, which appears when its bytes are synced."""
    fresh = path.with_name(f".{path.name}.tmp")
    stfile.write(fresh, content)
    digest = hashlib.sha256()
    with fresh.open("rb+") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        os.fsync(file.fileno())
    fresh.replace(path)
    return digest.hexdigest()


def run(source: Path, out: Path, files: dict[str, str], rate: Rate, device: str) -> int:
    """Quantise each of ``files`` that ``source`` holds; how many were made.

    Raises ``Exl3Error`` for a name that ``source`` does not hold and a weight that
    cannot be quantised.
    """
    if device == "cpu":
        torch.set_num_threads(1)  # its steps are short: threads wait for each other
    left = dict(files)
    for name, raw in stfile.tensors(source):
        if name not in left:
            continue
        weight = matrix(name, raw).to(device)
        layer = quantizer.quantize(weight, rate)
        error = quantizer.relative_error(layer, weight)
        file = left.pop(name)
        fields = packed_fields(name.removesuffix(".weight"), layer)
        row = {
            "name": name,
            "file": file,
            "sha256": write_whole(out / file, fields),
            "relative_error": round(error, 6),
        }
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
    if left:
        raise Exl3Error(f"{source} holds no {', '.join(sorted(left))}", exit_code=3)
    return len(files)


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(_GONE)


def _rate(args: argparse.Namespace) -> Rate:
    codebook = tables.Codebook.from_name(args.codebook)
    rate = Rate(tables.check_rate(args.bits, codebook), codebook)
    if args.quantizer != QUANTIZER:
        raise Exl3Error(
            f"the engine's quantizer is '{QUANTIZER}', the build asks for "
            f"'{args.quantizer}': tool and engine are of two versions",
            exit_code=7,
        )
    if args.device == "cuda" and not torch.cuda.is_available():
        raise Exl3Error("the engine's torch sees no CUDA device", exit_code=4)
    return rate


def main(argv: list[str] | None = None) -> int:
    """The command line; what is made goes to stdout, a line for each weight."""
    parser = argparse.ArgumentParser("vllm_exl3.tensorwise", description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--bits", type=float, required=True)
    parser.add_argument("--codebook", required=True, choices=["mcg", "mul1", "3inst"])
    parser.add_argument("--device", required=True, choices=["cuda", "cpu"])
    parser.add_argument("--quantizer", required=True)
    args = parser.parse_args(argv)
    files = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        run(args.source, args.out, files, _rate(args), args.device)
    except Exl3Error as fault:
        sys.stderr.write(f"error: {fault}\n")
        return fault.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
