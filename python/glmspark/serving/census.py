"""Every tensor of the checkpoint and of the drafter: name, shape, bytes, split.

The totals are exact: 150,226 names and 175,622,979,576 bytes for the 4-bit
checkpoint, of which 148,608 fields are routed experts (tests/unit/serving).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from glmspark.serving.model import DraftShape, ModelShape, VisionShape


class Kind(StrEnum):
    """What a tensor belongs to; the unit in which totals are reported."""

    EXPERTS = "routed experts"
    SHARED = "shared experts"
    DENSE = "dense MLP"
    ROUTER = "router"
    KDA = "KDA"
    MLA = "MLA"
    INDEXER = "indexer"
    STREAMS = "hyper-connections and norms"
    EMBEDDING = "embedding"
    HEAD = "lm head"
    MTP = "MTP block"
    VISION = "vision"
    DRAFTER = "drafter"


class Split(StrEnum):
    """How tensor parallelism cuts a tensor: whole, or by ``heads``, ``ffn``, …."""

    WHOLE = "whole"
    KDA_HEADS = "kda heads"
    MLA_HEADS = "mla heads"
    FFN = "ffn"
    SHARED_FFN = "shared ffn"
    EXPERT_FFN = "expert ffn"
    EXPERTS = "expert"  # whole tensors of one expert, cut only by expert parallelism
    VOCAB = "vocab"
    VISION = "vision"
    DRAFT_HEADS = "draft heads"
    DRAFT_KV = "draft kv"
    DRAFT_FFN = "draft ffn"


@dataclass(frozen=True)
class Tensor:
    """``count`` tensors of one name pattern.

    ``shape`` is the checkpoint's; ``stored`` bytes an element in the file,
    ``resident`` bytes an element in vLLM's parameter (fp32 where it upcasts).
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    split: Split = Split.WHOLE
    stored: int = 2
    resident: int = 2
    count: int = 1

    @property
    def elements(self) -> int:
        """Elements of all ``count`` tensors."""
        return math.prod(self.shape) * self.count

    @property
    def stored_bytes(self) -> int:
        """Bytes of all ``count`` tensors in the checkpoint."""
        return self.elements * self.stored


def _tensor(name: str, shape: tuple[int, ...], kind: Kind, split: Split) -> Tensor:
    return Tensor(name, shape, kind, split)


def kda_tensors(m: ModelShape) -> Iterator[Tensor]:
    """The 15 tensors of one KDA layer's attention.

    Source: vllm models/glm5next/common/kda.py@0.32.0 (convolutions, A_log and
    dt_bias are fp32 parameters there).
    """
    width, heads = m.kda_heads * m.kda_head_dim, Split.KDA_HEADS
    for part in "qkv":
        yield _tensor(f"{part}_proj", (width, m.hidden), Kind.KDA, heads)
        yield Tensor(
            f"{part}_conv1d", (width, 1, m.conv_kernel), Kind.KDA, heads, resident=4
        )
    yield _tensor("b_proj", (m.kda_heads, m.hidden), Kind.KDA, heads)
    for part in "fg":
        low = (m.kda_head_dim, m.hidden)
        yield _tensor(f"{part}_a_proj", low, Kind.KDA, Split.WHOLE)
        yield _tensor(f"{part}_b_proj", (width, m.kda_head_dim), Kind.KDA, heads)
    yield Tensor("A_log", (m.kda_heads,), Kind.KDA, heads, stored=4, resident=4)
    yield Tensor("dt_bias", (width,), Kind.KDA, heads, stored=4, resident=4)
    yield _tensor("o_norm", (m.kda_head_dim,), Kind.KDA, Split.WHOLE)
    yield _tensor("o_proj", (m.hidden, width), Kind.KDA, heads)


def mla_tensors(m: ModelShape) -> Iterator[Tensor]:
    """The 14 tensors of one sparse MLA layer's attention and its indexer."""
    mla, index = Kind.MLA, Kind.INDEXER
    qk, nope_v = m.heads * m.qk_head_dim, m.qk_head_dim + m.v_head_dim
    yield _tensor("q_a_proj", (m.q_lora, m.hidden), mla, Split.WHOLE)
    yield _tensor("q_a_layernorm", (m.q_lora,), mla, Split.WHOLE)
    yield _tensor("q_b_proj", (qk, m.q_lora), mla, Split.MLA_HEADS)
    yield _tensor("kv_a_proj_with_mqa", (m.kv_lora, m.hidden), mla, Split.WHOLE)
    yield _tensor("kv_a_layernorm", (m.kv_lora,), mla, Split.WHOLE)
    yield _tensor("kv_b_proj", (m.heads * nope_v, m.kv_lora), mla, Split.MLA_HEADS)
    yield _tensor("o_proj", (m.hidden, m.heads * m.v_head_dim), mla, Split.MLA_HEADS)
    query = (m.index_heads * m.index_head_dim, m.q_lora)
    yield _tensor("indexer.wq_b", query, index, Split.WHOLE)
    yield _tensor("indexer.wk", (m.index_head_dim, m.hidden), index, Split.WHOLE)
    yield _tensor("indexer.weights_proj", (m.index_heads, m.hidden), index, Split.WHOLE)
    norm = Tensor("indexer.k_norm", (m.index_head_dim,), index, resident=4, count=2)
    yield norm
    pool = (m.index_kpool, m.index_head_dim)
    yield Tensor("indexer.index_kpool_compress_ape", pool, index, resident=4)
    gate = (m.index_head_dim, m.hidden)
    yield _tensor("indexer.index_kpool_compress_gate", gate, index, Split.WHOLE)


def moe_tensors(m: ModelShape) -> Iterator[Tensor]:
    """The router, the shared expert and the routed experts of one MoE layer."""
    yield _tensor("mlp.gate", (m.experts, m.hidden), Kind.ROUTER, Split.WHOLE)
    yield Tensor(
        "mlp.gate.e_score_correction_bias",
        (m.experts,),
        Kind.ROUTER,
        stored=4,
        resident=4,
    )
    width = m.expert_intermediate * m.shared_experts
    for part, shape in _mlp(m.hidden, width):
        name = f"mlp.shared_experts.{part}"
        yield _tensor(name, shape, Kind.SHARED, Split.SHARED_FFN)
    yield from _expert_tensors(m)


def _mlp(hidden: int, width: int) -> Iterator[tuple[str, tuple[int, int]]]:
    yield "gate_proj", (width, hidden)
    yield "up_proj", (width, hidden)
    yield "down_proj", (hidden, width)


def _expert_tensors(m: ModelShape) -> Iterator[Tensor]:
    """EXL3 fields of all experts of one layer.

    *Shapes*: trellis int16 [in/16, out/16, 16K], suh fp16 [in], svh fp16 [out], mcg
    int32 scalar. Splits: the side that the expert's width runs along is cut, the
    other side's scales are copied whole.
    """
    cut, whole = Split.EXPERT_FFN, Split.EXPERTS
    for part, (out, inner) in _mlp(m.hidden, m.expert_intermediate):
        one = Tensor("", (), Kind.EXPERTS, count=m.experts)
        name = f"mlp.experts.*.{part}"
        down = part == "down_proj"
        tiles = (inner // 16, out // 16, 16 * m.expert_bits)
        yield replace(one, name=f"{name}.trellis", shape=tiles, split=cut)
        inner_split, out_split = (cut, whole) if down else (whole, cut)
        yield replace(one, name=f"{name}.suh", shape=(inner,), split=inner_split)
        yield replace(one, name=f"{name}.svh", shape=(out,), split=out_split)
        yield replace(
            one, name=f"{name}.mcg", shape=(1,), split=whole, stored=4, resident=4
        )


def stream_tensors(m: ModelShape) -> Iterator[Tensor]:
    """Hyper-connections of one layer; ``fn`` is bf16 in the file, fp32 resident."""
    n, kind = m.streams, Kind.STREAMS
    mix = (2 + n) * n
    for side in ("attn", "ffn"):
        yield Tensor(f"hc_{side}_fn", (mix, n * m.hidden), kind, resident=4)
        yield Tensor(f"hc_{side}_base", (mix,), kind, stored=4, resident=4)
        yield Tensor(f"hc_{side}_scale", (3,), kind, stored=4, resident=4)


def _layer(m: ModelShape, index: int) -> Iterator[Tensor]:
    yield Tensor("norms", (m.hidden,), Kind.STREAMS, count=2)
    yield from stream_tensors(m)
    yield from kda_tensors(m) if index in m.kda_layers else mla_tensors(m)
    if index >= m.dense_layers:
        yield from moe_tensors(m)
        return
    for part, shape in _mlp(m.hidden, m.intermediate):
        yield _tensor(f"mlp.{part}", shape, Kind.DENSE, Split.FFN)


def mtp_tensors(m: ModelShape) -> Iterator[Tensor]:
    """One multi-token-prediction block: an MLA layer without streams, and its glue.

    All of it, experts included, is reported as :attr:`Kind.MTP`.
    """
    glue = [
        Tensor("eh_proj", (m.hidden, 2 * m.hidden), Kind.MTP),
        Tensor("the five norms", (m.hidden,), Kind.MTP, count=5),
    ]
    for part in (mla_tensors(m), moe_tensors(m), iter(glue)):
        for tensor in part:
            yield replace(tensor, kind=Kind.MTP)


def vision_tensors(v: VisionShape) -> Iterator[Tensor]:
    """The vision tower's 347 tensors at depth 24."""
    kind, cut = Kind.VISION, Split.VISION
    patch = (v.hidden, v.channels, v.temporal_patch, v.patch, v.patch)
    yield _tensor("patch_embed.proj", patch, kind, Split.WHOLE)
    yield _tensor("patch_embed.proj.bias", (v.hidden,), kind, Split.WHOLE)
    head_dim = v.hidden // v.heads
    blocks = [
        ("attn.qkv", (3 * v.hidden, v.hidden), cut),
        ("attn.qkv.bias", (3 * v.hidden,), cut),
        ("attn.proj", (v.hidden, v.hidden), cut),
        ("mlp.gate_proj", (v.intermediate, v.hidden), cut),
        ("mlp.up_proj", (v.intermediate, v.hidden), cut),
        ("mlp.down_proj", (v.hidden, v.intermediate), cut),
        ("mlp.gate_proj.bias", (v.intermediate,), cut),
        ("mlp.up_proj.bias", (v.intermediate,), cut),
        ("attn.proj.bias", (v.hidden,), Split.WHOLE),
        ("mlp.down_proj.bias", (v.hidden,), Split.WHOLE),
        ("norm1", (v.hidden,), Split.WHOLE),
        ("norm2", (v.hidden,), Split.WHOLE),
        ("attn.q_norm", (head_dim,), Split.WHOLE),
        ("attn.k_norm", (head_dim,), Split.WHOLE),
    ]
    for name, shape, split in blocks:
        yield replace(_tensor(f"blocks.*.{name}", shape, kind, split), count=v.depth)
    yield from _merger_tensors(v)


def _merger_tensors(v: VisionShape) -> Iterator[Tensor]:
    kind, out = Kind.VISION, v.out_hidden
    yield _tensor("merger.proj", (out, out), kind, Split.VISION)
    yield Tensor("merger.post_projection_norm", (out,), kind, count=2)
    for part, shape in _mlp(out, v.projection):
        yield _tensor(f"merger.{part}", shape, kind, Split.VISION)
    fold = (out, v.hidden, v.merge, v.merge)
    yield _tensor("downsample", fold, kind, Split.WHOLE)
    yield _tensor("downsample.bias", (out,), kind, Split.WHOLE)
    yield _tensor("post_layernorm", (v.hidden,), kind, Split.WHOLE)


def checkpoint_tensors(m: ModelShape) -> list[Tensor]:
    """Every tensor of the target's checkpoint, grouped by name pattern."""
    table = (m.vocab, m.hidden)
    tensors = [
        _tensor("embed_tokens", table, Kind.EMBEDDING, Split.VOCAB),
        _tensor("lm_head", table, Kind.HEAD, Split.VOCAB),
        Tensor("norm", (m.hidden,), Kind.STREAMS),
    ]
    like: dict[tuple[bool, bool], list[Tensor]] = {}  # layers of one kind are equal
    for index in range(m.layers):
        kind = (index in m.kda_layers, index < m.dense_layers)
        if kind not in like:
            like[kind] = list(_layer(m, index))
        tensors.extend(like[kind])
    for _ in range(m.mtp_layers):
        tensors.extend(mtp_tensors(m))
    if m.vision is not None:
        tensors.extend(vision_tensors(m.vision))
    return tensors


def draft_tensors(d: DraftShape) -> list[Tensor]:
    """Every tensor of the DFlash2 drafter; embedding and head are the target's.

    Source: vllm model_executor/models/qwen3_dflash2.py@0.32.0; the total is the
    published file's 2,342,169,800 bytes less its header.
    """
    kind, n = Kind.DRAFTER, d.layers
    q, kv = d.heads * d.head_dim, d.kv_heads * d.head_dim
    groups = d.hidden // d.conv_group
    per_layer = [
        Tensor("q_proj", (q, d.hidden), kind, Split.DRAFT_HEADS, count=n),
        Tensor("k_proj, v_proj", (kv, d.hidden), kind, Split.DRAFT_KV, count=2 * n),
        Tensor("o_proj", (d.hidden, q), kind, Split.DRAFT_HEADS, count=n),
        Tensor("q_norm, k_norm", (d.head_dim,), kind, count=2 * n),
        Tensor("layernorms", (d.hidden,), kind, count=2 * n),
        Tensor("base_kernel", (2, d.conv_kernel, d.hidden), kind, count=2 * n),
        Tensor(
            "kernel_projection",
            (2 * d.conv_kernel * groups, d.hidden),
            kind,
            count=2 * n,
        ),
    ]
    for part, shape in _mlp(d.hidden, d.intermediate):
        per_layer.append(Tensor(part, shape, kind, Split.DRAFT_FFN, count=n))
    selector = (d.vocab, d.selector_rank)
    return [
        *per_layer,
        Tensor("fc", (d.hidden, len(d.taps) * d.hidden), kind),
        Tensor("hidden_norm, norm", (d.hidden,), kind, count=2),
        Tensor("selector codebooks", selector, kind, count=2),
        Tensor("selector.hidden_projection", (d.selector_rank, d.hidden), kind),
    ]
