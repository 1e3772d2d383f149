"""Routed experts on a GPU: this package against exllamav3's calls; JSON on stdout.

Times are medians of device events, in microseconds a layer call. Several layers take
turns, so that weights come from memory and not from the L2 cache.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from vllm_exl3 import cuda, dispatch, fallback, kernel_file
from vllm_exl3.dispatch import Kernels

from tests.gpu import exl3_case as case

DECODE = (1, 2, 3, 4, 8, 16, 24, 32)
MIDDLE = (33, 48, 64, 96, 128, 256, 512, 768, 1024)
PREFILL = (2048, 4608, 7168)
LAYERS = 3
Call = Callable[[cuda.CudaExperts], Any]


def replayed(layers: list[cuda.CudaExperts], call: Call, repeat: int = 20) -> float:
    """Microseconds a call under graph replay, one graph of a call on each layer."""
    for layer in layers:
        call(layer)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in layers:
            call(layer)
    return measured(graph.replay, repeat) / len(layers)


def measured(run: Callable[[], Any], repeat: int = 20) -> float:
    """The median of ``repeat`` runs after two warm-ups, in microseconds."""
    times = []
    for index in range(repeat + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        if index >= 2:
            times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def eager(layers: list[cuda.CudaExperts], call: Call, repeat: int = 7) -> float:
    def run() -> None:
        for layer in layers:
            call(layer)

    return measured(run, repeat) / len(layers)


def bare_coop(tokens: int) -> Call:
    """exllamav3's cooperative call alone, its inputs already fp16 and int64."""
    x, weights, ids = case.make_call(tokens)
    ids, weights = ids.long(), weights.half()

    def call(layer: cuda.CudaExperts) -> None:
        s = cuda.SCRATCH.coop_buffers(layer.shape, x.device)
        t = layer.tables
        layer.kernels.exl3_moe_coop(
            x, ids, weights, -1, -1, case.HIDDEN, t[0], t[1], t[2], t[3], t[4], t[5],
            t[6], t[7], t[8], None, None, None, 4.0, 4.0, 4.0, True, False, 0, 0.0,
            True, s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], None, None,
        )  # fmt: skip

    return call


def plain_fused(tokens: int, rows: int) -> Call:
    """``exl3_moe`` as exllamav3 calls it: sort, count, one launch."""
    x, weights, ids = case.make_call(tokens)
    flat, count = ids.flatten().long(), case.EXPERTS
    gains = weights.flatten().half()

    def call(layer: cuda.CudaExperts) -> torch.Tensor:
        order = flat.argsort()
        found = torch.bincount(flat, minlength=count + 1)
        total = torch.zeros(x.shape, dtype=torch.float32, device="cuda")
        routing = (found, order // case.TOP_K, gains[order])
        fallback.fused(layer, rows, cuda.SCRATCH.arena, x, routing, total)
        return total

    return call


def ours(tokens: int, coop_tokens: int) -> Call:
    """The layer call on bf16 input, with the given tier boundary."""
    x, weights, ids = case.make_call(tokens, torch.bfloat16)
    base = real_limits()

    def call(layer: cuda.CudaExperts) -> torch.Tensor:
        cuda.limits = lambda: replace(base, coop_tokens=coop_tokens)  # type: ignore[assignment]
        return layer.forward(x, weights, ids)

    return call


def grouped(tokens: int, tile: int) -> Call:
    """One GROUPED pass with a forced row tile."""
    x, weights, ids = case.make_call(tokens, torch.bfloat16)
    out = torch.empty_like(x)

    def call(layer: cuda.CudaExperts) -> None:
        layer.kernels.moe_grouped(
            x, ids, weights, None, out, layer.weights, cuda.SCRATCH.arena, 4, 1, 10.0,
            tile,
        )  # fmt: skip

    return call


def dense(
    layer: cuda.CudaExperts, pick: torch.Tensor, first: int, rows: int, columns: int
) -> torch.Tensor:
    """The dequantised fp16 weights of the picked experts' projection."""
    made = torch.empty(len(pick), rows, columns, dtype=torch.float16, device="cuda")
    ptrs = [layer.tables[first + i][pick] for i in range(3)]
    layer.kernels.reconstruct_had_batch(made, *ptrs, 4.0, True, False)
    return made


def batched_reconstruct(tokens: int, group: int = 16) -> Call:
    """Dequantise groups of experts, then batched GEMMs: exllamav3's prefill sequence.

    Its own calls (``reconstruct_had_batch``) with torch's batched GEMM; experts are
    sorted by rows so that padding is small, host counts included.
    """
    x, weights, ids = case.make_call(tokens)
    flat = ids.flatten().long()

    def call(layer: cuda.CudaExperts) -> torch.Tensor:
        h, w = case.HIDDEN, case.WIDTH
        order = flat.argsort()
        counts = torch.bincount(flat, minlength=case.EXPERTS)
        starts = torch.cumsum(counts, 0) - counts
        host = counts.tolist()
        ranked = sorted(range(case.EXPERTS), key=lambda e: -host[e])
        total = torch.zeros(x.shape, dtype=torch.float32, device="cuda")
        for at in range(0, case.EXPERTS, group):
            chosen = ranked[at : at + group]
            most = host[chosen[0]]
            pick = torch.tensor(chosen, device="cuda")
            lane = torch.arange(most, device="cuda")
            row = (starts[pick, None] + lane).clamp(max=len(flat) - 1)
            flatrow = order[row]
            live = lane < counts[pick, None]
            token = flatrow // case.TOP_K

            rows = x[token]
            gate = torch.bmm(rows, dense(layer, pick, 0, h, w))
            up = torch.bmm(rows, dense(layer, pick, 3, h, w))
            out = torch.bmm(
                torch.nn.functional.silu(gate) * up, dense(layer, pick, 6, w, h)
            )
            gain = weights.flatten()[flatrow] * live
            total.index_add_(
                0, token.flatten(), (out * gain[..., None]).view(-1, h).float()
            )
        return total

    return call


def ceiling(tokens: int) -> float:
    """A bf16 grouped GEMM of the same shapes (torch._grouped_mm), weights dense."""
    counts = torch.bincount(
        case.make_call(tokens)[2].flatten().long(), minlength=case.EXPERTS
    )
    offsets = torch.cumsum(counts, 0).int()
    rows = tokens * case.TOP_K
    kinds = {"device": "cuda", "dtype": torch.bfloat16}
    x = torch.randn(rows, case.HIDDEN, **kinds)
    w13 = torch.randn(case.EXPERTS, 2 * case.WIDTH, case.HIDDEN, **kinds).transpose(
        1, 2
    )
    w2 = torch.randn(case.EXPERTS, case.HIDDEN, case.WIDTH, **kinds).transpose(1, 2)

    def run() -> None:
        gate, up = torch._grouped_mm(x, w13, offs=offsets).chunk(2, dim=-1)
        torch._grouped_mm(torch.nn.functional.silu(gate) * up, w2, offs=offsets)

    return measured(run, 7)


def rounded(value: float) -> float:
    return round(value, 1)


def decode_rows(layers: list[cuda.CudaExperts]) -> list[dict[str, float]]:
    found = []
    for tokens in DECODE:
        coop = replayed(layers, bare_coop(tokens))
        chosen = ours(tokens, real_limits().coop_tokens)
        row = {"tokens": tokens, "bare_coop_us": coop}
        row["layer_us"] = replayed(layers, chosen)
        row["layer_coop_us"] = replayed(layers, ours(tokens, 32))
        row["layer_grouped_us"] = replayed(layers, ours(tokens, 0))
        row["ratio_layer_to_coop"] = row["layer_us"] / coop
        row["ratio_coop_tier_to_coop"] = row["layer_coop_us"] / coop
        found.append({k: round(v, 3) for k, v in row.items()})
    return found


def middle_rows(layers: list[cuda.CudaExperts]) -> list[dict[str, float]]:
    found = []
    for tokens in MIDDLE:
        rows = 128 if tokens <= 128 else 512
        row = {
            "tokens": tokens,
            "exl3_moe_us": eager(layers, plain_fused(tokens, rows)),
        }
        row["layer_us"] = eager(layers, ours(tokens, real_limits().coop_tokens))
        row["layer_replayed_us"] = replayed(layers, ours(tokens, 0))
        for tile in (16, 32, 64):
            row[f"tile{tile}_us"] = replayed(layers, grouped(tokens, tile))
        row["speedup"] = row["exl3_moe_us"] / row["layer_us"]
        found.append({k: round(v, 3) for k, v in row.items()})
    return found


def prefill_rows(layers: list[cuda.CudaExperts]) -> list[dict[str, float]]:
    found = []
    for tokens in PREFILL:
        row = {
            "tokens": tokens,
            "exl3_moe_us": eager(layers, plain_fused(tokens, 1024), 3),
        }
        row["batched_reconstruct_us"] = eager(layers, batched_reconstruct(tokens), 3)
        row["layer_us"] = eager(layers, ours(tokens, real_limits().coop_tokens))
        for tile in (32, 64, 128):
            row[f"tile{tile}_one_pass_us"] = eager(layers, grouped(tokens, tile))
        row["bf16_grouped_mm_us"] = ceiling(tokens)
        row["speedup_over_exl3_moe"] = row["exl3_moe_us"] / row["layer_us"]
        row["ratio_to_bf16"] = row["layer_us"] / row["bf16_grouped_mm_us"]
        found.append({k: round(v, 3) for k, v in row.items()})
    return found


real_limits = cuda.limits


def main() -> None:
    """Both widths (TP2: 1024, TP1: 2048), or those named on the command line."""
    widths = [int(a) for a in sys.argv[1:]] or [1024, 2048]
    result: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "built_for": kernel_file.Manifest.read(kernel_file.default_folder()).archs,
        "shape": {"hidden": case.HIDDEN, "experts": case.EXPERTS, "top_k": case.TOP_K},
    }
    for width in widths:
        case.WIDTH = width
        layers = [case.make_experts(width=width, seed=s) for s in range(LAYERS)]
        shape, base = layers[0].shape, real_limits()
        wide = replace(base, fused_rows=1024, kernels=Kernels.EXLLAMAV3)
        cuda.SCRATCH.reserve(
            max(
                dispatch.grouped_bytes(max(PREFILL), shape),
                dispatch.fused_bytes(shape, wide),
            ),
            layers[0].tables.device,
        )
        result[f"width_{width}"] = {
            "decode": decode_rows(layers),
            "middle": middle_rows(layers),
            "prefill": prefill_rows(layers),
        }
        del layers
        cuda.SCRATCH.coop.clear()
        torch.cuda.empty_cache()
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
