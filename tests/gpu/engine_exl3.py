"""Real vLLM on a GPU: an EXL3 checkpoint against its bf16 twin; JSON on stdout.

Run where vLLM, this plugin and its kernels are importable; it makes its own tiny
Glm4Moe. ``python -m tests.gpu.engine_exl3 FOLDER``: over two GPUs if there are two,
then on one, eager and with CUDA graphs.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import torch
from vllm_exl3 import loopback

from tests.overlay import exl3_engine, exl3_model

MODES: dict[str, dict[str, Any]] = {
    # First, while this process has not touched a GPU; left out on one GPU.
    "tp2": {
        "enforce_eager": True,
        "tensor_parallel_size": 2,
        "distributed_executor_backend": "mp",
        "disable_custom_all_reduce": True,
    },
    "eager": {"enforce_eager": True},
    "graphs": {
        "enforce_eager": False,
        "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
    },
}


def gap(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference of log probabilities along the common prefix."""
    most = 0.0
    for a, b in zip(one["logprobs"], other["logprobs"], strict=True):
        most = max(most, *(abs(x - y) for x, y in zip(a, b, strict=True)))
    return most


def compare(folder: Path, engine: dict[str, Any]) -> dict[str, Any]:
    """Whether tokens are equal, and the gap, for one way to run."""
    common = {
        "attention_backend": "TRITON_ATTN",
        "gpu_memory_utilization": 0.3,
        "enable_flashinfer_autotune": False,
    }
    names = ("exl3", "twin", "source")
    ran = [exl3_engine.answer(str(folder / n), common | engine) for n in names]
    return {
        "same_tokens": ran[0]["tokens"] == ran[1]["tokens"],
        "logprob_gap": round(gap(ran[0], ran[1]), 5),
        "gap_to_other_experts": round(
            max(
                abs(a[0] - b[0])
                for a, b in zip(*(r["logprobs"] for r in ran[::2]), strict=True)
            ),
            5,
        ),
    }


def main() -> None:
    """Make the checkpoints, run both modes, print what was seen."""
    folder = Path(sys.argv[1])
    source = exl3_model.make_bf16(folder / "source")
    loopback.make(source, folder / "exl3", folder / "twin")
    for name, engine in MODES.items():
        if engine.get("tensor_parallel_size", 1) > torch.cuda.device_count():
            sys.stderr.write(f"{name}: skipped, it needs two GPUs\n")
            continue
        try:
            result = compare(folder, engine)
        except Exception as error:  # noqa: BLE001 (it is the answer)
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write("\nANSWER " + json.dumps({name: result}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
