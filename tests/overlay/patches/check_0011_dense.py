"""Which quantization the attention layers are built with, and what vLLM's own online
FP8 would take under the patterns that the rank line carries."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import glm5next_stub

glm5next_stub.install()
for module, names in {
    "vllm.model_executor.models.glm4_1v": (
        "Glm4vDummyInputsBuilder",
        "Glm4vForConditionalGeneration",
    ),
    "vllm.models.glm5next.common.multimodal": (
        "Glm5NextMultiModalProcessor",
        "Glm5NextProcessingInfo",
        "Glm5NextVisionTransformer",
    ),
}.items():
    stub = sys.modules.setdefault(module, ModuleType(module))
    for name in names:
        setattr(stub, name, type(name, (), {}))

from vllm.config.quantization import QuantizationConfigArgs  # noqa: E402
from vllm.model_executor.layers.linear import ReplicatedLinear  # noqa: E402
from vllm.model_executor.layers.quantization.online import fp8  # noqa: E402
from vllm.model_executor.layers.quantization.online.base import (  # noqa: E402
    OnlineQuantizationConfig,
)
from vllm.models.glm5next.common import kda as kda_file  # noqa: E402
from vllm.models.glm5next.common import model as glm  # noqa: E402

MINE = object()  # the checkpoint's quantization


class BuiltError(Exception):
    """Carries what a layer was built with."""


def mla_config():
    config = mock.MagicMock()
    config.layer_types = ["deepseek_sparse_attention"]
    vllm_config = SimpleNamespace(
        cache_config=None,
        quant_config=MINE,
        parallel_config=SimpleNamespace(use_sequence_parallel_moe=False),
    )

    def build(**kwargs):
        raise BuiltError(kwargs["quant_config"])

    with (
        mock.patch.object(glm, "Glm5NextMLAAttention", build),
        pytest.raises(BuiltError) as e,
    ):
        glm.Glm5NextDecoderLayer(vllm_config, config, 0)
    return e.value.args[0]


def kda_config():
    seen = []
    vllm_config = SimpleNamespace(quant_config=MINE)

    def build(self, config, vllm_config, prefix):
        raise BuiltError(vllm_config.quant_config)

    base = kda_file.Glm5NextLinearAttention.__mro__[1]
    with mock.patch.object(base, "__init__", build), pytest.raises(BuiltError) as e:
        kda_file.Glm5NextLinearAttention(mock.MagicMock(), vllm_config, "p")
    assert vllm_config.quant_config is MINE, "the setting has to be put back"
    seen.append(e.value.args[0])
    return seen[0]


@pytest.mark.parametrize("mode", ["fp8", "exl3"])
def test_knob_hands_the_quantization_on(monkeypatch, mode):
    monkeypatch.setenv("GLMSPARK_DENSE", mode)
    assert mla_config() is MINE
    assert kda_config() is MINE


def test_typo_is_no_mode(monkeypatch):
    monkeypatch.setenv("GLMSPARK_DENSE", "fp4")
    with pytest.raises(ValueError, match="'fp4', not bf16, fp8 or exl3"):
        kda_file.Glm5NextLinearAttention(
            mock.MagicMock(), SimpleNamespace(quant_config=MINE), "p"
        )


@pytest.mark.parametrize("mode", [None, "bf16"])
def test_both_stay_bf16_without_it(monkeypatch, mode):
    monkeypatch.delenv("GLMSPARK_DENSE", raising=False)
    if mode:
        monkeypatch.setenv("GLMSPARK_DENSE", mode)
    assert mla_config() is None
    assert kda_config() is None


# The patterns of glmspark.serving.render.DENSE_FP8_TARGETS; its test compares them.
TARGETS = {
    r"re:.*\.self_attn\.(in_proj_qkvbfg_a|f_b_proj|g_b_proj|q_b_proj|o_proj)$": (
        "fp8_per_channel"
    ),
    r"re:.*\.shared_experts\.(gate_proj|up_proj|down_proj)$": "fp8_per_channel",
}


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("language_model.model.layers.0.self_attn.in_proj_qkvbfg_a", True),
        ("language_model.model.layers.0.self_attn.o_proj", True),
        ("language_model.model.layers.3.self_attn.q_b_proj", True),
        ("language_model.model.layers.3.mlp.shared_experts.gate_up_proj", True),
        ("language_model.model.layers.3.mlp.shared_experts.down_proj", True),
        ("language_model.model.layers.3.self_attn.kv_b_proj", False),
        ("language_model.model.layers.3.self_attn.fused_qkv_a_proj", False),
        ("language_model.model.layers.3.self_attn.indexer.wq_b", False),
        ("language_model.model.layers.0.mlp.gate_up_proj", False),
        ("visual.blocks.0.attn.proj", False),
    ],
)
def test_both_online_fp8_takes_these(name, taken):
    config = OnlineQuantizationConfig(QuantizationConfigArgs(targets=TARGETS))
    config.packed_modules_mapping = {"gate_up_proj": ["gate_proj", "up_proj"]}
    found = config.resolve_quant_method_cls(ReplicatedLinear, name)
    assert (found is not None) is taken
    if taken:
        assert found[-1] is fp8.Fp8PtpcOnlineLinearMethod


def test_both_per_channel_fp8_keeps_four_percent():
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(1))
    scale = fp8._fp8_channel_scale(weight.abs().amax(-1, keepdim=True))
    back = fp8._fp8_quant_per_channel(weight, scale).float() * scale
    error = (back - weight).norm() / weight.norm()
    assert 0.005 < error < 0.04
