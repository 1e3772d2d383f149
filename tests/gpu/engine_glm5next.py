"""Real vLLM on a GPU: a tiny GLM-5.3-Flash of KDA layers, EXL3 against its bf16 twin.

``python -m tests.gpu.engine_glm5next FOLDER [MODE ...]`` makes the checkpoints and
prints one JSON line a mode; without modes, all that this machine can run. KDA, hyper-
connections, router, shared and routed experts are vLLM's own kernels and ours; sparse
MLA is left out, because its indexer needs DeepGEMM.
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

from tests.overlay import exl3_engine
from tests.overlay.glm5next import checkpoint

COMMON: dict[str, Any] = {
    "gpu_memory_utilization": 0.3,
    "enable_flashinfer_autotune": False,
    "enable_prefix_caching": False,
    "max_num_batched_tokens": 64,
}
DECODE_GRAPHS = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
MODES: dict[str, dict[str, Any]] = {
    # First, while this process has not touched a GPU; left out on one GPU.
    "tp2": {
        "enforce_eager": True,
        "tensor_parallel_size": 2,
        "distributed_executor_backend": "mp",
        "disable_custom_all_reduce": True,
    },
    "eager": {"enforce_eager": True},
    "graphs": {"enforce_eager": False, "compilation_config": DECODE_GRAPHS},
    # What vLLM chooses for this architecture: breakable graphs in prefill as well.
    "default": {"enforce_eager": False},
    # The other chunked prefill, which a GPU without FlashKDA would take.
    "triton": {
        "enforce_eager": True,
        "additional_config": {"kda_prefill_backend": "triton"},
    },
}


def gaps(one: dict[str, Any], other: dict[str, Any]) -> list[list[float]]:
    """Differences of log probabilities, prompt by prompt, step by step."""
    pairs = zip(one["logprobs"], other["logprobs"], strict=True)
    return [[round(abs(x - y), 5) for x, y in zip(a, b, strict=True)] for a, b in pairs]


def compare(folder: Path, engine: dict[str, Any]) -> dict[str, Any]:
    """EXL3 against its twin and against other experts, for one way to run."""
    names = ("exl3", "twin", "source")
    ran = [exl3_engine.answer(str(folder / n), COMMON | engine) for n in names]
    found = gaps(ran[0], ran[1])
    return {
        "same_tokens": ran[0]["tokens"] == ran[1]["tokens"],
        "logprob_gap": max(map(max, found)),
        "gaps": found,
        "gap_to_other_experts": max(row[0] for row in gaps(ran[0], ran[2])),
        "tokens": ran[0]["tokens"],
        "logprobs": ran[0]["logprobs"],
    }


def main() -> None:
    """Make the checkpoints, run the modes, print what was seen."""
    folder = Path(sys.argv[1])
    source = checkpoint.make_bf16(folder / "source", checkpoint.KDA_ONLY)
    loopback.make(source, folder / "exl3", folder / "twin")
    for name in sys.argv[2:] or MODES:
        engine = MODES[name]
        if engine.get("tensor_parallel_size", 1) > torch.cuda.device_count():
            sys.stderr.write(f"{name}: skipped, it needs two GPUs\n")
            continue
        try:
            result = compare(folder, engine)
        except Exception as error:  # noqa: BLE001 (it is the answer)
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {error}"}
            exl3_engine.forget()
        sys.stdout.write("\nANSWER " + json.dumps({name: result}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
