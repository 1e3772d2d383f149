"""Rendered lines are taken by vLLM 0.32.0's parser and configuration classes.

Not proved here, because they need CUDA or the drafter's weights: SpeculativeConfig
with DFlash2, ModelConfig as a whole (its class inspection imports torchvision) and
the choice of the sparse-MLA backend. docs/first-run.md lists them.
"""

import itertools
import json
from dataclasses import replace

import pytest
from glmspark.serving.profiles import load_profile, profile_names
from glmspark.serving.render import render
from glmspark.serving.topology import TOPOLOGIES

PROFILES = [name for name in profile_names() if name != "transplant"]
CASES = [
    *itertools.product(sorted(TOPOLOGIES), PROFILES, ("dflash2",)),
    *itertools.product(sorted(TOPOLOGIES), ("default",), ("mtp", "none")),
]
BROKEN = ["vllm", "serve", "x", "--no-such-flag"]


@pytest.fixture(scope="module")
def lines(kit, serving, tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    (folder / "config.json").write_text(json.dumps(serving.config))
    served = replace(serving, model_dir=str(folder))
    found = {}
    for name, profile, drafter in CASES:
        ranks = render(
            kit(name), load_profile(profile), replace(served, drafter=drafter)
        ).ranks
        found[name, profile, drafter] = [list(rank.argv) for rank in ranks]
    return found


@pytest.fixture(scope="module")
def answers(lines, vllm_oracle):
    flat = [argv for ranks in lines.values() for argv in ranks]
    got = iter(vllm_oracle.ask("argv", [*flat, BROKEN]))
    by_case = {case: [next(got) for _ in ranks] for case, ranks in lines.items()}
    return by_case, next(got)


def test_a_wrong_flag_is_refused(answers):
    assert "SystemExit" in answers[1]["error"]


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_vllm_takes_every_rank(answers, case):
    name, profile, drafter = case
    topo, engine = TOPOLOGIES[name], load_profile(profile).engine
    for rank, answer in enumerate(answers[0][case]):
        assert "error" not in answer, answer
        parsed = answer["parsed"]
        assert parsed["tensor_parallel_size"] == parsed["nnodes"] == topo.ranks
        assert parsed["node_rank"] == rank
        assert bool(parsed["headless"]) is (rank > 0)
        assert parsed["max_model_len"] == engine.max_model_len
        assert parsed["enable_expert_parallel"] is topo.expert_parallel
        assert answer["tool parser known"]
        assert answer["reasoning parser known"]
        heads = topo.pad(64)
        expected = {"heads": heads, "kda_heads": heads, "experts": 288}
        assert answer["target"] == expected
        drafts = (parsed["speculative_config"] or {}).get("num_speculative_tokens")
        assert drafts == {"dflash2": 7, "mtp": 2, "none": None}[drafter]
