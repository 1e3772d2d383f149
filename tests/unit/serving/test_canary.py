"""Each verdict accepts a good answer and finds fault with each kind of bad one."""

import json

import pytest
from glmspark.errors import ExitCode, IntegrityError
from glmspark.serving import canary

FOREIGN = " ".join(canary.FOREIGN)


def answer(content="", **message):
    return {"choices": [{"message": {"content": content, **message}}]}


def call(name="get_weather", arguments='{"city": "Paris"}'):
    return {"function": {"name": name, "arguments": arguments}}


GOOD = {
    "word": answer("OK"),
    "prose": answer(
        "A lighthouse stands on the cliff. Its white tower is seen for miles. At night "
        "a lamp turns. Ships steer by it."
    ),
    "foreign": answer(FOREIGN),
    "tool": answer(None, tool_calls=[call()]),
    "thinking": answer("7 x 8 = 56", reasoning="Seven eights are fifty-six."),
}

BAD = [
    ("word", answer("Okay"), "asked for 'OK'"),
    ("word", answer(""), "asked for 'OK'"),
    ("word", {}, "asked for 'OK'"),
    ("word", {"choices": []}, "asked for 'OK'"),
    ("prose", answer("!" * 200), "repeats '!'"),
    ("prose", answer("The sea. " + "ab ab " * 40), "repeats"),
    ("prose", answer("  "), "was empty"),
    ("prose", answer(None), "was empty"),
    ("foreign", answer("хорошо 正确"), "lacks صحيح"),
    ("foreign", answer(FOREIGN + "\ufffd"), "no text"),
    ("tool", answer("It is sunny."), "got 0"),
    ("tool", answer(None, tool_calls=[call(), call()]), "got 2"),
    ("tool", answer(None, tool_calls=[call(name="get_time")]), "get_time"),
    ("tool", answer(None, tool_calls=[call(arguments='{"city": "Rome"}')]), "Rome"),
    ("tool", answer(None, tool_calls=[call(arguments="{city")]), "no JSON"),
    ("tool", answer(None, tool_calls=[call(arguments='["Paris"]')]), "get_weather"),
    ("thinking", answer("56"), "no reasoning"),
    ("thinking", answer("54", reasoning="Seven eights."), "answered with '54'"),
    ("thinking", answer("</think>56", reasoning="Seven."), "parser and template"),
    ("thinking", answer("56", reasoning="wait " * 60), "reasoning repeats"),
]


@pytest.mark.parametrize("probe", canary.probes("glm"), ids=lambda p: p.name)
def test_good_answers_pass(probe):
    assert probe.fault(GOOD[probe.name]) is None


@pytest.mark.cases(63, 147, 148)
@pytest.mark.parametrize(("name", "response", "words"), BAD)
@pytest.mark.cases(63)
def test_bad_answers_are_named(name, response, words):
    (probe,) = [p for p in canary.probes("glm") if p.name == name]
    assert words in probe.fault(response)


def test_reasoning_under_its_older_name_counts():
    old = answer("56", reasoning_content="Seven eights.")
    assert canary.thinking_fault(old) is None


def test_requests_are_json_greedy_and_short():
    for probe in canary.probes("glm"):
        body = json.loads(json.dumps(probe.body))
        assert body["model"] == "glm"
        assert body["temperature"] == 0
        assert body["max_tokens"] <= 4096


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("aaaaaaaaaaaaaaaaaaaa", "a"),
        ("hello " + "xy" * 40, "xy"),
        ("a good text that turns " + "no " * 30, "no "),
        ("no", None),
        ("One two three four five six seven eight nine ten eleven.", None),
        ("a table: ---------------- and then a long text that is fine by itself", None),
    ],
)
def test_collapse(text, unit):
    found = canary.repeated(text)
    assert (found is None) is (unit is None)


METRICS = """# HELP vllm:spec_decode_num_draft_tokens_total x
vllm:spec_decode_num_drafts_total{{engine="0"}} 9
vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {drafted}
vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {accepted}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="0"}} 999
"""


def metrics(drafted, accepted):
    return METRICS.format(drafted=drafted, accepted=accepted)


def test_accepted_drafts_pass():
    assert canary.acceptance_fault(metrics(100, 50), metrics(300.0, 90.0)) is None


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (metrics(300, 50), "of 200 drafted tokens none"),
        (metrics(150, 90), "only 50 tokens were drafted"),
        ("", "tokens were drafted"),
    ],
)
def test_no_acceptance_is_a_fault(after, words):
    assert words in canary.acceptance_fault(metrics(100, 50), after)


def test_judge_names_every_fault_and_exits_7():
    with pytest.raises(IntegrityError, match=r"word: a; tool: b") as error:
        canary.judge({"word": "a", "prose": None, "tool": "b"})
    assert error.value.exit_code is ExitCode.INTEGRITY


def test_judge_is_quiet_when_all_passed():
    canary.judge({"word": None, "prose": None})


def test_judge_refuses_an_empty_canary():
    with pytest.raises(IntegrityError, match="sent nothing"):
        canary.judge({})
