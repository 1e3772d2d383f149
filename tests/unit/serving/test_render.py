"""Rendered ranks: golden files, and the rules that every line has to keep."""

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from glmspark.errors import ConfigError, PreflightError
from glmspark.serving.drafter import padded_draft_config
from glmspark.serving.kit import capture_sizes
from glmspark.serving.nccl import PER_NODE
from glmspark.serving.profiles import load_profile, profile_names
from glmspark.serving.render import (
    DENSE_FP8_TARGETS,
    layer_range,
    render,
)
from glmspark.serving.topology import TOPOLOGIES, topology

GOLDEN = Path(__file__).parents[2] / "golden" / "serving"
UPDATE = os.environ.get("GLMSPARK_UPDATE_GOLDEN") == "1"
SERVED = [name for name in profile_names() if name != "transplant"]
ALL = list(itertools.product(sorted(TOPOLOGIES), SERVED, ("dflash2", "mtp", "none")))
# Differ between ranks on purpose.
OWN_FLAGS = {"--node-rank", "--headless"}


def value(argv, flag):
    return argv[argv.index(flag) + 1]


def values(argv, flag):
    start = argv.index(flag) + 1
    return list(itertools.takewhile(lambda a: not a.startswith("--"), argv[start:]))


def shared_part(argv):
    argv = [a for a in argv if a != "--headless"]
    at = argv.index("--node-rank")
    return argv[:at] + argv[at + 2 :]


def compare(name, found):
    path = GOLDEN / f"{name}.json"
    text = json.dumps(found, indent=1) + "\n"
    if UPDATE:
        path.write_text(text, "utf-8")
    assert path.is_file(), f"{path} is missing; GLMSPARK_UPDATE_GOLDEN=1 writes it"
    assert text == path.read_text("utf-8")


def plain(rank):
    env = dict(sorted(rank.env.items()))
    return {"node": rank.node, "argv": list(rank.argv), "env": env}


@pytest.mark.parametrize("name", sorted(TOPOLOGIES))
def test_golden_topology(kit, serving, name):
    rendered = render(kit(name), load_profile("default"), serving)
    compare(name, [plain(rank) for rank in rendered.ranks])


@pytest.mark.parametrize("profile", [name for name in SERVED if name != "default"])
def test_golden_profile(kit, serving, profile):
    rendered = render(kit(), load_profile(profile), serving)
    compare(f"tp2-{profile}", plain(rendered.ranks[0])["argv"])


@pytest.mark.parametrize("drafter", ["mtp", "none"])
def test_golden_drafter(kit, serving, drafter):
    served = replace(serving, drafter=drafter)
    rendered = render(kit(), load_profile("default"), served)
    compare(f"tp2-{drafter}", plain(rendered.ranks[0])["argv"])


@pytest.mark.parametrize(("name", "profile", "drafter"), ALL)
def test_every_pair_of_ranks_agrees(kit, serving, name, profile, drafter):
    served = replace(serving, drafter=drafter)
    ranks = render(kit(name), load_profile(profile), served).ranks
    for a, b in itertools.combinations(ranks, 2):
        assert shared_part(a.argv) == shared_part(b.argv)
        keys = set(a.env) | set(b.env)
        differ = {key for key in keys if a.env.get(key) != b.env.get(key)}
        assert differ <= PER_NODE


@pytest.mark.parametrize(("name", "profile", "drafter"), ALL)
def test_shapes_keep_the_rules(kit, serving, name, profile, drafter):
    served = replace(serving, drafter=drafter)
    rendered = render(kit(name), load_profile(profile), served)
    argv, engine = rendered.ranks[0].argv, load_profile(profile).engine
    step = rendered.memory.layout.drafting.tokens + 1
    sizes = [int(size) for size in values(argv, "--cudagraph-capture-sizes")]
    assert all(size % step == 0 for size in sizes)
    assert max(sizes) == engine.max_num_seqs * step
    block = rendered.memory.layout.block_tokens
    batched = int(value(argv, "--max-num-batched-tokens"))
    held_back = step - 1 if drafter == "dflash2" else 0
    rows = engine.max_num_seqs * (step + held_back)
    assert batched == engine.prefill_blocks * block + rows
    pool = int(value(argv, "--kv-cache-memory-bytes"))
    assert pool % rendered.memory.layout.bytes_per_block == 0


def test_per_node_values_come_from_that_node(kit, serving):
    shape = kit("tp2")
    head, worker = render(shape, load_profile("default"), serving).ranks
    assert head.env["NCCL_IB_GID_INDEX"] == "3"
    assert worker.env["NCCL_IB_GID_INDEX"] == "5"
    assert worker.env["NCCL_IB_HCA"] == "=rocep1s0f0,roceP2p1s0f0"
    assert worker.env["GLOO_SOCKET_IFNAME"] == shape.nodes[1].netdev
    assert [r.env["VLLM_HOST_IP"] for r in (head, worker)] == ["10.0.0.1", "10.0.0.2"]


def test_only_workers_are_headless(kit, serving):
    ranks = render(kit("tp4"), load_profile("default"), serving).ranks
    assert ["--headless" in r.argv for r in ranks] == [False, True, True, True]


def test_three_ranks_pad_heads_and_split_experts(kit, serving):
    argv = render(kit("tp3"), load_profile("default"), serving).ranks[0].argv
    text = json.loads(value(argv, "--hf-overrides"))["text_config"]
    assert text == {
        "num_attention_heads": 66,
        "num_key_value_heads": 66,
        "linear_num_heads": 66,
    }
    assert "--enable-expert-parallel" in argv
    assert value(argv, "--mm-encoder-tp-mode") == "data"
    padded = padded_draft_config(topology("tp3"), serving)
    assert (padded["num_attention_heads"], padded["num_key_value_heads"]) == (36, 9)


def test_three_ranks_open_the_padded_drafter(kit, serving):
    argv = render(kit("tp3"), load_profile("default"), serving).ranks[0].argv
    drafting = json.loads(value(argv, "--speculative-config"))
    assert drafting["model"] == serving.padded_draft_dir
    assert drafting["draft_kv_block_size"] == 832


def test_three_ranks_without_a_padded_drafter_are_refused(kit, serving):
    served = replace(serving, padded_draft_dir="")
    with pytest.raises(ConfigError, match="8 KV heads do not divide by 3 ranks"):
        render(kit("tp3"), load_profile("default"), served)
    render(kit("tp4"), load_profile("default"), served)


@pytest.mark.parametrize("name", ["tp2", "tp4", "tp4-ring"])
def test_even_ranks_pad_nothing(kit, serving, name):
    argv = render(kit(name), load_profile("default"), serving).ranks[0].argv
    assert "--hf-overrides" not in argv
    assert padded_draft_config(topology(name), serving) is None


def test_drafting_is_the_documented_one(kit, serving):
    argv = render(kit(), load_profile("default"), serving).ranks[0].argv
    assert json.loads(value(argv, "--speculative-config")) == {
        "method": "dflash",
        "model": serving.draft_dir,
        "num_speculative_tokens": 7,
        "kv_cache_dtype": "auto",
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "standard",
        "draft_tensor_parallel_size": 2,
        "disable_eagle_block_drop": True,
        "draft_kv_block_size": 768,
    }


def test_no_secret_and_no_open_bind_by_default(kit, serving):
    for rank in render(kit(), load_profile("default"), serving).ranks:
        words = [*rank.argv, *rank.env]
        assert not [w for w in words if "api-key" in w or "TOKEN" in w or "KEY" in w]
        assert value(rank.argv, "--host") == "127.0.0.1"


def test_wrong_number_of_nodes(kit, serving):
    shape = replace(kit("tp2"), topology="tp3")
    with pytest.raises(ConfigError, match="tp3 needs 3 nodes, the kit has 2"):
        render(shape, load_profile("default"), serving)


def test_unknown_topology(kit, serving):
    with pytest.raises(ConfigError, match=r"'tp5' is not known.*tp4-ring"):
        render(replace(kit(), topology="tp5"), load_profile("default"), serving)


def test_unknown_drafter(kit, serving):
    with pytest.raises(ConfigError, match="drafter 'eagle' is not known"):
        render(kit(), load_profile("default"), replace(serving, drafter="eagle"))


def test_missing_drafter_weights(kit, serving):
    with pytest.raises(ConfigError, match="dflash2 needs its weights"):
        render(kit(), load_profile("default"), replace(serving, draft_dir=""))


def test_node_without_rdma(kit, serving):
    with pytest.raises(ConfigError, match="fall back to TCP"):
        render(kit(hcas=()), load_profile("default"), serving)


def test_same_address_twice(kit, serving):
    with pytest.raises(ConfigError, match="same address"):
        render(kit(address="10.0.0.1"), load_profile("default"), serving)


def test_control_network_is_whole(kit, serving):
    with pytest.raises(ConfigError, match="go together"):
        render(kit(control_netdev="eth0"), load_profile("default"), serving)


def test_too_little_memory_names_shortfall_and_length(kit, serving):
    shape = kit(mem_available_bytes=118_000_000_000)
    with pytest.raises(PreflightError, match=r"GiB short; the largest context") as e:
        render(shape, load_profile("long-context"), serving)
    assert e.value.hint.startswith("set max_model_len = ")
    assert e.value.node == "spark-1"


def dense(profile, kind):
    return replace(profile, engine=replace(profile.engine, dense=kind))


def test_dense_fp8_names_its_layers(kit, serving):
    profile = dense(load_profile("default"), "fp8")
    rank = render(kit("tp4"), profile, serving).ranks[1]
    config = json.loads(value(rank.argv, "--quantization-config"))
    assert config == {"targets": DENSE_FP8_TARGETS}
    assert rank.env["GLMSPARK_DENSE"] == "fp8"


def test_dense_bf16_needs_no_flag(kit, serving):
    rank = render(kit(), load_profile("default"), serving).ranks[0]
    assert "--quantization-config" not in rank.argv
    assert rank.env["GLMSPARK_DENSE"] == "bf16"


def test_dense_fp8_is_refused_at_three_ranks(kit, serving):
    heads = topology("tp3").pad(64) // 3
    assert (3 * heads * 128 + heads + 2 * 128) % 16  # the reason that is given
    with pytest.raises(ConfigError, match="does not work at three ranks"):
        render(kit("tp3"), dense(load_profile("default"), "fp8"), serving)


def test_patch_check_tries_the_same_patterns():
    check = GOLDEN.parents[1] / "overlay/patches/check_0011_dense.py"
    for pattern in DENSE_FP8_TARGETS:
        assert pattern in check.read_text()


def test_transplant_without_donor_is_refused(kit, serving):
    with pytest.raises(ConfigError, match="names no donor"):
        render(kit(), load_profile("transplant"), serving)


def test_transplant_with_donor(kit, serving):
    profile = load_profile("transplant")
    named = {**profile.transplant, "repository": "a/b", "layers": "15,17-18"}
    argv = (
        render(
            kit(),
            replace(profile, transplant=named),
            replace(serving, donor_dir="/views/donor"),
        )
        .ranks[1]
        .argv
    )
    extra = json.loads(value(argv, "--model-loader-extra-config"))
    assert extra["transplant"] == {
        "folder": "/views/donor",
        "layers": [15, 17, 18],
        "tensors": ["self_attn.o_proj.weight"],
    }


@pytest.mark.parametrize("text", ["", "a-b", "3-", "1-2-3"])
def test_layer_range_refuses(text):
    with pytest.raises(ConfigError, match="is not like"):
        layer_range(text)


def test_many_sequences_capture_every_second():
    assert capture_sizes(4, 7) == (8, 16, 24, 32)
    assert capture_sizes(16, 2)[:3] == (3, 6, 12)
    assert capture_sizes(3, 0) == (1, 2, 3)
