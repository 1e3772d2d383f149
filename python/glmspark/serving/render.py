"""Rank rendering: the exact command line and environment of every rank."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from glmspark.errors import ConfigError
from glmspark.serving.drafter import speculative_config
from glmspark.serving.kit import KitShape, Serving, capture_sizes, check_kit
from glmspark.serving.memory import Load, MemoryPlan, check_fits, memory_plan
from glmspark.serving.model import ModelShape, draft_shape, model_shape
from glmspark.serving.nccl import rank_environment
from glmspark.serving.profiles import Engine, Profile
from glmspark.serving.topology import Topology

# Layers that vLLM's online FP8 takes with dense = "fp8"; overlay/vllm/0011 opens KDA
# and MLA to it. kv_b_proj stays: MLA absorbs it, and would keep a bf16 copy.
DENSE_FP8_TARGETS = {
    r"re:.*\.self_attn\.(in_proj_qkvbfg_a|f_b_proj|g_b_proj|q_b_proj|o_proj)$": (
        "fp8_per_channel"
    ),
    r"re:.*\.shared_experts\.(gate_proj|up_proj|down_proj)$": "fp8_per_channel",
}
# Ranks meet after the load, the slowest of which took 372 s where it was measured; one
# that waits longer than this waits for a dead peer.
DISTRIBUTED_TIMEOUT_S = 900


@dataclass(frozen=True)
class RankCommand:
    """What one rank runs: ``argv`` as ``vllm serve …``, ``env`` to add, no secrets."""

    rank: int
    node: str
    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True)
class Rendered:
    """All ranks, head first, and the memory plan their KV bytes come from."""

    ranks: tuple[RankCommand, ...]
    memory: MemoryPlan


def _flag(name: str, *values: object) -> list[str]:
    return [f"--{name}", *(str(value) for value in values)]


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


def head_overrides(
    topo: Topology, model: ModelShape, serving: Serving
) -> dict[str, Any] | None:
    """Value of --hf-overrides: head counts padded for three ranks, else None."""
    heads, kda = topo.pad(model.heads), topo.pad(model.kda_heads)
    if (heads, kda) == (model.heads, model.kda_heads):
        return None
    text: dict[str, Any] = {
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "linear_num_heads": kda,
    }
    return {"text_config": text} if "text_config" in serving.config else text


def check_dense(topo: Topology, engine: Engine) -> None:
    """Raises ConfigError for FP8 at three ranks.

    There one KDA input projection has 8,726 rows a rank, and vLLM's FP8 kernels want
    multiples of 16.
    """
    if engine.dense == "fp8" and topo.ranks == 3:
        raise ConfigError(
            "dense = 'fp8' does not work at three ranks: 8,726 rows a rank do not "
            "divide by 16",
            hint="set dense = 'bf16' in the profile",
        )


def transplant_config(spec: Mapping[str, Any], serving: Serving) -> dict[str, Any]:
    """Value of the loader's ``transplant`` (overlay/vllm/0008): where, layers, tensors.

    Raises ConfigError for a profile without a donor: no fall-back, no guess.
    """
    if not spec.get("repository") or not serving.donor_dir:
        raise ConfigError(
            "the transplant profile names no donor repository, or it is not here",
            hint="copy the profile, set transplant.repository and .revision, then "
            "glmspark profile build",
        )
    return {
        "folder": serving.donor_dir,
        "layers": layer_range(spec["layers"]),
        "tensors": list(spec["tensors"]),
    }


def layer_range(text: str) -> list[int]:
    """Layer numbers of "15-45" or "3,7,11-13", sorted and unique."""
    found: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise ConfigError(f"transplant.layers '{text}' is not like 15-45 or 3,7")
        found.update(range(int(low), int(high or low) + 1))
    return sorted(found)


def _parallel_flags(
    topo: Topology, kit: KitShape, serving: Serving, rank: int
) -> Iterator[str]:
    yield from _flag("tensor-parallel-size", topo.ranks)
    yield from _flag("nnodes", topo.ranks)
    yield from _flag("node-rank", rank)
    yield from _flag("master-addr", kit.nodes[0].meeting_address)
    yield from _flag("master-port", serving.master_port)
    yield from _flag("distributed-executor-backend", "mp")
    yield from _flag("distributed-timeout-seconds", DISTRIBUTED_TIMEOUT_S)
    if topo.expert_parallel:
        yield "--enable-expert-parallel"
    if topo.vision_replicated:
        yield from _flag("mm-encoder-tp-mode", "data")


def _engine_flags(engine: Engine, memory: MemoryPlan) -> Iterator[str]:
    tokens = memory.layout.drafting.tokens
    yield from _flag("max-model-len", engine.max_model_len)
    yield from _flag("max-num-seqs", engine.max_num_seqs)
    yield from _flag("max-num-batched-tokens", memory.max_num_batched_tokens)
    yield from _flag("kv-cache-dtype", engine.kv_cache_dtype)
    yield from _flag("kv-cache-memory-bytes", memory.kv_bytes)
    yield from _flag("gpu-memory-utilization", f"{memory.gpu_share:.2f}")
    sizes = capture_sizes(engine.max_num_seqs, tokens)
    yield from _flag("cudagraph-capture-sizes", *sizes)
    yield "--enable-prefix-caching"
    yield "--no-enable-flashinfer-autotune"
    if engine.ssm_dtype != "float32":
        yield from _flag("mamba-ssm-cache-dtype", engine.ssm_dtype)
    if engine.long_prefill_tokens:
        yield from _flag("long-prefill-token-threshold", engine.long_prefill_tokens)
    if engine.load_format != "auto":
        yield from _flag("load-format", engine.load_format)


def _vision_flags(engine: Engine) -> Iterator[str]:
    if not engine.images and not engine.videos:
        yield "--language-model-only"
        return
    limits = {"image": engine.images, "video": engine.videos}
    yield from _flag("limit-mm-per-prompt", _json(limits))
    yield from _flag(
        "mm-processor-kwargs", _json({"max_image_tokens": engine.image_tokens})
    )
    yield from _flag("mm-processor-cache-gb", 1)
    yield "--skip-mm-profiling"


def _front_flags(serving: Serving) -> Iterator[str]:
    yield from _flag("served-model-name", serving.served_name)
    yield from _flag("host", serving.host)
    yield from _flag("port", serving.port)
    yield from _flag("tool-call-parser", "glm47")
    yield "--enable-auto-tool-choice"
    yield "--exclude-tools-when-tool-choice-none"
    yield from _flag("reasoning-parser", "glm47")
    yield "--enable-prompt-tokens-details"
    # The supervisor asks every second; the log is for what clients do.
    yield from _flag("disable-access-log-for-endpoints", "/health")
    if serving.chat_template:
        yield from _flag("chat-template", serving.chat_template)


@dataclass(frozen=True)
class _Line:
    """What all ranks' command lines have in common."""

    profile: Profile
    topo: Topology
    kit: KitShape
    serving: Serving
    memory: MemoryPlan

    def argv(self, rank: int) -> tuple[str, ...]:
        """The command line of one rank."""
        argv = ["vllm", "serve", self.serving.model_dir]
        argv += _front_flags(self.serving)
        argv += _parallel_flags(self.topo, self.kit, self.serving, rank)
        argv += _engine_flags(self.profile.engine, self.memory)
        argv += _vision_flags(self.profile.engine)
        argv += self._model_flags()
        argv += self.profile.engine.extra_args
        if rank:
            argv.append("--headless")
        return tuple(argv)

    def _model_flags(self) -> Iterator[str]:
        model = model_shape(self.serving.config)
        overrides = head_overrides(self.topo, model, self.serving)
        if overrides:
            yield from _flag("hf-overrides", _json(overrides))
        engine = self.profile.engine
        if engine.dense == "fp8":
            yield from _flag(
                "quantization-config", _json({"targets": DENSE_FP8_TARGETS})
            )
        drafting = speculative_config(engine, self.topo, self.serving, self.memory)
        if drafting:
            yield from _flag("speculative-config", _json(drafting))
        if self.profile.transplant:
            spec = transplant_config(self.profile.transplant, self.serving)
            yield from _flag("model-loader-extra-config", _json({"transplant": spec}))


def render(
    kit: KitShape, profile: Profile, serving: Serving, *, fit: bool = True
) -> Rendered:
    """Every rank's command, from the kit's shape, the profile and the two configs.

    ``fit`` False asks for the KV bytes of one full request even where the plan says
    that they are not there. Raises ConfigError where inputs contradict each other,
    PreflightError where one request of the profile's length does not fit into the
    tightest node.
    """
    topo = check_kit(kit, serving)
    engine = profile.engine
    check_dense(topo, engine)
    load = Load(
        engine,
        serving.drafter,
        draft_shape(serving.draft_config),
        vision=bool(engine.images or engine.videos),
    )
    memory = memory_plan(
        model_shape(serving.config), topo, load, tuple(n.memory for n in kit.nodes)
    )
    if fit:
        check_fits(memory)
    elif memory.shortfall_bytes:
        memory = replace(memory, kv_bytes=memory.needed_bytes)
    line = _Line(profile, topo, kit, serving, memory)
    ranks = tuple(
        RankCommand(
            rank=rank,
            node=node.name,
            argv=line.argv(rank),
            env=rank_environment(topo, node, serving, dense=engine.dense),
        )
        for rank, node in enumerate(kit.nodes)
    )
    return Rendered(ranks, memory)
