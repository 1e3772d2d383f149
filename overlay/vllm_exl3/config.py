"""``quant_method: exl3`` for vLLM: which layers are EXL3, decided by config.json."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.quantization import (
    get_quantization_config,
    register_quantization_config,
)
from vllm.model_executor.layers.quantization.base_config import (
    QuantizationConfig,
    QuantizeMethodBase,
)

from vllm_exl3 import layout, schema, stfile
from vllm_exl3.errors import Exl3ConfigError
from vllm_exl3.linear import Exl3LinearMethod
from vllm_exl3.moe import Exl3MoEMethod
from vllm_exl3.plain import PlainLinearMethod

if TYPE_CHECKING:
    from vllm.model_executor.models.utils import WeightsMapper


class Exl3Config(QuantizationConfig):
    """The EXL3 part of a model's configuration, as vLLM asks for it.

    Routed experts are EXL3, linear layers when ``non_routed_exl3.layers`` lists them;
    embeddings, norms and everything else keep their own dtype.
    """

    def __init__(self, spec: schema.Exl3Spec) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.spec = spec
        self._layout_checked = False

    def __repr__(self) -> str:
        rate = self.spec.experts
        return f"Exl3Config(bits={rate.bits}, codebook={rate.codebook.label})"

    @classmethod
    def get_name(cls) -> Any:
        """The name in ``quant_method``."""
        return schema.QUANT_METHOD

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        """bf16 and fp16: what the kernels take."""
        return [torch.bfloat16, torch.float16]

    @classmethod
    def get_min_capability(cls) -> int:
        """8.0, since the kernels use asynchronous copies and m16n8k16."""
        return 80

    @staticmethod
    def get_config_filenames() -> list[str]:
        """None: everything is in config.json."""
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Exl3Config:
        """The configuration of a checkpoint; ``Exl3ConfigError`` names a bad field."""
        return cls(schema.parse(config))

    def apply_vllm_mapper(self, hf_to_vllm_mapper: WeightsMapper) -> None:
        """Take over the engine's names of the layers that config.json lists."""
        self.spec = self.spec.renamed(
            lambda name: hf_to_vllm_mapper.map_name(name) or name
        )

    def get_quant_method(
        self, layer: torch.nn.Module, prefix: str
    ) -> QuantizeMethodBase | None:
        """The method of one layer; None leaves it as it is."""
        self._check_layout()
        if isinstance(layer, RoutedExperts):
            return Exl3MoEMethod(layer.moe_config, self.spec.experts)
        if not isinstance(layer, LinearBase):
            self._refuse_listed(layer, prefix)
            return None
        packed = self.packed_modules_mapping
        rate = self.spec.dense_rate(prefix, packed)
        names = schema.parts_of(prefix, packed)
        if rate is None:
            return PlainLinearMethod(names)
        native = self.spec.ignores_native
        return Exl3LinearMethod(rate, names, ignores_native=native)

    def _refuse_listed(self, layer: torch.nn.Module, prefix: str) -> None:
        if prefix in self.spec.dense:
            raise Exl3ConfigError(
                f"non_routed_exl3.layers lists {prefix}, a {type(layer).__name__}: "
                "only linear layers and routed experts can be EXL3 here"
            )

    def _check_layout(self) -> None:
        """Refuse, once and early, files that are not whole and a layout that cuts.

        vLLM names no file that is cut short, lets a tensor be absent that a layer
        which is not quantized needs, and divides the expert width among the ranks with
        a bare assertion.
        This is asked for the model's first layer, before any expert exists.
        """
        vllm_config = get_current_vllm_config_or_none()
        if self._layout_checked or vllm_config is None:
            return
        self._layout_checked = True
        folder = Path(str(getattr(vllm_config.model_config, "model", None)))
        if folder.is_dir():
            stfile.check_folder(folder)
        _check_experts(vllm_config)


def _check_experts(vllm_config: Any) -> None:
    """``Exl3ConfigError`` when ranks would cut the experts' Hadamard blocks."""
    text = getattr(vllm_config.model_config, "hf_text_config", None)
    parallel = vllm_config.parallel_config
    width = getattr(text, "moe_intermediate_size", None)
    if width is not None and not isinstance(width, int):
        raise Exl3ConfigError(f"moe_intermediate_size is {width!r}, needed a number")
    if width is not None and not parallel.enable_expert_parallel:
        experts = next(
            (
                getattr(text, name)
                for name in ("n_routed_experts", "num_experts", "num_local_experts")
                if getattr(text, name, None)
            ),
            0,
        )
        layout.check_split(
            "the experts' intermediate dimension (moe_intermediate_size)",
            width,
            parallel.tensor_parallel_size,
            experts,
        )


def register_once() -> None:
    """Register ``Exl3Config`` unless it is registered."""
    try:
        known = get_quantization_config(schema.QUANT_METHOD)
    except ValueError:
        known = None
    if known is not Exl3Config:
        register_quantization_config(schema.QUANT_METHOD)(Exl3Config)
