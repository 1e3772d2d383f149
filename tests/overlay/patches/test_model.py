"""vLLM's own GLM-5.3-Flash holds what our census and sharding say, rank by rank, and
loads a checkpoint under the real names completely, three ranks included."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from glmspark.serving.census import Kind
from glmspark.serving.kv import Drafting
from glmspark.serving.model import draft_shape, model_shape, shipped_config
from glmspark.serving.shard import rank_weights
from glmspark.serving.topology import TOPOLOGIES, Topology

ORACLE = Path(__file__).with_name("model_oracle.py")
# Not in this model: routed experts (the EXL3 plugin's), vision, drafter, MTP block.
ELSEWHERE = {Kind.EXPERTS, Kind.VISION, Kind.DRAFTER, Kind.MTP}
RANKS = {1: Topology("one", 1), 2: TOPOLOGIES["tp2"], 3: TOPOLOGIES["tp3"]}
RANKS[4] = TOPOLOGIES["tp4"]


@pytest.fixture(scope="module")
def oracle(patched_tree):
    done = subprocess.run(
        [sys.executable, str(ORACLE)],
        input=json.dumps(
            {
                "target": shipped_config("glm-5.3-flash")["text_config"],
                "drafter": shipped_config("dflash2"),
            }
        ),
        env={
            **os.environ,
            "PYTHONPATH": str(patched_tree),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("ranks", sorted(RANKS))
def test_resident_bytes_are_the_models_parameters(oracle, ranks):
    model = model_shape(shipped_config("glm-5.3-flash"))
    ours = rank_weights(model, RANKS[ranks], Drafting("none", 0)).by_kind
    found = {kind.value: size for kind, size in ours.items() if kind not in ELSEWHERE}
    assert found == oracle["full"][str(ranks)]


@pytest.mark.parametrize("ranks", sorted(RANKS))
def test_drafter_bytes_are_the_drafters_parameters(oracle, ranks):
    model = model_shape(shipped_config("glm-5.3-flash"))
    drafting = Drafting("dflash2", 7, draft_shape(shipped_config("dflash2")))
    ours = rank_weights(model, RANKS[ranks], drafting).by_kind[Kind.DRAFTER]
    assert ours == oracle["drafter"][str(ranks)]


@pytest.mark.parametrize("ranks", sorted(RANKS))
def test_a_load_leaves_nothing_unset(oracle, ranks):
    for rank in oracle["tiny"][str(ranks)]:
        unset = [name for name, (_, _, missing) in rank.items() if missing]
        assert unset == []


def test_one_rank_holds_every_tensor_once(oracle):
    (rank,) = oracle["tiny"]["1"]
    held = sum(total for _, total, _ in rank.values())
    assert held == pytest.approx(sum(oracle["checkpoint"].values()), rel=1e-9)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_together_hold_every_tensor_once_or_whole(oracle, ranks):
    (one,) = oracle["tiny"]["1"]
    several = oracle["tiny"][str(ranks)]
    for name, (_, whole, _) in one.items():
        sums = [rank[name][1] for rank in several]
        if name.endswith("in_proj_qkvbfg_a.weight"):
            at = name.removesuffix("in_proj_qkvbfg_a.weight")
            copied = sum(oracle["checkpoint"][f"{at}{x}_a_proj.weight"] for x in "fg")
            assert sum(sums) == pytest.approx(whole + (ranks - 1) * copied, rel=1e-9)
        elif sums != pytest.approx([whole] * ranks, rel=1e-9):
            assert sum(sums) == pytest.approx(whole, rel=1e-9), name


def test_the_oracle_really_splits(oracle):
    # Sums alone would also hold if every rank kept everything.
    (one,) = oracle["tiny"]["1"]
    for rank in oracle["tiny"]["4"]:
        name = "model.layers.0.self_attn.o_proj.weight"
        assert rank[name][0] * 4 == one[name][0]
