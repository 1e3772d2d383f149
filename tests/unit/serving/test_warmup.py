"""The warm-up covers what traffic brings and stays inside the profile."""

import pytest
from glmspark.serving.profiles import load_profile, profile_names
from glmspark.serving.render import render
from glmspark.serving.warmup import SHORT_PROMPTS, warm_up

SERVED = [name for name in profile_names() if name != "transplant"]


def requests(kit, serving, name, profile):
    chosen = load_profile(profile)
    plan = render(kit(name), chosen, serving).memory
    return chosen.engine, plan, warm_up(chosen.engine, plan)


@pytest.mark.parametrize("name", ["tp2", "tp3", "tp4"])
@pytest.mark.parametrize("profile", SERVED)
def test_every_width_and_a_full_chunk(kit, serving, name, profile):
    engine, plan, sent = requests(kit, serving, name, profile)
    widths = {one.parallel for one in sent}
    assert widths == set(range(1, engine.max_num_seqs + 1))
    lengths = {one.prompt_tokens for one in sent}
    assert set(SHORT_PROMPTS) <= lengths
    assert plan.max_num_batched_tokens in lengths
    assert all(
        one.prompt_tokens + one.max_tokens <= engine.max_model_len for one in sent
    )


def test_samplers_are_all_tried(kit, serving):
    _, _, sent = requests(kit, serving, "tp2", "default")
    tried = {(one.top_k > 0, one.top_p < 1) for one in sent if one.temperature}
    assert tried == {(False, False), (True, False), (False, True), (True, True)}
    assert any(one.thinking for one in sent)
