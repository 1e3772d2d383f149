"""The model's and the drafter's shape, read from their config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from glmspark.errors import ConfigError

Config = Mapping[str, Any]


@dataclass(frozen=True)
class VisionShape:
    """Dimensions of the vision tower; counts are elements, not bytes."""

    depth: int
    hidden: int
    intermediate: int
    heads: int
    patch: int
    temporal_patch: int
    merge: int
    channels: int
    out_hidden: int
    projection: int


@dataclass(frozen=True)
class ModelShape:
    """Dimensions of GLM-5.3-Flash's text model; counts are elements, not bytes.

    ``kda_layers`` and ``mla_layers`` are layer indices; ``dense_layers`` counts the
    leading layers with a dense MLP; ``mtp_layers`` counts the blocks after the last.
    ``expert_bits`` is the bits a weight of the EXL3 trellis, 0 for a bf16 checkpoint.
    """

    hidden: int
    intermediate: int
    vocab: int
    heads: int
    q_lora: int
    kv_lora: int
    qk_head_dim: int
    v_head_dim: int
    index_heads: int
    index_head_dim: int
    index_topk: int
    index_kpool: int
    kda_heads: int
    kda_head_dim: int
    conv_kernel: int
    kda_layers: tuple[int, ...]
    mla_layers: tuple[int, ...]
    dense_layers: int
    mtp_layers: int
    streams: int
    experts: int
    experts_per_token: int
    shared_experts: int
    expert_intermediate: int
    expert_bits: int
    max_positions: int
    vision: VisionShape | None

    @property
    def layers(self) -> int:
        """Decoder layers without the multi-token-prediction blocks."""
        return len(self.kda_layers) + len(self.mla_layers)

    @property
    def moe_layers(self) -> int:
        """Decoder layers with routed experts, without the prediction blocks."""
        return self.layers - self.dense_layers


@dataclass(frozen=True)
class DraftShape:
    """Dimensions of the DFlash2 drafter; ``window`` is tokens."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int
    block: int
    conv_kernel: int
    conv_group: int
    selector_rank: int
    taps: tuple[int, ...]
    vocab: int


def _need(config: Config, key: str, where: str) -> Any:
    if key not in config:
        raise ConfigError(
            f"{where} has no '{key}', which the memory plan and the rank line need",
            hint="glmspark weights verify --deep",
        )
    return config[key]


def _layer_indices(text: Config) -> tuple[tuple[int, ...], tuple[int, ...]]:
    kinds = _need(text, "layer_types", "config.json: text_config")
    kda = tuple(i for i, kind in enumerate(kinds) if kind == "linear_attention")
    mla = tuple(i for i, kind in enumerate(kinds) if kind != "linear_attention")
    return kda, mla


def _vision(config: Config) -> VisionShape | None:
    vision = config.get("vision_config")
    if not vision:
        return None
    where = "config.json: vision_config"
    return VisionShape(
        depth=_need(vision, "depth", where),
        hidden=_need(vision, "hidden_size", where),
        intermediate=_need(vision, "intermediate_size", where),
        heads=_need(vision, "num_heads", where),
        patch=_need(vision, "patch_size", where),
        temporal_patch=_need(vision, "temporal_patch_size", where),
        merge=_need(vision, "spatial_merge_size", where),
        channels=_need(vision, "in_channels", where),
        out_hidden=_need(vision, "out_hidden_size", where),
        projection=_need(vision, "projection_intermediate_size", where),
    )


def model_shape(config: Config) -> ModelShape:
    """The shape of the target model from its whole config.json.

    Raises ConfigError where a field that a byte count depends on is missing.
    """
    text = config.get("text_config", config)
    linear = _need(text, "linear_attn_config", "config.json: text_config")
    kda, mla = _layer_indices(text)
    quant = config.get("quantization_config") or {}

    def get(key: str) -> Any:
        return _need(text, key, "config.json: text_config")

    return ModelShape(
        hidden=get("hidden_size"),
        intermediate=get("intermediate_size"),
        vocab=get("vocab_size"),
        heads=get("num_attention_heads"),
        q_lora=get("q_lora_rank"),
        kv_lora=get("kv_lora_rank"),
        qk_head_dim=get("qk_nope_head_dim") + get("qk_rope_head_dim"),
        v_head_dim=get("v_head_dim"),
        index_heads=get("index_n_heads"),
        index_head_dim=get("index_head_dim"),
        index_topk=get("index_topk"),
        index_kpool=get("index_kpool"),
        kda_heads=linear["num_heads"],
        kda_head_dim=linear["head_dim"],
        conv_kernel=linear["short_conv_kernel_size"],
        kda_layers=kda,
        mla_layers=mla,
        dense_layers=get("first_k_dense_replace"),
        mtp_layers=get("num_nextn_predict_layers"),
        streams=get("hc_mult"),
        experts=get("n_routed_experts"),
        experts_per_token=get("num_experts_per_tok"),
        shared_experts=get("n_shared_experts"),
        expert_intermediate=get("moe_intermediate_size"),
        expert_bits=int(quant.get("bits", 0)),
        max_positions=get("max_position_embeddings"),
        vision=_vision(config),
    )


def draft_shape(config: Config) -> DraftShape:
    """The shape of a DFlash2 drafter from its config.json.

    Raises ConfigError where the file is of another architecture.
    """
    names = config.get("architectures") or []
    if "DFlash2DraftModel" not in names:
        raise ConfigError(
            f"the drafter's config.json names {names}, expected DFlash2DraftModel",
            hint="set drafter = 'mtp' or 'none', or fetch incoai/GLM-5.3-Flash-DFlash2",
        )
    flash = config["dflash_config"]
    return DraftShape(
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        window=config["sliding_window"],
        block=flash["block_size"],
        conv_kernel=flash["conv_kernel_size"],
        conv_group=flash["conv_group_size"],
        selector_rank=flash["selector_rank"],
        taps=tuple(flash["target_layer_ids"]),
        vocab=config["vocab_size"],
    )


def shipped_config(name: str) -> dict[str, Any]:
    """The published architecture fields of ``glm-5.3-flash`` or ``dflash2``.

    For plans made before the weights are there; a view's own config.json wins.
    """
    path = files("glmspark") / "data" / "models" / f"{name}.config.json"
    config: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return config
