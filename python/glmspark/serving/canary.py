"""Is the model that answers the model? Requests to send, and verdicts on the answers.

Pure: what is sent is data, a verdict is a function of the decoded JSON. Whoever sends
them stops the ranks, keeps the logs and exits 7 when :func:`judge` raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from glmspark.errors import IntegrityError

Response = Mapping[str, Any]

# A Russian, a Chinese and an Arabic word: bytes that a broken head does not find.
FOREIGN = ("хорошо", "正确", "صحيح")
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
# Drafted tokens below which an acceptance of zero may be chance.
LEAST_DRAFTS = 64


@dataclass(frozen=True)
class Probe:
    """One chat request and the function that finds fault with its answer.

    ``fault`` gives a sentence, or None for a good answer.
    """

    name: str
    body: dict[str, Any]
    fault: Callable[[Response], str | None]


def _message(response: Response) -> Mapping[str, Any]:
    choices = response.get("choices") or [{}]
    message: Mapping[str, Any] = choices[0].get("message") or {}
    return message


def _content(response: Response) -> str:
    return _message(response).get("content") or ""


def repeated(text: str) -> str | None:
    """The unit that a collapsed text repeats, or None.

    A collapse is one character, or a cycle of up to 24 characters, at least eight
    times and for half of the text, or for its last half.
    """
    tail = text.strip()
    if len(tail) < 16:
        return None
    for half in (tail, tail[len(tail) // 2 :]):
        match = re.search(r"(.{1,24}?)\1{7,}", half, re.DOTALL)
        if match and len(match.group(0)) * 2 >= len(half):
            return match.group(1)
    return None


def word_fault(response: Response, word: str) -> str | None:
    """Fault unless the answer is exactly ``word``, a full stop allowed."""
    found = _content(response).strip().strip('".。!').strip()
    if found == word:
        return None
    return f"asked for '{word}', the answer was '{_content(response)[:80]}'"


def collapse_fault(response: Response) -> str | None:
    """Fault where the answer is empty or repeats one unit."""
    text = _content(response)
    if not text.strip():
        return "the answer was empty"
    unit = repeated(text)
    return None if unit is None else f"the answer repeats '{unit}'"


def foreign_fault(response: Response) -> str | None:
    """Fault unless all three foreign words came back, and no replacement character."""
    text = _content(response)
    if "\N{REPLACEMENT CHARACTER}" in text:
        return "the answer holds bytes that are no text"
    missing = [word for word in FOREIGN if word not in text]
    return f"the answer lacks {', '.join(missing)}" if missing else None


def tool_fault(response: Response) -> str | None:
    """Fault unless there is one call of get_weather whose arguments name Paris."""
    calls = _message(response).get("tool_calls") or []
    if len(calls) != 1:
        return f"expected one tool call, got {len(calls)}: '{_content(response)[:80]}'"
    function = calls[0].get("function") or {}
    try:
        arguments = json.loads(function.get("arguments") or "")
    except json.JSONDecodeError:
        return f"the tool call's arguments are no JSON: {function.get('arguments')!r}"
    city = arguments.get("city") if isinstance(arguments, dict) else None
    if function.get("name") != "get_weather" or "paris" not in str(city).lower():
        return f"the tool call was {function.get('name')}({arguments})"
    return None


def thinking_fault(response: Response) -> str | None:
    """Fault unless reasoning and an answer with 56 are there, apart from each other."""
    message = _message(response)
    reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
    if not reasoning.strip():
        return "thinking was asked for and no reasoning came back"
    if "</think>" in _content(response):
        return "the end of reasoning stands in the answer: parser and template differ"
    if repeated(reasoning) is not None:
        return f"the reasoning repeats '{repeated(reasoning)}'"
    if "56" not in _content(response):
        return f"7 x 8 was answered with '{_content(response)[:80]}'"
    return None


_COUNTER = re.compile(
    r"^vllm:spec_decode_num_(draft_tokens|accepted_tokens)(?:_total)?"
    r"(?:\{[^}]*\})?\s+([0-9.eE+]+)",
    re.MULTILINE,
)


def draft_counts(metrics: str) -> dict[str, float]:
    """Drafted and accepted tokens from the text of /metrics, summed over engines."""
    found = {"draft_tokens": 0.0, "accepted_tokens": 0.0}
    for name, value in _COUNTER.findall(metrics):
        found[name] += float(value)
    return found


def acceptance_fault(before: str, after: str) -> str | None:
    """Fault where nothing drafted between two readings of /metrics was accepted.

    Too few drafts are a fault too: the requests in between have to make them.
    """
    first, last = draft_counts(before), draft_counts(after)
    drafted = last["draft_tokens"] - first["draft_tokens"]
    accepted = last["accepted_tokens"] - first["accepted_tokens"]
    if drafted < LEAST_DRAFTS:
        return f"only {drafted:.0f} tokens were drafted, {LEAST_DRAFTS} are needed"
    if accepted <= 0:
        return f"of {drafted:.0f} drafted tokens none was accepted"
    return None


def _body(model: str, text: str, tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": tokens,
        "chat_template_kwargs": {"enable_thinking": False},
        **more,
    }


def probes(model: str) -> tuple[Probe, ...]:
    """The requests of the canary, in the order to send them; ``model`` as served."""
    think = {"enable_thinking": True, "reasoning_effort": "low"}
    words = " ".join(FOREIGN)
    return (
        Probe(
            "word",
            _body(model, "Reply with exactly one word: OK", 16),
            lambda response: word_fault(response, "OK"),
        ),
        Probe(
            "prose",
            _body(model, "Describe a lighthouse in four sentences.", 200),
            collapse_fault,
        ),
        Probe(
            "foreign",
            _body(model, f"Repeat these three words and nothing else: {words}", 48),
            foreign_fault,
        ),
        Probe(
            "tool",
            _body(model, "What is the weather in Paris?", 128, tools=[TOOL]),
            tool_fault,
        ),
        Probe(
            "thinking",
            _body(model, "What is 7 times 8?", 4096, chat_template_kwargs=think),
            thinking_fault,
        ),
    )


def judge(faults: Mapping[str, str | None]) -> None:
    """Raises IntegrityError (exit 7) that names every fault; quiet without any.

    ``faults`` maps a probe's name to its sentence, or None where it passed. No probe
    at all is a fault: a canary that asked nothing has not passed.
    """
    if not faults:
        raise IntegrityError("the canary sent nothing, so nothing was seen to work")
    bad = [f"{name}: {text}" for name, text in faults.items() if text]
    if bad:
        raise IntegrityError(
            f"the model answers wrongly ({'; '.join(bad)}); the ranks were stopped and "
            "their logs kept",
            hint="glmspark start again; if it repeats, glmspark weights verify --deep",
        )
