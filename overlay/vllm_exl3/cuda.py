"""The CUDA path of a layer: kernels called by the plan of ``dispatch``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from vllm_exl3 import dispatch, fallback, kernel_file
from vllm_exl3.dispatch import Kernels, Limits, Shape, Tier
from vllm_exl3.errors import Exl3ConfigError, Exl3Error
from vllm_exl3.schema import Rate
from vllm_exl3.tables import Codebook

MAX_LINEAR_ROWS = 4096


@lru_cache(maxsize=1)
def limits() -> Limits:
    """The tiers' limits; ``EXL3_TIERS`` is ``own`` (default) or ``exllamav3``.

    The second runs exllamav3's kernels alone: for comparison, and as a way round
    should this package's own misbehave on some GPU.
    """
    named = os.environ.get("EXL3_TIERS", Kernels.OWN.value)
    known = [k.value for k in Kernels]
    if named not in known:
        raise Exl3ConfigError(f"EXL3_TIERS is {named!r}, needed {' or '.join(known)}")
    groups = kernel_file.load().exl3_moe_max_concurrency(torch.cuda.current_device())
    kernels = Kernels(named)
    if kernels is Kernels.OWN:
        return Limits(fused_groups=groups)
    return Limits(dispatch.COOP_SLOTS, fused_groups=groups, kernels=kernels)


class Scratch:
    """One process's scratch on one device, shared by its layers (they run in turn).

    It is made while weights load, so that vLLM's memory profile counts it, and grows
    only then: captured graphs hold its address.
    """

    def __init__(self) -> None:
        self.arena = torch.empty(0, dtype=torch.uint8)
        self.coop: dict[Shape, list[Tensor]] = {}

    def reserve(self, size: int, device: torch.device) -> None:
        """At least ``size`` bytes of arena."""
        if self.arena.numel() < size or self.arena.device != device:
            self.arena = torch.empty(size, dtype=torch.uint8, device=device)

    def coop_buffers(self, shape: Shape, device: torch.device) -> list[Tensor]:
        """The cooperative kernels' buffers for a shape; their counters start at 0."""
        if shape not in self.coop:
            self.coop[shape] = _coop_buffers(shape, device)
        return self.coop[shape]


SCRATCH = Scratch()


def _coop_buffers(shape: Shape, device: torch.device) -> list[Tensor]:
    slots, rows = dispatch.COOP_SLOTS, dispatch.COOP_SLOTS // shape.top_k
    kinds: list[tuple[tuple[int, ...], torch.dtype]] = [
        ((slots, shape.hidden), torch.float16),  # rotated gate input
        ((slots, shape.hidden), torch.float16),  # rotated up input
        ((slots, shape.width), torch.float16),  # gate
        ((slots, shape.width), torch.float16),  # up
        ((slots, shape.width), torch.float16),  # activation
        ((slots, shape.hidden), torch.float32),  # down
        ((dispatch.counters(shape),), torch.int32),
        ((rows, shape.hidden), torch.float32),  # sum
        ((rows, shape.hidden), torch.float16),  # x
        ((rows, shape.top_k), torch.int64),  # ids
        ((rows, shape.top_k), torch.float16),  # weights
    ]
    return [torch.zeros(s, dtype=dtype, device=device) for s, dtype in kinds]


def require_kernels(tensor: Tensor, rate: Rate, what: str) -> None:
    """``require_rate`` when ``tensor`` is on a GPU; before any weight is read."""
    if tensor.is_cuda:
        require_rate(rate, what)


def require_rate(rate: Rate, what: str) -> ModuleType:
    """The extension, or an ``Exl3Error`` when it was built for another rate."""
    asked = f"{what} is K = {rate.bits:g} {rate.codebook.label}"
    if rate.bits != int(rate.bits) or rate.codebook not in kernel_file.CODEBOOKS:
        raise Exl3Error(
            f"{asked}, which no GPU kernel reads",
            hint="they exist for K = 1 to 8 of mcg and mul1",
        )
    manifest = kernel_file.Manifest.read(kernel_file.default_folder())
    if (manifest.bits, manifest.codebook) != (rate.bits, int(rate.codebook)):
        raise Exl3Error(
            f"{asked}; the EXL3 kernels were built for K = {manifest.bits} "
            f"{Codebook(manifest.codebook).label}",
            hint=f"{kernel_file.REBUILD} --bits {rate.bits:g} "
            f"--codebook {rate.codebook.label}",
        )
    return kernel_file.load()


@dataclass
class CudaExperts:
    """A layer's routed experts on one GPU.

    ``weights`` are w13's trellis, suh and svh, then w2's (moe.py gives the shapes).
    ``tables`` int64 [9, experts] hold the addresses of each expert's trellis, suh,
    svh, for gate, up and down: exllamav3's kernels take these.
    """

    weights: list[Tensor]
    tables: Tensor
    rate: Rate
    shape: Shape
    swiglu_limit: float
    expert_map: Tensor | None
    kernels: ModuleType

    @classmethod
    def of_layer(cls, layer: Any, rate: Rate) -> CudaExperts:
        """The experts of a loaded vLLM layer; reserves scratch for its longest call."""
        from vllm.config import get_current_vllm_config
        from vllm.logger import init_logger

        kernels = require_rate(rate, layer.layer_name)
        names = ("trellis", "suh", "svh")
        weights = [
            getattr(layer, f"{side}_{n}") for side in ("w13", "w2") for n in names
        ]
        expert_map = layer.expert_map
        experts = cls.of_weights(weights, rate, layer.top_k, kernels)
        experts.swiglu_limit = layer.swiglu_limit or 0.0
        if expert_map is not None:
            experts.expert_map = expert_map.to(torch.int32).contiguous()
        tokens = get_current_vllm_config().scheduler_config.max_num_batched_tokens
        experts.reserve(tokens)
        # A name below vLLM's own, since only its loggers write.
        report = dispatch.scratch_report(tokens, experts.shape, limits())
        init_logger("vllm.exl3").info_once(report)
        return experts

    @classmethod
    def of_weights(
        cls, weights: list[Tensor], rate: Rate, top_k: int, kernels: ModuleType
    ) -> CudaExperts:
        """The experts of bare tensors, all of them local and unclamped."""
        experts, _, rows, columns, _ = weights[0].shape
        shape = Shape(experts, top_k, rows * 16, columns * 16)
        tables = torch.tensor(_addresses(weights), dtype=torch.int64).T.contiguous()
        tables = tables.to(weights[0].device)
        return cls(weights, tables, rate, shape, 0.0, None, kernels)

    def reserve(self, max_tokens: int) -> int:
        """Make the shared scratch large enough; its bytes."""
        size = dispatch.scratch_bytes(max_tokens, self.shape, limits())
        device = self.weights[0].device
        SCRATCH.coop_buffers(self.shape, device)
        SCRATCH.reserve(size - dispatch.coop_bytes(self.shape), device)
        return size

    def forward(self, x: Tensor, topk_weights: Tensor, topk_ids: Tensor) -> Tensor:
        """The routed sum [tokens, hidden] in x's dtype (bf16 or fp16).

        *Shapes*: x [tokens, hidden], topk_weights and topk_ids [tokens, k]. Safe in
        a CUDA graph: no host synchronisation while one is captured.
        """
        x, ids = x.contiguous(), topk_ids.contiguous()
        weights = topk_weights.to(torch.float32).contiguous()
        out = torch.empty_like(x)
        capturing = torch.cuda.is_current_stream_capturing()
        counts = fallback.counts(self, ids, limits(), capturing=capturing)
        steps = dispatch.plan(
            len(x), self.shape, limits(), counts=counts, capturing=capturing
        )
        for step in steps:
            part = slice(step.start, step.start + step.tokens)
            self._run(step, x[part], ids[part], weights[part], out[part])
        return out

    def _run(
        self,
        step: dispatch.Pass,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        out: Tensor,
    ) -> None:
        call = (x, ids, weights, self.expert_map, out)
        rate = (int(self.rate.bits), int(self.rate.codebook))
        if step.tier is Tier.GROUPED:
            arena, limit = SCRATCH.arena, self.swiglu_limit
            self.kernels.moe_grouped(
                *call, self.weights, arena, *rate, limit, step.tile
            )
        elif step.tier is Tier.COOP:
            buffers = SCRATCH.coop_buffers(self.shape, x.device)
            self.kernels.moe_coop(*call, self.tables, buffers, *rate, self.swiglu_limit)
        else:
            fallback.run(self, step, SCRATCH.arena, x, ids, weights, out)


def _addresses(weights: list[Tensor]) -> list[list[int]]:
    """For each expert its nine addresses, in the order of ``CudaExperts.tables``."""
    w13, w2 = weights[:3], weights[3:]
    return [
        [t[e, i].data_ptr() for i in (0, 1) for t in w13]
        + [t[e].data_ptr() for t in w2]
        for e in range(len(w2[0]))
    ]


@dataclass
class CudaLinear:
    """A dense EXL3 layer on one GPU; ``parts`` are those that vLLM fuses."""

    parts: list[tuple[Tensor, Tensor, Tensor]]
    rate: Rate
    kernels: ModuleType

    @classmethod
    def of_layer(cls, layer: Any, rate: Rate) -> CudaLinear:
        """Of a loaded vLLM layer; each part's trellis becomes contiguous."""
        kernels = require_rate(rate, layer.prefix)
        parts, start = [], 0
        for index, size in enumerate(layer.exl3_parts):
            trellis = layer.trellis[:, start // 16 : (start + size) // 16].contiguous()
            svh = layer.svh[start : start + size]
            parts.append((trellis, layer.suh[index], svh))
            start += size
        del layer.trellis
        return cls(parts, rate, kernels)

    def forward(self, x: Tensor) -> Tensor:
        """``x @ weight`` for x [..., in], in x's dtype."""
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        columns = [len(svh) for _, _, svh in self.parts]
        out = torch.empty(len(rows), sum(columns), dtype=x.dtype, device=x.device)
        most = min(len(rows), MAX_LINEAR_ROWS)
        size = 2 * most * (rows.shape[1] + max(columns)) + 2 * dispatch.ALIGNMENT
        scratch = torch.empty(size, dtype=torch.uint8, device=x.device)
        tile = next((t for t in dispatch.ROW_TILES if most <= t), 128)
        for at in range(0, len(rows), MAX_LINEAR_ROWS):
            block = slice(at, at + MAX_LINEAR_ROWS)
            column = 0
            for (trellis, suh, svh), width in zip(self.parts, columns, strict=True):
                self.kernels.linear(
                    rows[block], trellis, suh, svh, out[block], column, scratch,
                    int(self.rate.bits), int(self.rate.codebook), tile,
                )  # fmt: skip
                column += width
        return out.reshape(*x.shape[:-1], out.shape[-1])
