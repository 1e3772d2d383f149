"""Stop strings and reasoning, through vLLM's own incremental detokenizers."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest, detokenizer

WORDS = ["<think>", "</think>", "a", "b", "END", "c"]


@pytest.fixture(scope="module")
def tokenizer():
    raw = Tokenizer(
        models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="a")
    )
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=raw)


def request(prompt, **params):
    return EngineCoreRequest(
        request_id="r",
        prompt_token_ids=[WORDS.index(w) for w in prompt.split()],
        mm_features=None,
        sampling_params=SamplingParams(stop=["END"], **params),
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )


def generate(tokenizer, prompt, steps, slow=False, **params):
    """(matched stop, text) after feeding ``steps``, each a string of words."""
    kind = (
        detokenizer.SlowIncrementalDetokenizer
        if slow
        else detokenizer.FastIncrementalDetokenizer
    )
    made = kind(tokenizer, request(prompt, **params))
    for step in steps:
        stop = made.update([WORDS.index(w) for w in step.split()], False)
        if stop:
            return stop, made.output_text
    return None, made.output_text


@pytest.fixture
def on(monkeypatch):
    monkeypatch.setenv("GLMSPARK_STOPS_AFTER_REASONING", "1")


@pytest.mark.parametrize("slow", [False, True])
def test_a_stop_in_reasoning_is_not_one(on, tokenizer, slow):
    stop, text = generate(tokenizer, "a <think>", ["a", "END", "b"], slow)
    assert stop is None
    assert "END" in text


def test_a_stop_after_reasoning_is_one(on, tokenizer):
    steps = ["END", "</think>", "b", "END", "c"]
    stop, text = generate(tokenizer, "a <think>", steps)
    assert stop == "END"
    assert text.endswith("b")
    assert text.count("END") == 1


def test_one_step_over_the_end_of_reasoning(on, tokenizer):
    # Speculative decoding appends several tokens at once.
    stop, text = generate(tokenizer, "<think> a", ["END </think> b END c"])
    assert stop == "END"
    assert text.count("END") == 1
    assert "c" not in text


def test_stop_may_be_included(on, tokenizer):
    steps = ["END </think> b END c"]
    _, text = generate(tokenizer, "<think>", steps, include_stop_str_in_output=True)
    assert text.endswith("bEND")


def test_a_think_that_the_model_opens_counts(on, tokenizer):
    steps = ["<think>", "END", "</think>", "END"]
    stop, text = generate(tokenizer, "a", steps)
    assert stop == "END"
    assert text.count("END") == 1


def test_both_closed_reasoning_in_the_prompt_is_none(on, tokenizer):
    stop, _ = generate(tokenizer, "<think> a </think>", ["b", "END"])
    assert stop == "END"


@pytest.mark.parametrize("slow", [False, True])
def test_both_without_the_knob_it_is_upstreams(monkeypatch, tokenizer, slow):
    monkeypatch.delenv("GLMSPARK_STOPS_AFTER_REASONING", raising=False)
    assert generate(tokenizer, "<think>", ["a", "END"], slow)[0] == "END"
