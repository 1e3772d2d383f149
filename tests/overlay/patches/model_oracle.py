"""vLLM's own GLM-5.3-Flash, built without its kernels: what each rank would hold.

Run by test_model.py with the patched tree. Stands in for what a CPU lacks (experts,
attention kernels, rotary tables, process groups); parameters, their shapes, types and
loaders are the real ones. Prints JSON: bytes by kind of the full-size text model on
the meta device for each number of ranks, and what a tiny checkpoint under the real
names does when it is loaded by the real loader.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).parent))
import glm5next_stub

glm5next_stub.install()
for module, names in {
    "vllm.model_executor.models.glm4_1v": (
        "Glm4vDummyInputsBuilder",
        "Glm4vForConditionalGeneration",
    ),
    "vllm.models.glm5next.common.multimodal": (
        "Glm5NextMultiModalProcessor",
        "Glm5NextProcessingInfo",
        "Glm5NextVisionTransformer",
    ),
}.items():
    stub = sys.modules.setdefault(module, ModuleType(module))
    for name in names:
        setattr(stub, name, type(name, (), {}))

from transformers import Glm5NextTextConfig, Qwen3Config  # noqa: E402
from vllm.config import VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.distributed import parallel_state  # noqa: E402
from vllm.model_executor.model_loader.padded_heads import pad_heads  # noqa: E402
from vllm.model_executor.models import qwen3_dflash, qwen3_dflash2  # noqa: E402
from vllm.models.glm5next.common import attention  # noqa: E402
from vllm.models.glm5next.common import model as glm  # noqa: E402

TINY = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "index_n_heads": 4,
    "index_head_dim": 128,
    "n_routed_experts": 6,
    "moe_intermediate_size": 64,
    "vocab_size": 5 * 64,
    "first_k_dense_replace": 1,
    "layer_types": ["linear_attention"] * 3 + ["deepseek_sparse_attention"],
    "mlp_layer_types": ["dense"] + ["sparse"] * 3,
    "indexer_types": ["full"] * 4,
    "linear_attn_config": {
        "num_heads": 4,
        "head_dim": 16,
        "short_conv_kernel_size": 4,
        "gate_lower_bound": -5.0,
    },
}


class Experts(torch.nn.Module):
    """The shared expert and the router; routed experts are the EXL3 plugin's."""

    def __init__(self, *, shared_experts, gate, **_):
        super().__init__()
        self.shared_experts, self.gate = shared_experts, gate


class Bare(torch.nn.Module):
    """A module without parameters."""

    def __init__(self, *_, **__):
        super().__init__()


@contextlib.contextmanager
def stand_ins():
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (glm, "FusedMoEFactory", Experts),
            (glm, "fused_moe_make_expert_params_mapping", lambda *_, **__: []),
            (attention, "MultiHeadLatentAttentionWrapper", Bare),
            (attention, "SparseAttnIndexerKpool", Bare),
            (attention, "get_rope", lambda *_, **__: None),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


def group(rank, ranks):
    return SimpleNamespace(
        rank=rank,
        rank_in_group=rank,
        world_size=ranks,
        is_first_rank=rank == 0,
        is_last_rank=rank == ranks - 1,
        device_group=SimpleNamespace(size=lambda: ranks),
    )


def text_config(raw, ranks):
    config = Glm5NextTextConfig(**raw)
    heads = -(-config.num_attention_heads // ranks) * ranks  # --hf-overrides
    config.num_attention_heads = config.num_key_value_heads = heads
    config.linear_num_heads = -(-config.linear_num_heads // ranks) * ranks
    return config


def build(raw, rank, ranks, device):
    """(configuration, model) of one rank."""
    config = text_config(raw, ranks)
    base = VllmConfig()
    fields = {name: getattr(base, name) for name in base.__dataclass_fields__}
    vllm_config = SimpleNamespace(**fields)
    vllm_config.num_speculative_tokens = 0
    vllm_config.quant_config = None
    vllm_config.model_config = SimpleNamespace(
        hf_text_config=config,
        hf_config=config,
        dtype=torch.bfloat16,
        max_model_len=8192,
        use_mla=True,
    )
    vllm_config.kernel_config.enable_jit_warmup = False
    vllm_config.attention_config.sparse_mla_prefill_workspace_factor = 2
    vllm_config.scheduler_config.max_num_batched_tokens = 16
    vllm_config.cache_config.block_size = 64
    parallel_state._TP = parallel_state._EP = group(rank, ranks)
    parallel_state._PP = group(0, 1)
    with stand_ins(), set_current_vllm_config(base), torch.device(device):
        return config, glm.Glm5NextForCausalLM(vllm_config=vllm_config, prefix="")


def kind(name, config):
    for part, label in (
        ("embed_tokens", "embedding"),
        ("lm_head", "lm head"),
        (".indexer.", "indexer"),
        ("shared_experts", "shared experts"),
    ):
        if part in name:
            return label
    if ".self_attn." in name:
        layer = int(name.split("layers.")[1].split(".")[0])
        linear = config.layer_types[layer] == "linear_attention"
        return "KDA" if linear else "MLA"
    if ".mlp.gate." in name or ".experts.gate." in name:
        return "router"
    return "dense MLP" if ".mlp." in name else "hyper-connections and norms"


def full_size(raw, ranks):
    config, model = build(raw, 0, ranks, "meta")
    found = {}
    for name, tensor in model.named_parameters():
        label = kind(name, config)
        size = tensor.numel() * tensor.element_size()
        found[label] = found.get(label, 0) + size
    return found


def drafter(raw, ranks):
    """Bytes of the full-size drafter on one rank, without what the target shares."""
    kv = -(-raw["num_key_value_heads"] // ranks) * ranks
    group_size = raw["num_attention_heads"] // raw["num_key_value_heads"]
    heads = {"num_key_value_heads": kv, "num_attention_heads": kv * group_size}
    config = Qwen3Config(**{**raw, **heads})
    base = VllmConfig()
    fields = {name: getattr(base, name) for name in base.__dataclass_fields__}
    vllm_config = SimpleNamespace(**fields)
    vllm_config.model_config = SimpleNamespace(dtype=torch.bfloat16)
    vllm_config.speculative_config = SimpleNamespace(
        draft_model_config=SimpleNamespace(hf_config=config),
        num_speculative_tokens=7,
    )
    parallel_state._TP, parallel_state._PP = group(0, ranks), group(0, 1)
    taps = raw["dflash_config"]["target_layer_ids"]
    with contextlib.ExitStack() as stack:
        for name, value in (
            ("DFlashDraftAttention", Bare),
            ("get_current_vllm_config", lambda: vllm_config),
            ("get_draft_quant_config", lambda _: None),
            ("get_rope", lambda *_, **__: None),
            ("get_eagle3_aux_layers_from_config", lambda _: taps),
        ):
            stack.enter_context(mock.patch.object(qwen3_dflash, name, value))
        stack.enter_context(set_current_vllm_config(base))
        stack.enter_context(torch.device("meta"))
        model = qwen3_dflash2.DFlash2Qwen3Model(vllm_config=vllm_config, prefix="")
    shared = ("embed_tokens", "mask_embedding")
    return sum(
        tensor.numel() * tensor.element_size()
        for name, tensor in model.named_parameters()
        if not name.startswith(shared)
    )


def tiny_checkpoint():
    """Name -> tensor of every native tensor of TINY, under the checkpoint's names."""
    t, linear = TINY, TINY["linear_attn_config"]
    h, width = t["hidden_size"], linear["num_heads"] * linear["head_dim"]
    heads, qk, v = t["num_attention_heads"], t["qk_nope_head_dim"], t["v_head_dim"]
    shapes = {
        "model.embed_tokens.weight": (t["vocab_size"], h),
        "model.norm.weight": (h,),
        "lm_head.weight": (t["vocab_size"], h),
    }
    kda = {
        **{f"{part}_proj.weight": (width, h) for part in "qkv"},
        **{f"{part}_conv1d.weight": (width, 1, 4) for part in "qkv"},
        "b_proj.weight": (linear["num_heads"], h),
        **{f"{part}_a_proj.weight": (linear["head_dim"], h) for part in "fg"},
        **{f"{part}_b_proj.weight": (width, linear["head_dim"]) for part in "fg"},
        "A_log": (linear["num_heads"],),
        "dt_bias": (width,),
        "o_norm.weight": (linear["head_dim"],),
        "o_proj.weight": (h, width),
    }
    index = t["index_head_dim"]
    mla = {
        "q_a_proj.weight": (t["q_lora_rank"], h),
        "q_a_layernorm.weight": (t["q_lora_rank"],),
        "q_b_proj.weight": (heads * qk, t["q_lora_rank"]),
        "kv_a_proj_with_mqa.weight": (t["kv_lora_rank"], h),
        "kv_a_layernorm.weight": (t["kv_lora_rank"],),
        "kv_b_proj.weight": (heads * (qk + v), t["kv_lora_rank"]),
        "o_proj.weight": (h, heads * v),
        "indexer.wq_b.weight": (t["index_n_heads"] * index, t["q_lora_rank"]),
        "indexer.wk.weight": (index, h),
        "indexer.weights_proj.weight": (t["index_n_heads"], h),
        "indexer.k_norm.weight": (index,),
        "indexer.k_norm.bias": (index,),
        "indexer.index_kpool_compress_ape": (4, index),
        "indexer.index_kpool_compress_gate": (index, h),
    }
    for n, layer_kind in enumerate(t["layer_types"]):
        at = f"model.layers.{n}."
        own = kda if layer_kind == "linear_attention" else mla
        shapes |= {f"{at}self_attn.{name}": shape for name, shape in own.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{at}{norm}.weight"] = (h,)
        for side in ("attn", "ffn"):
            shapes[f"{at}hc_{side}_fn"] = (24, 4 * h)
            shapes[f"{at}hc_{side}_base"] = (24,)
            shapes[f"{at}hc_{side}_scale"] = (3,)
        dense = t["mlp_layer_types"][n] == "dense"
        wide = t["intermediate_size" if dense else "moe_intermediate_size"]
        mlp = f"{at}mlp." + ("" if dense else "shared_experts.")
        shapes[f"{mlp}gate_proj.weight"] = shapes[f"{mlp}up_proj.weight"] = (wide, h)
        shapes[f"{mlp}down_proj.weight"] = (h, wide)
        if not dense:
            shapes[f"{at}mlp.gate.weight"] = (t["n_routed_experts"], h)
            shapes[f"{at}mlp.gate.e_score_correction_bias"] = (t["n_routed_experts"],)
    seed = torch.Generator().manual_seed(5)
    return {  # values that bf16 parameters keep exactly
        name: (torch.rand(shape, generator=seed) + 0.5).bfloat16().float()
        for name, shape in shapes.items()
    }


def loaded(raw, checkpoint, rank, ranks):
    """{parameter: (elements, sum, unset elements)} of one rank after a real load."""
    config, model = build(raw, rank, ranks, "cpu")
    for tensor in model.parameters():
        tensor.data.fill_(float("nan"))
    model.load_weights(pad_heads(checkpoint.items(), config))
    return {
        name: (
            tensor.numel(),
            torch.nan_to_num(tensor.data.double()).sum().item(),
            int(torch.isnan(tensor.data).sum()),
        )
        for name, tensor in model.named_parameters()
    }


def main():
    torch.set_default_dtype(torch.bfloat16)
    given = json.load(sys.stdin)
    raw = given["target"]
    full = {ranks: full_size(raw, ranks) for ranks in (1, 2, 3, 4)}
    draft = {ranks: drafter(given["drafter"], ranks) for ranks in (1, 2, 3, 4)}
    torch.set_default_dtype(torch.float32)
    checkpoint = tiny_checkpoint()
    tiny = {
        ranks: [loaded({**raw, **TINY}, checkpoint, n, ranks) for n in range(ranks)]
        for ranks in (1, 2, 3, 4)
    }
    sums = {name: tensor.double().sum().item() for name, tensor in checkpoint.items()}
    found = {"full": full, "drafter": draft, "tiny": tiny, "checkpoint": sums}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
