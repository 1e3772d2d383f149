"""A checkpoint's routed experts as EXL3: ``python -m vllm_exl3.quantize SRC DST``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch

from vllm_exl3 import layout, loopback, quantizer, stfile, tables
from vllm_exl3.errors import Exl3Error, exit_status
from vllm_exl3.files import new_folder
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
    """Quantise ``source`` (bf16, Hugging Face layout) into the new folder ``target``.

    Weights named ``….experts.N.{gate,up,down}_proj.weight`` become EXL3, the rest is
    copied. Returns the mean relative squared error; raises ``Exl3Error`` when there
    are no routed experts, one cannot be quantised or the target exists. The target
    appears when everything is in it.
    """
    loopback.read_config(source)
    if device == "cpu":
        # Its steps are short: more threads wait for each other longer than they work.
        torch.set_num_threads(1)
    with new_folder(target) as fresh:
        content = dict(stfile.tensors(source))
        names = [name for name in content if loopback.EXPERT.fullmatch(name)]
        if not names:
            raise Exl3Error(
                f"{source} holds no routed experts to quantise", exit_code=3
            )
        for name in names:
            _check(name, content[name])
        errors = []
        for index, name in enumerate(names):
            weight = _matrix(content.pop(name)).to(device)
            layer = quantizer.quantize(weight, rate, seed=seed)
            errors.append(quantizer.relative_error(layer, weight))
            content |= packed_fields(name.removesuffix(".weight"), layer)
            done = f"{index + 1}/{len(names)} weights, error {errors[-1]:.5f}"
            sys.stderr.write(f"\r{done}")
        sys.stderr.write("\n")
        loopback.fill_checkpoint(source, fresh, content, loopback.quantization(rate))
    return sum(errors) / len(errors)


def _matrix(raw: Raw) -> torch.Tensor:
    """A checkpoint's [out, in] weight as float32 [in, out]."""
    values = np.array(raw.array(), dtype=np.float32)
    return torch.from_numpy(values).T.contiguous()


def _check(name: str, raw: Raw) -> None:
    """``Exl3Error`` names a weight that cannot be quantised, before hours of work."""
    if len(raw.shape) != 2:
        raise Exl3Error(f"{name} has shape {list(raw.shape)}, needed [out, in]")
    for side, length in zip(("output", "input"), raw.shape, strict=True):
        layout.check_split(f"{name}: {side}", length, 1)
    if not np.isfinite(np.asarray(raw.array(), dtype=np.float32)).all():
        raise Exl3Error(f"{name} holds NaN or infinity")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser("vllm_exl3.quantize", description=__doc__)
    found.add_argument("source", type=_folder, help="a bf16 checkpoint")
    found.add_argument("target", type=Path, help="a new folder")
    found.add_argument("--bits", type=float, default=4, help="1 to 8, or 1.5, 2.5, 3.5")
    found.add_argument("--codebook", default="mcg", choices=tables.NAMES)
    found.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    found.add_argument("--seed", type=int, default=0)
    return found


def _folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no folder")
    return Path(text)


def _rate(args: argparse.Namespace) -> Rate:
    """The rate asked for; ``Exl3Error`` (2) when there is none such, or no device."""
    codebook = tables.Codebook.from_name(args.codebook)
    try:
        bits = tables.check_rate(args.bits, codebook)
    except Exl3Error as error:
        raise Exl3Error(f"--bits: {error}", exit_code=2) from error
    if args.device == "cuda" and not torch.cuda.is_available():
        raise Exl3Error("--device cuda: torch sees no GPU", exit_code=2)
    return Rate(bits, codebook)


def main(argv: list[str] | None = None) -> int:
    """The command line; JSON with the mean error on stdout."""
    args = parser().parse_args(argv)

    def work() -> None:
        rate = _rate(args)
        error = run(args.source, args.target, rate, device=args.device, seed=args.seed)
        sys.stdout.write(json.dumps({"relative_error": round(error, 6)}) + "\n")

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
