"""The memory plan: sums that must hold, measured anchors, and its refusals."""

from dataclasses import replace

import pytest
from glmspark.errors import PreflightError
from glmspark.serving.census import Kind
from glmspark.serving.kv import Drafting
from glmspark.serving.memory import (
    GIB,
    KV_CEILING_BYTES,
    Load,
    NodeMemory,
    check_fits,
    exl3_scratch_bytes,
    memory_plan,
)
from glmspark.serving.profiles import load_profile
from glmspark.serving.shard import rank_weights
from glmspark.serving.topology import topology
from vllm_exl3 import dispatch

NODE = NodeMemory("spark-1", 130_663_153_664, 126_000_000_000)


def plan(model, draft, name="tp2", nodes=None, vision=True, **changes):
    topo = topology(name)
    engine = replace(load_profile("default").engine, **changes)
    load = Load(engine, "dflash2", draft, vision)
    return memory_plan(model, topo, load, nodes or (NODE,) * topo.ranks)


def test_experts_resident_at_two_ranks_are_71_2_gib(model, dflash):
    weights = rank_weights(model, topology("tp2"), dflash())
    assert weights.by_kind[Kind.EXPERTS] / GIB == pytest.approx(71.2, abs=0.05)


# Loaded weights that the public recipe reports: about 82 and 55.75 GiB.
@pytest.mark.parametrize(("name", "gib"), [("tp2", 82.0), ("tp3", 55.75)])
def test_weights_are_what_was_measured(model, dflash, name, gib):
    weights = rank_weights(model, topology(name), dflash())
    assert weights.total / GIB == pytest.approx(gib, rel=0.005)


def test_all_ranks_together_hold_the_experts_once(model, dflash):
    one = rank_weights(model, topology("tp3"), dflash()).by_kind[Kind.EXPERTS]
    assert 3 * one == 42 * 288 * 12_619_788


@pytest.mark.parametrize("shape", [(288, 8, 4096, 1024), (96, 8, 4096, 2048)])
@pytest.mark.parametrize("tokens", [1, 33, 4608, 7168])
def test_exl3_scratch_is_what_the_plugin_reserves(tokens, shape):
    theirs = dispatch.scratch_bytes(tokens, dispatch.Shape(*shape), dispatch.Limits())
    assert exl3_scratch_bytes(tokens, shape) == theirs


def test_the_plan_counts_exl3_scratch(model, draft):
    for name, gib in (("tp2", 0.72), ("tp3", 0.87), ("tp4", 0.65)):
        items = {item.name: item for item in plan(model, draft, name).ranks[0].items}
        assert items["EXL3 scratch"].bytes / GIB == pytest.approx(gib, abs=0.01)


def test_fp8_halves_what_it_takes_and_nothing_else(model, dflash):
    tp2 = topology("tp2")
    bf16 = rank_weights(model, tp2, dflash()).by_kind
    fp8 = rank_weights(model, tp2, dflash(), dense_fp8=True).by_kind
    changed = {kind for kind in bf16 if bf16[kind] != fp8[kind]}
    assert changed == {Kind.KDA, Kind.MLA, Kind.SHARED}
    assert fp8[Kind.SHARED] * 2 == bf16[Kind.SHARED]
    assert fp8[Kind.KDA] / bf16[Kind.KDA] == pytest.approx(0.5, abs=0.005)
    # kv_b_proj and the two down projections stay.
    assert 0.5 < fp8[Kind.MLA] / bf16[Kind.MLA] < 0.7


def test_mtp_block_is_resident_only_when_it_drafts(model, dflash):
    tp2 = topology("tp2")
    assert Kind.MTP not in rank_weights(model, tp2, dflash()).by_kind
    assert Kind.MTP in rank_weights(model, tp2, Drafting("mtp", 2)).by_kind


def test_items_and_kv_fill_the_tightest_node(model, draft):
    found = plan(model, draft)
    head, worker = found.ranks
    assert sum(i.bytes for i in head.items) + head.left_bytes == NODE.available_bytes
    assert head.left_bytes < worker.left_bytes
    slack = head.left_bytes - found.kv_bytes
    assert 0 <= slack < found.layout.bytes_per_block


def test_a_smaller_worker_decides(model, draft):
    small = replace(NODE, name="spark-2", available_bytes=120_000_000_000)
    both, one = plan(model, draft), plan(model, draft, nodes=(NODE, small))
    assert one.kv_bytes < both.kv_bytes


def test_pool_is_near_what_two_sparks_were_run_with(model, draft):
    # 11 GiB by default and 14 at most, with 3.3 GiB of bf16 copies beside FP8.
    assert 11 <= plan(model, draft).kv_bytes / GIB <= 16


def test_more_nodes_do_not_raise_the_pool_without_end(model, draft):
    assert plan(model, draft, "tp4").kv_bytes <= KV_CEILING_BYTES
    assert plan(model, draft, "tp4", kv_gib=50.0).kv_bytes > KV_CEILING_BYTES


def test_kv_gib_is_kept(model, draft):
    found = plan(model, draft, kv_gib=8.0)
    assert 0 <= 8 * GIB - found.kv_bytes < found.layout.bytes_per_block


def test_no_vision_frees_the_tower(model, draft):
    with_it, without = plan(model, draft), plan(model, draft, vision=False)
    assert without.ranks[0].left_bytes > with_it.ranks[0].left_bytes


def test_share_is_below_what_the_node_has(model, draft):
    found = plan(model, draft)
    assert found.gpu_share * NODE.total_bytes <= NODE.available_bytes
    needed = found.kv_bytes + found.weights.total
    assert found.gpu_share * NODE.total_bytes > needed


@pytest.mark.cases(74)
def test_full_page_cache_asks_to_be_dropped(model, draft):
    full = replace(NODE, free_bytes=20 * GIB)
    empty = replace(NODE, free_bytes=125_000_000_000)
    found = plan(model, draft, nodes=(full, empty))
    assert [rank.drop_page_cache for rank in found.ranks] == [True, False]
    assert not plan(model, draft).ranks[0].drop_page_cache  # not asked, not claimed


def test_fitting_plan_is_accepted(model, draft):
    check_fits(plan(model, draft))


@pytest.mark.cases(76)
def test_refusal_names_the_largest_context_and_it_fits(model, draft):
    tight = replace(NODE, available_bytes=117_000_000_000)
    found = plan(model, draft, nodes=(tight, tight), max_model_len=1_048_576)
    with pytest.raises(PreflightError, match=f"{found.longest_tokens} tokens$"):
        check_fits(found)
    again = plan(model, draft, nodes=(tight, tight), max_model_len=found.longest_tokens)
    check_fits(again)


def test_refusal_without_any_context_names_the_node(model, draft):
    tiny = replace(NODE, name="spark-2", available_bytes=90_000_000_000)
    with pytest.raises(PreflightError) as error:
        check_fits(plan(model, draft, nodes=(NODE, tiny)))
    assert error.value.node == "spark-2"
    assert error.value.hint.startswith("free at least")
