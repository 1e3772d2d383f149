"""A tiny GLM-5.3-Flash: the real configuration's fields, the real tensors' names.

``make_bf16`` writes it; ``vllm_exl3.loopback.make`` turns its routed experts into EXL3
and into their bf16 twin. numpy only, no tokenizer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from glmspark.serving.model import shipped_config
from vllm_exl3.stfile import Raw, write

Shape = tuple[int, ...]
FULL = ("linear_attention",) * 3 + ("deepseek_sparse_attention", "linear_attention")
KDA_ONLY = ("linear_attention",) * 3
# fp32 in the real file; everything else that is not EXL3 is bf16 there.
FLOAT32 = ("A_log", "dt_bias", "correction_bias", "_base", "_scale")
# Widths that EXL3 (128), KDA's kernels (head 128) and the indexer (128) allow; every
# width that ranks share still has whole blocks at two ranks. 16 tokens are selected,
# so prompts of 17 and 40 leave something out.
# One of six random indexers that were tried: in four, bf16 rounding changes the choice
# of a pool at one or two of 48 steps; in this one it did not.
INDEXER = 5
# Streams that are larger than what a layer adds: a router's near tie stays rare.
EMBEDDING = 4
TINY: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "q_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_head_dim": 64,
    "v_head_dim": 64,
    "index_topk": 16,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "eos_token_id": [1],
}


def config(layers: tuple[str, ...] = FULL) -> dict[str, Any]:
    """The real config.json with the sizes above and these ``layer_types``."""
    whole = shipped_config("glm-5.3-flash")
    text, count = whole["text_config"] | TINY, len(layers)
    linear = [i for i, kind in enumerate(layers) if kind == "linear_attention"]
    text["num_hidden_layers"], text["layer_types"] = count, list(layers)
    text["indexer_types"] = ["full"] * count
    text["mlp_layer_types"] = ["dense"] + ["sparse"] * (count - 1)
    text["linear_attn_config"] = text["linear_attn_config"] | {
        "num_heads": 4,
        "kda_layers": linear,
        "full_attn_layers": [i for i in range(count) if i not in linear],
    }
    del whole["quantization_config"]
    return whole | {"architectures": ["Glm5NextForCausalLM"], "text_config": text}


def kda(text: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    """Names and shapes of one KDA layer's attention."""
    linear, hidden = text["linear_attn_config"], text["hidden_size"]
    heads, head = linear["num_heads"], linear["head_dim"]
    width = heads * head
    for part in "qkv":
        yield f"{part}_proj.weight", (width, hidden)
        yield f"{part}_conv1d.weight", (width, 1, linear["short_conv_kernel_size"])
    yield "b_proj.weight", (heads, hidden)
    for part in "fg":
        yield f"{part}_a_proj.weight", (head, hidden)
        yield f"{part}_b_proj.weight", (width, head)
    yield "A_log", (heads,)
    yield "dt_bias", (width,)
    yield "o_norm.weight", (head,)
    yield "o_proj.weight", (hidden, width)


def mla(text: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    """Names and shapes of one sparse MLA layer's attention and its indexer."""
    hidden, heads, q, kv, value = (
        text[key]
        for key in (
            "hidden_size",
            "num_attention_heads",
            "q_lora_rank",
            "kv_lora_rank",
            "v_head_dim",
        )
    )
    key, index = text["qk_nope_head_dim"], text["index_head_dim"]
    yield "q_a_proj.weight", (q, hidden)
    yield "q_a_layernorm.weight", (q,)
    yield "q_b_proj.weight", (heads * key, q)
    yield "kv_a_proj_with_mqa.weight", (kv, hidden)
    yield "kv_a_layernorm.weight", (kv,)
    yield "kv_b_proj.weight", (heads * (key + value), kv)
    yield "o_proj.weight", (hidden, heads * value)
    yield "indexer.wq_b.weight", (text["index_n_heads"] * index, q)
    yield "indexer.wk.weight", (index, hidden)
    yield "indexer.weights_proj.weight", (text["index_n_heads"], hidden)
    yield "indexer.k_norm.weight", (index,)
    yield "indexer.k_norm.bias", (index,)
    yield "indexer.index_kpool_compress_ape", (text["index_kpool"], index)
    yield "indexer.index_kpool_compress_gate", (index, hidden)


def mlp(prefix: str, width: int, hidden: int) -> Iterator[tuple[str, Shape]]:
    """Names and shapes of one gated MLP."""
    yield f"{prefix}gate_proj.weight", (width, hidden)
    yield f"{prefix}up_proj.weight", (width, hidden)
    yield f"{prefix}down_proj.weight", (hidden, width)


def moe(text: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    """Names and shapes of a router, its shared expert and its routed experts."""
    hidden, width = text["hidden_size"], text["moe_intermediate_size"]
    experts = text["n_routed_experts"]
    yield "mlp.gate.weight", (experts, hidden)
    yield "mlp.gate.e_score_correction_bias", (experts,)
    shared = width * text["n_shared_experts"]
    yield from mlp("mlp.shared_experts.", shared, hidden)
    for expert in range(experts):
        yield from mlp(f"mlp.experts.{expert}.", width, hidden)


def streams(text: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    """Names and shapes of one layer's hyper-connections."""
    count = text["hc_mult"]
    mix = (2 + count) * count
    for side in ("attn", "ffn"):
        yield f"hc_{side}_fn", (mix, count * text["hidden_size"])
        yield f"hc_{side}_base", (mix,)
        yield f"hc_{side}_scale", (3,)


def layer(text: dict[str, Any], index: int) -> Iterator[tuple[str, Shape]]:
    """Names and shapes of decoder layer ``index``; past the last, the MTP block."""
    hidden, extra = text["hidden_size"], index >= text["num_hidden_layers"]
    linear = not extra and text["layer_types"][index] == "linear_attention"
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)
    for name, shape in kda(text) if linear else mla(text):
        yield f"self_attn.{name}", shape
    if extra:
        yield "eh_proj.weight", (hidden, 2 * hidden)
        for name in ("enorm", "hnorm", "shared_head.norm"):
            yield f"{name}.weight", (hidden,)
    else:
        yield from streams(text)
    if extra or text["mlp_layer_types"][index] == "sparse":
        yield from moe(text)
    else:
        yield from mlp("mlp.", text["intermediate_size"], hidden)


def shapes(whole: dict[str, Any]) -> dict[str, Shape]:
    """Every tensor of the checkpoint, by name."""
    text = whole["text_config"]
    table, hidden = (text["vocab_size"], text["hidden_size"]), text["hidden_size"]
    found: dict[str, Shape] = {
        "model.embed_tokens.weight": table,
        "model.norm.weight": (hidden,),
        "lm_head.weight": table,
    }
    for index in range(text["num_hidden_layers"] + text["num_nextn_predict_layers"]):
        for name, shape in layer(text, index):
            found[f"model.layers.{index}.{name}"] = shape
    return found


def values(name: str, shape: Shape) -> npt.NDArray[np.float32]:
    """The values of a tensor: the same for a name and shape on every machine.

    Gates and biases spread enough to matter, so that a wrong order, a wrong shard or
    a dropped tensor shows. A router's choice hangs on its bias more than in the real
    model: near ties of two experts, which rounding decides, are rare. Latent values
    are doubled, because attention over random ones averages them away.
    """
    salt = INDEXER if ".indexer." in name else ""
    digest = hashlib.sha256(f"{name}{salt}".encode()).digest()
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:8], "little")))
    noise = rng.standard_normal(shape, dtype=np.float32)
    if name.endswith("norm.weight"):
        return 1 + noise / 10
    if name.endswith(("A_log", "dt_bias", "_base", "_scale", "ape")):
        return noise / 2 - 2 * name.endswith("dt_bias")
    if name.endswith("correction_bias"):
        return np.float32(0.05) * rng.permutation(len(noise)).astype(np.float32)
    if name.endswith("bias"):
        return noise / 20
    if name.endswith("embed_tokens.weight"):
        return EMBEDDING * noise
    gains = {"mlp.gate.weight": 0.25, "kv_b_proj.weight": 2.0}
    gain = next((g for end, g in gains.items() if name.endswith(end)), 1.0)
    return noise * np.float32(gain / np.sqrt(shape[-1]))


def head(shape: Shape) -> npt.NDArray[np.float32]:
    """An output table that knows one successor of each token.

    The best token is about 1 ahead of the next, so that greedy decoding survives
    rounding, and logits stay below 2, where a bf16 step is 1/128.
    """
    order = np.random.default_rng(0).permutation(shape[0])
    known = values("model.embed_tokens.weight", shape)[order] / EMBEDDING
    mixed = 0.2 * values("lm_head.weight", shape) + 1.9 / shape[1] * known
    return np.asarray(mixed, dtype=np.float32)


def make_bf16(folder: Path, layers: tuple[str, ...] = FULL) -> Path:
    """The checkpoint with bf16 experts in ``folder``."""
    whole = config(layers)
    content = {}
    for name, shape in shapes(whole).items():
        array = head(shape) if name == "lm_head.weight" else values(name, shape)
        kind = Raw.of if name.endswith(FLOAT32) else Raw.bf16
        content[name] = kind(np.ascontiguousarray(array, dtype=np.float32))
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "model.safetensors", content)
    (folder / "config.json").write_text(json.dumps(whole, indent=2))
    return folder
