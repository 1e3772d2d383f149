"""Linear layers that are not EXL3: loaded whole, or an error.

vLLM turns its own check for missing weights off for every quantized checkpoint, and
a layer whose weight never came answers with whatever the memory held.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from vllm.model_executor.layers.linear import UnquantizedLinearMethod

from vllm_exl3.errors import Exl3ConfigError, Exl3Error
from vllm_exl3.schema import PINNED
from vllm_exl3.tables import Codebook

# vLLM's layer: a torch module.
Layer = Any
# What an EXL3 layer has in a checkpoint, beside the markers.
FIELDS = ("trellis", "suh", "svh", "su", "sv")
MARKERS = tuple(c.suffix for c in Codebook if c.suffix)


class PlainLinearMethod(UnquantizedLinearMethod):
    """vLLM's unquantized linear layer, with two faults made visible.

    Its weight is NaN until it is loaded, and a layer that has EXL3 tensors which
    config.json does not list is refused by name.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """``names``: the checkpoint's layers, without their parent."""
        super().__init__()
        self.names = names

    def create_weights(  # noqa: PLR0913, PLR0917 (vLLM's signature)
        self,
        layer: Layer,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Register ``weight`` [out, in] as vLLM does, and what is refused."""
        super().create_weights(
            layer,
            input_size_per_partition,
            output_partition_sizes,
            input_size,
            output_size,
            params_dtype,
            **extra_weight_attrs,
        )
        if layer.weight.is_floating_point():
            layer.weight.data.fill_(torch.nan)
        for field in (*FIELDS, *MARKERS):
            param = Parameter(torch.empty(0), requires_grad=False)
            param.weight_loader = _refuser(layer, field)  # type: ignore[attr-defined]
            layer.register_parameter(field, param)

    def process_weights_after_loading(self, layer: Layer) -> None:
        """What vLLM does, after an ``Exl3Error`` for a weight that did not come."""
        for field in (*FIELDS, *MARKERS):
            delattr(layer, field)
        weight: Tensor = layer.weight.data
        if weight.is_floating_point() and bool(weight.isnan().any()):
            lost = int(weight.isnan().sum())
            raise Exl3Error(
                f"{layer.prefix}.weight ({', '.join(self.names)}; rank "
                f"{layer.tp_rank}): {lost} of {weight.numel()} values are missing in "
                "the checkpoint, or NaN",
                hint="verify the weights: a shard or an index entry is absent",
            )
        super().process_weights_after_loading(layer)


def _refuser(layer: Layer, field: str) -> Any:
    def refuse(*_: object, **__: object) -> None:
        raise Exl3ConfigError(
            f"{layer.prefix}.{field} is EXL3, and config.json does not list that layer "
            "in non_routed_exl3.layers",
            hint=PINNED,
        )

    return refuse
