"""What the drafter's small KV block and the kept block buy: cached tokens of a replay,
by vLLM 0.32.0's own cache manager."""

import pytest

PROMPTS = (20_000, 9_300, 4_700)
# ranks, trailing block dropped, draft block -> cached tokens of each prompt. Two
# ranks: as measured before with the same functions.
EXPECTED = {
    (2, True, None): (13_824, 4_608, 0),
    (2, False, None): (18_432, 9_216, 4_608),
    (2, False, 768): (19_968, 9_216, 4_608),
}
SMALL = {2: 768, 3: 832, 4: 768}
BLOCK = {2: 4608, 3: 3328, 4: 2304}
OTHERS = [(ranks, False, block) for ranks in (3, 4) for block in (None, SMALL[ranks])]
CASES = [*EXPECTED, *OTHERS]


def question(case, prompt):
    ranks, drop, block = case
    heads = {2: 64, 3: 66, 4: 64}[ranks]
    return {
        "tp": ranks,
        "heads": heads,
        "spec": 7,
        "mtp": 0,
        "draft_layers": 5,
        "draft_kv_heads": {2: 4, 3: 3, 4: 2}[ranks],
        "draft_block": block,
        "cache_dtype": "fp8",
        "max_model_len": 262_144,
        "in_flight": 16_384,
        "kv_bytes": 14 * 2**30,
        "batched": 2 * BLOCK[ranks] + 60,
        "drop": drop,
        "prompt": prompt,
    }


@pytest.fixture(scope="module")
def cached(vllm_oracle):
    asked = [question(case, prompt) for case in CASES for prompt in PROMPTS]
    answers = iter(vllm_oracle.ask("prefix", asked))
    return {case: [next(answers) for _ in PROMPTS] for case in CASES}


@pytest.mark.parametrize("case", EXPECTED, ids=str)
def test_two_ranks_as_measured(cached, case):
    assert tuple(one["cached"] for one in cached[case]) == EXPECTED[case]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_small_block_finds_again_at_its_own_grain(cached, ranks):
    stock, small = cached[ranks, False, None], cached[ranks, False, SMALL[ranks]]
    for prompt, coarse, fine in zip(PROMPTS, stock, small, strict=True):
        assert coarse["cached"] == prompt // BLOCK[ranks] * BLOCK[ranks]
        assert fine["hash_block"] == SMALL[ranks]
        assert coarse["cached"] <= fine["cached"] <= prompt
        assert fine["cached"] % SMALL[ranks] == 0
    assert sum(f["cached"] for f in small) > sum(c["cached"] for c in stock)
