"""A tiny Glm4Moe checkpoint for the engine tests: numpy only, no tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from vllm_exl3.stfile import Raw, write

HIDDEN, WIDTH, EXPERTS, LAYERS, VOCAB, HEAD = 256, 256, 8, 3, 512, 64
Config = dict[str, Any]
CONFIG: Config = {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "dtype": "bfloat16",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 512,
    "moe_intermediate_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": HEAD,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "use_qk_norm": True,
    "partial_rotary_factor": 0.5,
    "attention_bias": False,
    "num_nextn_predict_layers": 0,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "eos_token_id": 1,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}


def attention(prefix: str, config: Config) -> dict[str, tuple[int, ...]]:
    queries = config["num_attention_heads"] * HEAD
    keys = config["num_key_value_heads"] * HEAD
    return {
        f"{prefix}.q_proj.weight": (queries, HIDDEN),
        f"{prefix}.k_proj.weight": (keys, HIDDEN),
        f"{prefix}.v_proj.weight": (keys, HIDDEN),
        f"{prefix}.o_proj.weight": (HIDDEN, queries),
        f"{prefix}.q_norm.weight": (HEAD,),
        f"{prefix}.k_norm.weight": (HEAD,),
    }


def mlp(prefix: str, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.gate_proj.weight": (width, HIDDEN),
        f"{prefix}.up_proj.weight": (width, HIDDEN),
        f"{prefix}.down_proj.weight": (HIDDEN, width),
    }


def block(at: str, config: Config) -> dict[str, tuple[int, ...]]:
    """One decoder layer with routed experts."""
    width = config["moe_intermediate_size"]
    found = norms(at) | attention(f"{at}.self_attn", config)
    found[f"{at}.mlp.gate.weight"] = (config["n_routed_experts"], HIDDEN)
    bias = f"{at}.mlp.gate.e_score_correction_bias"
    found[bias] = (config["n_routed_experts"],)
    found |= mlp(f"{at}.mlp.shared_experts", width * config["n_shared_experts"])
    for expert in range(config["n_routed_experts"]):
        found |= mlp(f"{at}.mlp.experts.{expert}", width)
    return found


def norms(at: str) -> dict[str, tuple[int, ...]]:
    return {
        f"{at}.input_layernorm.weight": (HIDDEN,),
        f"{at}.post_attention_layernorm.weight": (HIDDEN,),
    }


def drafter(at: str, config: Config) -> dict[str, tuple[int, ...]]:
    """The layer behind the last one, which drafts (MTP)."""
    return block(at, config) | {
        f"{at}.enorm.weight": (HIDDEN,),
        f"{at}.hnorm.weight": (HIDDEN,),
        f"{at}.eh_proj.weight": (HIDDEN, 2 * HIDDEN),
        f"{at}.shared_head.norm.weight": (HIDDEN,),
        f"{at}.shared_head.head.weight": (config["vocab_size"], HIDDEN),
        f"{at}.embed_tokens.weight": (config["vocab_size"], HIDDEN),
    }


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (config["vocab_size"], HIDDEN),
    }
    layers, first = config["num_hidden_layers"], config["first_k_dense_replace"]
    for layer in range(layers):
        at = f"model.layers.{layer}"
        if layer < first:
            found |= norms(at) | attention(f"{at}.self_attn", config)
            found |= mlp(f"{at}.mlp", config["intermediate_size"])
        else:
            found |= block(at, config)
    for layer in range(layers, layers + config["num_nextn_predict_layers"]):
        found |= drafter(f"model.layers.{layer}", config)
    return found


def make_bf16(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A random model that knows one successor for each token.

    Its best token is about 1 ahead of the next, so that greedy decoding survives
    rounding, and its logits stay below 2, where a bf16 step is 1/128. ``changes`` go
    into its config.json.
    """
    config = CONFIG | changes
    rng = np.random.default_rng(seed)
    content = {}
    for name, shape in shapes(config).items():
        if name.endswith("e_score_correction_bias"):
            content[name] = Raw.of(np.zeros(shape, dtype=np.float32))
        elif len(shape) == 1:
            content[name] = Raw.bf16(np.ones(shape, dtype=np.float32))
        elif name == "model.embed_tokens.weight":
            embedding = rng.standard_normal(shape, dtype=np.float32)
            content[name] = Raw.bf16(embedding)
        elif name == "lm_head.weight":
            noise = rng.standard_normal(shape, dtype=np.float32) * np.float32(0.2)
            known = embedding[rng.permutation(config["vocab_size"])] * np.float32(2.2)
            content[name] = Raw.bf16(
                (noise + known / np.sqrt(HIDDEN)) / np.sqrt(HIDDEN)
            )
        else:
            values = rng.standard_normal(shape, dtype=np.float32)
            content[name] = Raw.bf16(values / np.sqrt(np.float32(shape[1])))
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "model.safetensors", content)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder
