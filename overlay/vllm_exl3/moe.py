"""Routed experts as EXL3 in vLLM: parameters, loading, and the call of the layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from vllm.model_executor.layers.fused_moe.config import (
    FusedMoEConfig,
    FusedMoEQuantConfig,
)
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import (
    FusedMoEMethodBase,
)

from vllm_exl3 import cuda, layout, loader, reference
from vllm_exl3.errors import Exl3ConfigError
from vllm_exl3.format import Exl3Linear
from vllm_exl3.schema import Rate
from vllm_exl3.tables import TILE, Codebook

# vLLM's RoutedExperts: a torch module that carries attributes of ours, named exl3_*.
Layer = Any
# Tensors that exist only to be refused by name: vLLM would skip them silently.
FOREIGN = ("bias",)


class Exl3MoEMethod(FusedMoEMethodBase):
    """One layer's routed experts at one rate.

    *Parameters* of a rank with E experts, hidden H, its share I of the intermediate
    dimension, and 16·K words a tile: ``w13_trellis`` int16 [E, 2, H/16, I/16, 16K],
    ``w13_suh`` fp16 [E, 2, H], ``w13_svh`` fp16 [E, 2, I], ``w2_trellis`` int16
    [E, I/16, H/16, 16K], ``w2_suh`` fp16 [E, I], ``w2_svh`` fp16 [E, H], and the
    codebook's marker, int32. Index 0 of the pair is gate, 1 is up.
    """

    def __init__(self, moe: FusedMoEConfig, rate: Rate) -> None:
        super().__init__(moe)
        self.rate = rate

    def get_fused_moe_quant_config(
        self,
        layer: Layer,  # noqa: ARG002 (vLLM's signature)
    ) -> FusedMoEQuantConfig | None:
        """None: the kernels are not vLLM's modular ones."""
        return None

    def create_weights(
        self,
        layer: Layer,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Register the parameters above, each with this package's loader.

        vLLM's own ``weight_loader`` knows no trellis and is not used. Raises
        ``Exl3ConfigError`` for dimensions that are not multiples of 128.
        """
        del extra_weight_attrs
        parallel = self.moe.moe_parallel_config
        whole = intermediate_size_per_partition * parallel.tp_size
        layout.check_split(f"{layer.layer_name}: hidden_size", hidden_size, 1)
        layout.check_split(
            f"{layer.layer_name}: intermediate size", whole, parallel.tp_size
        )
        if layer.apply_router_weight_on_input:
            raise Exl3ConfigError(
                f"{layer.layer_name} applies router weights to its input, which "
                "EXL3 experts do not"
            )
        layer.exl3_params_dtype = params_dtype
        layer.exl3_loader = self._loader(layer, hidden_size, whole)
        self._register(layer, num_experts, hidden_size, intermediate_size_per_partition)
        cuda.require_kernels(layer.w13_trellis, self.rate, layer.layer_name)

    def _loader(
        self, layer: Layer, hidden: int, intermediate: int
    ) -> loader.ExpertLoader:
        parallel = self.moe.moe_parallel_config
        experts = layer.expert_map_manager.get_local_expert_ids()
        ledger = loader.Ledger(
            layer.layer_name,
            parallel.ep_rank if parallel.use_ep else parallel.tp_rank,
            loader.needed_keys(experts, layout.PROJECTIONS.values(), self.rate),
        )
        return loader.ExpertLoader(
            ledger,
            self.rate,
            hidden,
            intermediate,
            layout.Split(parallel.tp_rank, parallel.tp_size),
            layer._map_global_expert_id_to_local_expert_id,
        )

    def _register(self, layer: Layer, experts: int, hidden: int, width: int) -> None:
        words = self.rate.words
        shapes = {
            "w13_trellis": (experts, 2, hidden // TILE, width // TILE, words),
            "w13_suh": (experts, 2, hidden),
            "w13_svh": (experts, 2, width),
            "w2_trellis": (experts, width // TILE, hidden // TILE, words),
            "w2_suh": (experts, width),
            "w2_svh": (experts, hidden),
        }
        for name, shape in shapes.items():
            dtype = torch.int16 if name.endswith("trellis") else torch.float16
            _add(layer, name, torch.empty(shape, dtype=dtype), self._load(layer, name))
        own = self.rate.codebook.suffix
        for side, marker in (("w13", (experts, 2, 1)), ("w2", (experts, 1))):
            if own:
                name = f"{side}_{own}"
                call = self._load(layer, name)
                _add(layer, name, torch.empty(marker, dtype=torch.int32), call)
            for scale in ("suh", "svh"):
                target = f"{side}_{scale}"
                call = self._load(layer, target, signs=True)
                _add(layer, target.removesuffix("h"), torch.empty(0), call)
            for name in self._foreign():
                _add(layer, f"{side}_{name}", torch.empty(0), _refuser(layer, name))

    def _foreign(self) -> list[str]:
        markers = [c.suffix for c in Codebook if c.suffix and c != self.rate.codebook]
        return [*FOREIGN, *markers]

    def _load(self, layer: Layer, name: str, *, signs: bool = False) -> Any:
        field = name.partition("_")[2]
        key = field if field in layout.DTYPES else "marker"

        def load(  # noqa: PLR0913, PLR0917 (vLLM's signature)
            param: Tensor,
            loaded_weight: Tensor,
            weight_name: str,  # noqa: ARG001 (the ledger names it better)
            shard_id: str,
            expert_id: int,
            return_success: bool = False,  # noqa: FBT001, FBT002
        ) -> bool | None:
            experts: loader.ExpertLoader = layer.exl3_loader
            target = getattr(layer, name) if signs else param
            done = experts.load(
                target, loaded_weight, key, shard_id, expert_id, old=signs
            )
            return done if return_success else None

        return load

    def process_weights_after_loading(self, layer: Layer) -> None:
        """Check that everything came, then make the layer ready for its device.

        Raises ``Exl3Error`` naming layer, expert, tensor and rank of what is missing.
        """
        layer.exl3_loader.ledger.check_complete()
        for name in [n for n, p in layer.named_parameters() if not p.numel()]:
            delattr(layer, name)
        if layer.w13_trellis.is_cuda:
            layer.exl3_cuda = cuda.CudaExperts.of_layer(layer, self.rate)
        else:
            self._decode_on_cpu(layer)

    def _decode_on_cpu(self, layer: Layer) -> None:
        """Replace the packed experts by their dense weights: four times the bytes."""
        dense = [
            [
                Exl3Linear(*parts, codebook=self.rate.codebook)
                for parts in expert_parts(layer, expert)
            ]
            for expert in range(layer.w13_trellis.shape[0])
        ]
        layer.exl3_dense = reference.dense_experts(dense, layer.exl3_params_dtype)
        for name in ("w13_trellis", "w2_trellis"):
            delattr(layer, name)

    def apply(  # noqa: PLR0913, PLR0917 (vLLM's signature)
        self,
        layer: Layer,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        shared_experts: object | None = None,  # noqa: ARG002 (the runner adds them)
        shared_experts_input: Tensor | None = None,  # noqa: ARG002
    ) -> Tensor:
        """This rank's part of the routed sum, in the shape and dtype of ``x``.

        The runner adds shared experts and reduces over ranks.
        """
        if x.is_cuda:
            experts: Tensor = layer.exl3_cuda.forward(x, topk_weights, topk_ids)
            return experts
        if layer.expert_map is not None:
            topk_ids = layer.expert_map[topk_ids.long()]
        w13, w2 = layer.exl3_dense
        limit = layer.swiglu_limit
        return reference.routed_experts(x, topk_weights, topk_ids, w13, w2, limit)


def expert_parts(layer: Layer, expert: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """(trellis, suh, svh) of an expert's gate, up and down."""
    pairs = [
        (
            layer.w13_trellis[expert, i],
            layer.w13_suh[expert, i],
            layer.w13_svh[expert, i],
        )
        for i in (0, 1)
    ]
    down = (layer.w2_trellis[expert], layer.w2_suh[expert], layer.w2_svh[expert])
    return [*pairs, down]


def _refuser(layer: Layer, name: str) -> Any:
    def refuse(  # noqa: PLR0913, PLR0917 (vLLM's signature)
        param: Tensor,  # noqa: ARG001
        loaded_weight: Tensor,  # noqa: ARG001
        weight_name: str,  # noqa: ARG001
        shard_id: str,
        expert_id: int,
        return_success: bool = False,  # noqa: ARG001, FBT001, FBT002
    ) -> None:
        layer.exl3_loader.refuse(name, shard_id, expert_id)

    return refuse


def _add(layer: Layer, name: str, data: Tensor, weight_loader: Any) -> None:
    param = Parameter(data, requires_grad=False)
    param.weight_loader = weight_loader  # type: ignore[attr-defined]
    layer.register_parameter(name, param)
