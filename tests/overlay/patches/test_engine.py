"""A real vLLM engine runs from the patched tree: loads, generates, says its pool."""

import os
import subprocess
import sys

import pytest

from tests.overlay.patches.conftest import installed_vllm

PROGRAM = """
import json, sys
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

def main():
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        max_position_embeddings=256, architectures=["Qwen3ForCausalLM"],
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(sys.argv[1])
    import vllm
    from vllm.model_executor.model_loader import padded_heads
    from vllm import LLM, SamplingParams
    llm = LLM(
        sys.argv[1], skip_tokenizer_init=True, max_model_len=128, enforce_eager=True,
        kv_cache_memory_bytes=64 * 2**20,
    )
    params = SamplingParams(
        temperature=0, max_tokens=8, detokenize=False, ignore_eos=True
    )
    out = llm.generate([{"prompt_token_ids": [5, 6, 7]}], params)
    print("RESULT", json.dumps([vllm.__file__, out[0].outputs[0].token_ids]))

if __name__ == "__main__":
    main()
"""


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_engine_generates_from_the_patched_tree(patched_tree, tmp_path):
    installed_vllm()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "model")],
        env={
            **os.environ,
            "PYTHONPATH": str(patched_tree),
            "PYTHONDONTWRITEBYTECODE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "GLMSPARK_SPIN_MS": "16",
            "GLMSPARK_STOPS_AFTER_REASONING": "1",
            "HF_HUB_OFFLINE": "1",
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=tmp_path,
    )
    text = done.stdout + done.stderr
    assert done.returncode == 0, text[-4000:]
    result = text.split("RESULT ", 1)[1].splitlines()[0]
    assert str(patched_tree) in result
    assert result.count(",") >= 8  # eight tokens
    assert "KV pool: " in text
