"""Dense linear layers that are EXL3 (packs that list ``non_routed_exl3.layers``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter, functional
from vllm.model_executor.layers.linear import LinearMethodBase, QKVParallelLinear

from vllm_exl3 import cuda, layout, loader
from vllm_exl3 import format as exl3
from vllm_exl3.errors import Exl3ConfigError, Exl3Error
from vllm_exl3.layout import LinearLayout, Split
from vllm_exl3.schema import Rate
from vllm_exl3.tables import TILE, Codebook

ShardId = str | int | None
# vLLM's layer: a torch module that carries attributes of ours, named exl3_*.
Layer = Any
SHARDS: dict[ShardId, int] = {None: 0, 0: 0, 1: 1, 2: 2, 3: 3, "q": 0, "k": 1, "v": 2}


class Exl3LinearMethod(LinearMethodBase):
    """One linear layer, or several that vLLM fuses along the output, at one rate.

    *Parameters* for an input share N and output shares M1, M2, … of a rank: ``trellis``
    int16 [N/16, sum(M)/16, 16K], ``suh`` fp16 [parts, N], ``svh`` fp16 [sum(M)], and
    the marker int32 [parts].
    """

    def __init__(
        self, rate: Rate, names: Sequence[str], *, ignores_native: bool = False
    ) -> None:
        """``names``: the checkpoint's layers, without their parent, in their order."""
        self.rate = rate
        self.names = names
        self.ignores_native = ignores_native

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
        """Register the parameters above; ``Exl3ConfigError`` for cut blocks."""
        del extra_weight_attrs
        by_rows = input_size_per_partition != input_size
        layer.exl3_cut = "rows" if by_rows else "columns"
        if not by_rows and sum(output_partition_sizes) == output_size:
            layer.exl3_cut = ""
        layer.exl3_parts = list(output_partition_sizes)
        self._check_sizes(layer, input_size)
        layer.exl3_params_dtype = params_dtype
        layer.exl3_ledger = loader.Ledger(
            layer.prefix,
            layer.tp_rank,
            loader.needed_keys([None], self.names, self.rate),
        )
        self._register(layer, input_size_per_partition)
        cuda.require_kernels(layer.trellis, self.rate, layer.prefix)

    def _check_sizes(self, layer: Layer, rows: int) -> None:
        """Every part is known by name, and no rank cuts a Hadamard block."""
        if len(self.names) != len(layer.exl3_parts):
            raise Exl3ConfigError(
                f"{layer.prefix} fuses {len(layer.exl3_parts)} layers, of which this "
                f"package knows {', '.join(self.names)}: it cannot be EXL3"
            )
        ranks = layer.tp_size if layer.exl3_cut == "rows" else 1
        layout.check_split(f"{layer.prefix}: input", rows, ranks)
        for part, size in enumerate(layer.exl3_parts):
            ranks = _ranks(layer, part) if layer.exl3_cut == "columns" else 1
            what = f"{layer.prefix}: output of {self.names[part]}"
            layout.check_split(what, size * ranks, ranks)

    def _register(self, layer: Layer, rows: int) -> None:
        columns, count = sum(layer.exl3_parts), len(layer.exl3_parts)
        own = self.rate.codebook.suffix
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "trellis": ((rows // TILE, columns // TILE, self.rate.words), torch.int16),
            "suh": ((count, rows), torch.float16),
            "svh": ((columns,), torch.float16),
        }
        if own:
            shapes[own] = ((count,), torch.int32)
        for name, (shape, dtype) in shapes.items():
            _add(layer, name, torch.empty(shape, dtype=dtype), self._load(layer, name))
        for name in ("su", "sv"):
            call = self._load(layer, f"{name}h", signs=True)
            _add(layer, name, torch.empty(0), call)
        _add(layer, "weight", torch.empty(0), _native(layer, self.ignores_native))
        for codebook in Codebook:
            if codebook.suffix and codebook != self.rate.codebook:
                call = _refuser(layer, codebook.suffix, self.rate)
                _add(layer, codebook.suffix, torch.empty(0), call)

    def _load(self, layer: Layer, name: str, *, signs: bool = False) -> Any:
        key = name if name in layout.DTYPES else "marker"

        def load(param: Tensor, loaded: Tensor, shard_id: ShardId = None) -> None:
            part, ledger = SHARDS[shard_id], layer.exl3_ledger
            shape, at = _shape(layer, self.rate, part)
            named = loader.field_name(key, self.rate, old=signs)
            label = ledger.name((None, self.names[part], named))
            values = loader.signs(label, key, loaded, shape) if signs else loaded
            values = loader.take(label, key, values, shape, at)
            field = loader.field_name(key, self.rate)
            ledger.record((None, self.names[part], field))
            target = getattr(layer, name) if signs else param
            _place(target.data, key, layer.exl3_parts, part).copy_(values)

        return load

    def process_weights_after_loading(self, layer: Layer) -> None:
        """Check completeness; on a CPU, keep the dense weight instead."""
        layer.exl3_ledger.check_complete()
        for name in [n for n, p in layer.named_parameters() if not p.numel()]:
            delattr(layer, name)
        if layer.trellis.is_cuda:
            layer.exl3_cuda = cuda.CudaLinear.of_layer(layer, self.rate)
            return
        dense = [part.dense().T for part in _parts(layer, self.rate)]
        layer.exl3_dense = torch.cat(dense).to(layer.exl3_params_dtype)
        del layer.trellis

    def apply(self, layer: Layer, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """``x @ weight + bias``, this rank's columns or partial sum."""
        if x.is_cuda:
            out: Tensor = layer.exl3_cuda.forward(x)
            return out if bias is None else out + bias
        return functional.linear(x, layer.exl3_dense, bias)


def _parts(layer: Layer, rate: Rate) -> list[exl3.Exl3Linear]:
    """The fused layer's parts as checked EXL3 layers."""
    parts, start = [], 0
    for index, size in enumerate(layer.exl3_parts):
        trellis = layer.trellis[:, start // TILE : (start + size) // TILE]
        svh = layer.svh[start : start + size]
        parts.append(exl3.Exl3Linear(trellis, layer.suh[index], svh, rate.codebook))
        start += size
    return parts


def _ranks(layer: Layer, part: int) -> int:
    """Over how many ranks a part is cut: several may share a key or value head."""
    ranks: int = layer.tp_size
    if isinstance(layer, QKVParallelLinear) and part:
        ranks //= layer.num_kv_head_replicas
    return ranks


def _shape(layer: Layer, rate: Rate, part: int) -> tuple[LinearLayout, Split]:
    """The whole layout of a part, and this rank's share of it."""
    ranks, cut = _ranks(layer, part), layer.exl3_cut
    rank = layer.tp_rank * ranks // layer.tp_size
    rows = layer.suh.shape[1] * (ranks if cut == "rows" else 1)
    columns = layer.exl3_parts[part] * (ranks if cut == "columns" else 1)
    return LinearLayout(rows, columns, rate, cut), Split(rank, ranks)


def _place(data: Tensor, key: str, sizes: list[int], part: int) -> Tensor:
    """The view of a parameter that a part's values go to."""
    if key in {"suh", "marker"}:
        return data[part] if key == "suh" else data[part : part + 1]
    start, size = sum(sizes[:part]), sizes[part]
    if key == "svh":
        return data[start : start + size]
    return data[:, start // TILE : (start + size) // TILE]


def _native(layer: Layer, ignores: bool) -> Any:  # noqa: FBT001 (a private helper)
    """The loader of a native weight beside EXL3 tensors: left out, or an error."""

    def load(param: Tensor, loaded: Tensor, shard_id: ShardId = None) -> None:  # noqa: ARG001
        if not ignores:
            raise Exl3Error(
                f"{layer.prefix}.weight does not belong to a checkpoint whose "
                "config.json lists that layer in non_routed_exl3.layers"
            )

    return load


def _refuser(layer: Layer, name: str, rate: Rate) -> Any:
    def refuse(param: Tensor, loaded: Tensor, shard_id: ShardId = None) -> None:  # noqa: ARG001
        raise Exl3Error(
            f"{layer.prefix}.{name} does not belong to a checkpoint whose config.json "
            f"says codebook {rate.codebook.label}"
        )

    return refuse


def _add(layer: Layer, name: str, data: Tensor, weight_loader: Any) -> None:
    param = Parameter(data, requires_grad=False)
    param.weight_loader = weight_loader  # type: ignore[attr-defined]
    layer.register_parameter(name, param)
