"""The plan's EXL3 scratch is the kernels' own bound, to the byte."""

import itertools
from dataclasses import replace

import pytest
from glmspark.serving import exl3scratch
from glmspark.serving.memory import GIB, Load, NodeMemory, memory_plan
from glmspark.serving.profiles import load_profile
from glmspark.serving.topology import TOPOLOGIES, topology
from vllm_exl3 import dispatch

NODE = NodeMemory("spark-1", 130_663_153_664, 126_000_000_000)
SHAPES = [
    {"experts": e, "top_k": k, "hidden": h, "width": w}
    for e, k, h, w in itertools.product((96, 288), (4, 8), (4096,), (512, 1024, 2048))
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("tokens", [1, 32, 4639, 4640, 4641, 9276, 20000])
def test_formula_is_the_kernels(shape, tokens):
    bound = dispatch.scratch_bytes(tokens, dispatch.Shape(**shape), dispatch.Limits())
    assert exl3scratch.scratch_bytes(tokens, **shape) == bound


def test_constants_are_the_kernels():
    assert exl3scratch.COOP_SLOTS == dispatch.COOP_SLOTS
    assert dispatch.Limits().pass_tokens == exl3scratch.PASS_TOKENS
    assert exl3scratch.ALIGNMENT == dispatch.ALIGNMENT


@pytest.mark.parametrize("name", sorted(TOPOLOGIES))
@pytest.mark.parametrize("profile", ["default", "many-users"])
def test_plan_holds_it_for_this_rank(model, draft, name, profile):
    topo = topology(name)
    load = Load(load_profile(profile).engine, "dflash2", draft)
    found = memory_plan(model, topo, load, (NODE,) * topo.ranks)
    local = {"tp2": (288, 1024), "tp3": (96, 2048)}.get(name, (288, 512))
    shape = dispatch.Shape(local[0], 8, 4096, local[1])
    bound = dispatch.scratch_bytes(
        found.max_num_batched_tokens, shape, dispatch.Limits()
    )
    for rank in found.ranks:
        items = {item.name: item.bytes for item in rank.items}
        assert items["EXL3 scratch"] == bound


def test_two_ranks_need_almost_three_times_the_old_estimate(model, draft):
    load = Load(load_profile("default").engine, "dflash2", draft)
    found = memory_plan(model, topology("tp2"), load, (NODE, NODE))
    items = {item.name: item.bytes for item in found.ranks[0].items}
    assert items["EXL3 scratch"] / GIB == pytest.approx(0.72, abs=0.005)


def test_drift_would_be_seen(monkeypatch):
    changed = replace(dispatch.Limits(), pass_tokens=9000)
    shape = dispatch.Shape(288, 8, 4096, 1024)
    bound = dispatch.scratch_bytes(20000, shape, changed)
    ours = exl3scratch.scratch_bytes(
        20000, experts=288, top_k=8, hidden=4096, width=1024
    )
    assert ours != bound
