"""A prompt always gets on beside running streams, by vLLM's own chunk rule."""

import itertools

import pytest
from glmspark.serving.memory import batched_tokens, engine_layout
from glmspark.serving.profiles import load_profile, profile_names
from glmspark.serving.topology import topology

PROFILES = [name for name in profile_names() if name != "transplant"]
CASES = list(
    itertools.product(("tp2", "tp3", "tp4"), PROFILES, ("dflash2", "mtp", "none"))
)
PROMPT = 60_000


def asked(model, draft, case):
    """Questions for one kit: every number of running streams, fresh and resumed."""
    name, profile, method = case
    engine = load_profile(profile).engine
    layout = engine_layout(model, topology(name), engine, method, draft)
    block = layout.block_tokens
    small = layout.drafting.block_tokens or block
    return [
        {
            "method": method,
            "drafts": layout.drafting.tokens,
            "block": block,
            "hash_block": small,
            "batched": batched_tokens(engine, block, layout.drafting),
            "long_prefill": engine.long_prefill_tokens,
            "decoding": decoding,
            "prompt": PROMPT,
            "start": start,
        }
        for decoding in range(engine.max_num_seqs)
        for start in (0, small, block, block + small)
    ]


# The same kit without the held-back slots: two ranks, one block, k = 7.
TOO_FEW = {
    "method": "dflash2",
    "drafts": 7,
    "block": 4608,
    "hash_block": 768,
    "batched": 4608 + 4 * 8,
    "long_prefill": 0,
    "prompt": PROMPT,
    "start": 0,
}


@pytest.fixture(scope="module")
def chunks(model, draft, vllm_oracle):
    groups = {case: asked(model, draft, case) for case in CASES}
    groups["too few"] = [{**TOO_FEW, "decoding": n} for n in range(4)]
    flat = [question for group in groups.values() for question in group]
    answers = iter(vllm_oracle.ask("chunk", flat))
    return {key: [(q, next(answers)) for q in group] for key, group in groups.items()}


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_every_step_prefills_something(chunks, case):
    for question, length in chunks[case]:
        assert length > 0, question


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_fresh_prompt_gets_all_its_blocks(chunks, case):
    blocks = load_profile(case[1]).engine.prefill_blocks
    for question, length in chunks[case]:
        if question["start"] == 0 and not question["long_prefill"]:
            assert length == blocks * question["block"]


def test_without_the_held_back_slots_two_streams_starve_a_prompt(chunks):
    assert [length for _, length in chunks["too few"]] == [4608, 4608, 0, 0]
