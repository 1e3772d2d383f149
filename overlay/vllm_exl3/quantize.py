"""A checkpoint's routed experts as EXL3: ``python -m vllm_exl3.quantize SRC DST``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch

from vllm_exl3 import loopback, quantizer, stfile, tables
from vllm_exl3.errors import Exl3Error
from vllm_exl3.format import Exl3Linear
from vllm_exl3.schema import Rate
from vllm_exl3.stfile import Raw


def packed_fields(name: str, layer: Exl3Linear) -> dict[str, Raw]:
    """The checkpoint tensors of one layer."""
    parts = {"trellis": layer.trellis, "suh": layer.suh, "svh": layer.svh}
    fields = {f"{name}.{k}": Raw.of(t.cpu().numpy()) for k, t in parts.items()}
    codebook = layer.codebook
    if codebook.suffix and codebook.marker is not None:
        marker = np.array(codebook.marker, dtype=np.int32)
        fields[f"{name}.{codebook.suffix}"] = Raw.of(marker)
    return fields


def run(
    source: Path, target: Path, rate: Rate, *, device: str = "cpu", seed: int = 0
) -> float:
    """Quantise ``source`` (bf16, Hugging Face layout) into ``target``.

    Weights named ``….experts.N.{gate,up,down}_proj.weight`` become EXL3, the rest is
    copied. Returns the mean relative squared error; raises ``Exl3Error`` when there
    are no routed experts or a dimension is no multiple of 128.
    """
    if device == "cpu":
        # Its steps are short: more threads wait for each other longer than they work.
        torch.set_num_threads(1)
    content = dict(stfile.tensors(source))
    names = [name for name in content if loopback.EXPERT.fullmatch(name)]
    if not names:
        raise Exl3Error(f"{source} holds no routed experts to quantise", exit_code=3)
    errors = []
    for index, name in enumerate(names):
        values = np.array(content.pop(name).array(), dtype=np.float32)
        weight = torch.from_numpy(values).T.contiguous().to(device)
        layer = quantizer.quantize(weight, rate, seed=seed)
        errors.append(quantizer.relative_error(layer, weight))
        content |= packed_fields(name.removesuffix(".weight"), layer)
        sys.stderr.write(f"\r{index + 1}/{len(names)} weights, error {errors[-1]:.5f}")
    sys.stderr.write("\n")
    loopback.write_checkpoint(source, target, content, loopback.quantization(rate))
    return sum(errors) / len(errors)


def main(argv: list[str] | None = None) -> int:
    """The command line; JSON with the mean error on stdout."""
    parser = argparse.ArgumentParser("vllm_exl3.quantize", description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--bits", type=float, default=4)
    parser.add_argument("--codebook", default="mcg", help="mcg, mul1 or 3inst")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    try:
        codebook = tables.Codebook.from_name(args.codebook)
        rate = Rate(tables.check_rate(args.bits, codebook), codebook)
        error = run(args.source, args.target, rate, device=args.device, seed=args.seed)
    except Exl3Error as fault:
        sys.stderr.write(f"error: {fault}\n")
        return fault.exit_code
    sys.stdout.write(json.dumps({"relative_error": round(error, 6)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
