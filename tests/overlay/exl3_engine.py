"""Run real vLLM on one or more checkpoints; a JSON line for each on stdout.

``python exl3_engine.py '{"models": [...], "engine": {...}}'``: greedy tokens of three
prompts with the log probability of each, or the error that stopped the load.
"""

from __future__ import annotations

import json
import sys
from typing import Any

PROMPTS = (5, 17, 40)
ENGINE = {
    "skip_tokenizer_init": True,
    "max_model_len": 256,
    "max_num_seqs": 4,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 64 << 20,
    "disable_log_stats": True,
}


def answer(model: str, engine: dict[str, Any]) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    llm = LLM(model, **(ENGINE | engine))
    greedy = SamplingParams(
        temperature=0, max_tokens=16, logprobs=1, ignore_eos=True, detokenize=False
    )
    prompts = [{"prompt_token_ids": list(range(3, 3 + n))} for n in PROMPTS]
    outputs = [r.outputs[0] for r in llm.generate(prompts, greedy, use_tqdm=False)]
    return {
        "tokens": [list(o.token_ids) for o in outputs],
        "logprobs": [
            [
                step[token].logprob
                for token, step in zip(o.token_ids, o.logprobs, strict=True)
            ]
            for o in outputs
        ],
    }


def forget() -> None:
    """Undo what a failed start left, so that the next one begins afresh."""
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    cleanup_dist_env_and_memory()


def main() -> None:
    job = json.loads(sys.argv[1])
    for model in job["models"]:
        try:
            result = answer(model, job.get("engine", {}))
        except Exception as error:  # noqa: BLE001 (it is the answer)
            result = {"error": f"{type(error).__name__}: {error}"}
            forget()
        sys.stdout.write("\nANSWER " + json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
