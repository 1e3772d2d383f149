"""What vLLM is told about the drafter, and the folder that it opens."""

from __future__ import annotations

from typing import Any

from glmspark.errors import ConfigError
from glmspark.serving.kit import Serving
from glmspark.serving.memory import MemoryPlan
from glmspark.serving.model import draft_shape
from glmspark.serving.profiles import Engine
from glmspark.serving.topology import Topology, draft_heads


def speculative_config(
    engine: Engine, topo: Topology, serving: Serving, memory: MemoryPlan
) -> dict[str, Any] | None:
    """Value of --speculative-config, or None without a drafter.

    ``kv_cache_dtype`` auto because the drafter's attention has no fp8 KV;
    ``disable_eagle_block_drop`` because on 0.32.0 each lookup would else lose one
    target block, which DFlash does not need (0.33.0 decides so itself).
    """
    if serving.drafter == "none":
        return None
    if serving.drafter == "mtp":
        return {"method": "mtp", "num_speculative_tokens": engine.mtp_tokens}
    config: dict[str, Any] = {
        "method": "dflash",
        "model": draft_folder(topo, serving),
        "num_speculative_tokens": engine.draft_tokens,
        "kv_cache_dtype": "auto",
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "standard",
        "draft_tensor_parallel_size": topo.ranks,
        "disable_eagle_block_drop": True,
    }
    small = memory.layout.drafting.block_tokens
    if small:  # overlay/vllm/0001: unpatched vLLM refuses the field, as it should
        config["draft_kv_block_size"] = small
    return config


def padded_draft_config(topo: Topology, serving: Serving) -> dict[str, Any] | None:
    """The drafter's config.json with padded heads, or None where heads divide."""
    if serving.drafter != "dflash2":
        return None
    draft = draft_shape(serving.draft_config)
    heads, kv = draft_heads(topo, draft)
    if kv == draft.kv_heads:
        return None
    return {
        **serving.draft_config,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
    }


def draft_folder(topo: Topology, serving: Serving) -> str:
    """The drafter's folder that vLLM opens: the view, or its padded sister.

    Raises ConfigError where heads do not divide and there is no padded folder.
    """
    if padded_draft_config(topo, serving) is None:
        return serving.draft_dir
    if not serving.padded_draft_dir:
        raise ConfigError(
            f"the drafter's 8 KV heads do not divide by {topo.ranks} ranks, and no "
            "folder with the padded config.json was named",
            hint="use drafter = 'mtp', or let glmspark make the folder at start",
        )
    return serving.padded_draft_dir
