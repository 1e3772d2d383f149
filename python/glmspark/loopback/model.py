"""A tiny Glm4Moe checkpoint with RANDOM weights, for the loopback kit.

Its answers mean nothing: it shows that the path from request to token works. The real
architecture needs a GPU (vLLM's sparse attention has no CPU code); Glm4Moe is its
nearest relative that runs on a CPU: dense first layer, routed and shared experts.

Shapes are chosen so that each of two ranks keeps whole blocks of 128: every matrix
dimension that tensor parallelism splits is 256 or more, the KV projections (128, kept
in bfloat16) apart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glmspark.loopback import folder
from glmspark.loopback.folder import GeneratedModel
from glmspark.loopback.tokenizer import (
    END_OF_TEXT,
    USER,
    VOCABULARY,
    is_plain,
    token_id,
    tokenizer_config,
    tokenizer_json,
    vocabulary,
)

if TYPE_CHECKING:
    from glmspark.loopback.tensors import Tensor

HIDDEN = 256
LAYERS = 3
DENSE_LAYERS = 1
DENSE_INTERMEDIATE = 512
EXPERT_INTERMEDIATE = 256
EXPERTS = 8
EXPERTS_PER_TOKEN = 2
HEADS = 4
KV_HEADS = 2
HEAD = 64
CONTEXT = 2048

EMBEDDING_GAIN = 1.0
LAYER_GAIN = 1.5
LOGIT_GAIN = 4.0


def config() -> dict[str, Any]:
    """Content of ``config.json``."""
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": DENSE_INTERMEDIATE,
        "moe_intermediate_size": EXPERT_INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "first_k_dense_replace": DENSE_LAYERS,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": EXPERTS_PER_TOKEN,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "attention_bias": True,
        "attention_dropout": 0.0,
        "use_qk_norm": True,
        "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0,
        "max_position_embeddings": CONTEXT,
        "num_nextn_predict_layers": 0,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "use_cache": True,
        "dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": [token_id(END_OF_TEXT), token_id(USER)],
        "pad_token_id": token_id(END_OF_TEXT),
    }


def generation_config() -> dict[str, Any]:
    """Content of ``generation_config.json``: no sampling defaults of its own."""
    keys = ("eos_token_id", "pad_token_id")
    return {key: config()[key] for key in keys} | {"_from_model_config": True}


def matrices() -> dict[str, tuple[int, int]]:
    """Shape (rows = outputs, columns = inputs) of every random matrix, by name."""
    shapes = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "lm_head.weight": (VOCABULARY, HIDDEN),
    }
    for index in range(LAYERS):
        layer = f"model.layers.{index}"
        shapes |= {
            f"{layer}.self_attn.q_proj.weight": (HEADS * HEAD, HIDDEN),
            f"{layer}.self_attn.k_proj.weight": (KV_HEADS * HEAD, HIDDEN),
            f"{layer}.self_attn.v_proj.weight": (KV_HEADS * HEAD, HIDDEN),
            f"{layer}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD),
        }
        if index < DENSE_LAYERS:
            shapes |= _mlp(f"{layer}.mlp", DENSE_INTERMEDIATE)
            continue
        shapes |= {f"{layer}.mlp.gate.weight": (EXPERTS, HIDDEN)}
        shapes |= _mlp(f"{layer}.mlp.shared_experts", EXPERT_INTERMEDIATE)
        for expert in range(EXPERTS):
            shapes |= _mlp(f"{layer}.mlp.experts.{expert}", EXPERT_INTERMEDIATE)
    return shapes


def _mlp(name: str, intermediate: int) -> dict[str, tuple[int, int]]:
    return {
        f"{name}.gate_proj.weight": (intermediate, HIDDEN),
        f"{name}.up_proj.weight": (intermediate, HIDDEN),
        f"{name}.down_proj.weight": (HIDDEN, intermediate),
    }


def vectors() -> dict[str, tuple[int, float]]:
    """Length and value of every constant vector: norms are 1, biases are 0."""
    values = {"model.norm.weight": (HIDDEN, 1.0)}
    for index in range(LAYERS):
        layer = f"model.layers.{index}"
        values |= {
            f"{layer}.input_layernorm.weight": (HIDDEN, 1.0),
            f"{layer}.post_attention_layernorm.weight": (HIDDEN, 1.0),
            f"{layer}.self_attn.q_norm.weight": (HEAD, 1.0),
            f"{layer}.self_attn.k_norm.weight": (HEAD, 1.0),
            f"{layer}.self_attn.q_proj.bias": (HEADS * HEAD, 0.0),
            f"{layer}.self_attn.k_proj.bias": (KV_HEADS * HEAD, 0.0),
            f"{layer}.self_attn.v_proj.bias": (KV_HEADS * HEAD, 0.0),
        }
        if index >= DENSE_LAYERS:
            values[f"{layer}.mlp.gate.e_score_correction_bias"] = (EXPERTS, 0.0)
    return values


def scale(name: str) -> float:
    """Standard deviation of a random matrix, chosen so that answers vary.

    1/sqrt(columns) keeps the size of what passes through. The token's own embedding is
    made small beside what the layers add, else the next token follows from the last one
    alone and the answer soon repeats itself.
    """
    columns = matrices()[name][1]
    gain = {"model.embed_tokens.weight": EMBEDDING_GAIN, "lm_head.weight": LOGIT_GAIN}
    return float(gain.get(name, LAYER_GAIN) / columns**0.5)


def weights() -> dict[str, Tensor]:
    """All tensors of the checkpoint; the same bits on every machine.

    The output rows of tokens that cannot be shown by themselves (special ones, parts of
    a multi-byte character) are zero, so that greedy answers are text and run to the
    length that was asked.
    """
    import numpy as np

    from glmspark.loopback import tensors

    result = {}
    for name, shape in matrices().items():
        values = tensors.random_values(name, shape, scale(name))
        if name == "lm_head.weight":
            values[[not is_plain(token) for token in vocabulary()]] = 0.0
        result[name] = tensors.bfloat16(values)
    for name, (length, value) in vectors().items():
        full = np.full(length, value, dtype=np.float32)
        is_wide = name.endswith("e_score_correction_bias")
        result[name] = tensors.float32(full) if is_wide else tensors.bfloat16(full)
    return result


def files() -> dict[str, bytes]:
    """Every file of the checkpoint, by name."""
    from glmspark.loopback import tensors

    return {
        "model.safetensors": tensors.safetensors(weights()),
        "config.json": _json(config()),
        "generation_config.json": _json(generation_config()),
        "tokenizer.json": _json(tokenizer_json()),
        "tokenizer_config.json": _json(tokenizer_config(CONTEXT)),
    }


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


@cache
def recipe() -> str:
    """sha256 over the code that makes the files, so that a changed one remakes them."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(
            source.name.encode() + hashlib.sha256(source.read_bytes()).digest()
        )
    return digest.hexdigest()


def build_tiny_model(directory: Path) -> GeneratedModel:
    """The tiny model in ``directory``, made there unless it is whole already.

    Its weights are random, from fixed seeds. Raises OSError where the folder cannot be
    written, FileExistsError where it holds something else.
    """
    return folder.ensure(directory, recipe(), files)
