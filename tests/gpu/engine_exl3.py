"""Real vLLM on a GPU: an EXL3 checkpoint against its bf16 twin; JSON on stdout.

Run where vLLM, this plugin and its kernels are importable; it makes its own tiny
Glm4Moe. ``python -m tests.gpu.engine_exl3 FOLDER [MODE ...]``: over two GPUs if there
are two, then on one, eager and with CUDA graphs, with this package's kernels and with
exllamav3's alone. MODE picks some of these.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from vllm_exl3 import cuda, loopback

from tests.overlay import exl3_engine, exl3_model

TIERS = "EXL3_TIERS"
GRAPHS: dict[str, Any] = {
    "enforce_eager": False,
    "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
}
MODES: dict[str, dict[str, Any]] = {
    # First, while this process has not touched a GPU; left out on one GPU.
    "tp2": {
        "enforce_eager": True,
        "tensor_parallel_size": 2,
        "distributed_executor_backend": "mp",
        "disable_custom_all_reduce": True,
    },
    "eager": {"enforce_eager": True},
    "graphs": GRAPHS,
    "exllamav3": {"enforce_eager": True},
    "exllamav3_graphs": GRAPHS,
}


def gaps(one: dict[str, Any], other: dict[str, Any]) -> list[list[float]]:
    """The difference of log probabilities of each token of each prompt.

    It ends behind the first token that differs: what follows answers other contexts.
    """
    found = []
    for index, (a, b) in enumerate(zip(one["tokens"], other["tokens"], strict=True)):
        equal = [x == y for x, y in zip(a, b, strict=True)]
        last = equal.index(False) if False in equal else len(equal)
        pair = zip(one["logprobs"][index], other["logprobs"][index], strict=True)
        found.append([round(abs(x - y), 5) for x, y in list(pair)[: last + 1]])
    return found


def use_tiers(mode: str) -> None:
    """Choose the kernels for engines that start from now on, in any process."""
    os.environ[TIERS] = "exllamav3" if mode.startswith("exllamav3") else "own"
    cuda.limits.cache_clear()
    cuda.SCRATCH.arena = torch.empty(0, dtype=torch.uint8)


def compare(folder: Path, engine: dict[str, Any]) -> dict[str, Any]:
    """Whether tokens are equal, and the gap, for one way to run."""
    common = {
        "attention_backend": "TRITON_ATTN",
        "gpu_memory_utilization": 0.3,
        "enable_flashinfer_autotune": False,
    }
    names = ("exl3", "twin", "source")
    ran = [exl3_engine.answer(str(folder / n), common | engine) for n in names]
    by_token = gaps(ran[0], ran[1])
    return {
        "same_tokens": ran[0]["tokens"] == ran[1]["tokens"],
        "logprob_gap": max(map(max, by_token)),
        "gap_by_token": by_token,
        "gap_to_other_experts": round(
            max(
                abs(a[0] - b[0])
                for a, b in zip(*(r["logprobs"] for r in ran[::2]), strict=True)
            ),
            5,
        ),
    }


def main() -> None:
    """Make the checkpoints, run the modes, print what was seen."""
    # Before vLLM is imported: this process is the engine.
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    folder = Path(sys.argv[1])
    source = exl3_model.make_bf16(folder / "source")
    loopback.make(source, folder / "exl3", folder / "twin")
    for name in sys.argv[2:] or MODES:
        engine = MODES[name]
        if engine.get("tensor_parallel_size", 1) > torch.cuda.device_count():
            sys.stderr.write(f"{name}: skipped, it needs two GPUs\n")
            continue
        use_tiers(name)
        try:
            result = compare(folder, engine)
        except Exception as error:  # noqa: BLE001 (it is the answer)
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write("\nANSWER " + json.dumps({name: result}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
