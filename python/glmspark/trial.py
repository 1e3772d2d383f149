"""Ask a healthy engine what it has to answer before it is announced.

The warm-up's shapes come first: what compiles, compiles here. Then the canary, whose
verdict decides: a model that answers nonsense is healthy by every other sign.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from glmspark import health
from glmspark.boot import Api, Trial
from glmspark.errors import IntegrityError
from glmspark.health import CHAT, Answer

# Token ids of the warm-up's prompts: ordinary ones, in every vocabulary of this size.
FIRST_TOKEN, TOKENS = 1000, 4096
LOGGED_CHARS = 400

Note = Callable[[str], None]


class Examiner:
    """Sends requests to one engine until a point in time, and notes every answer."""

    def __init__(self, api: Api, key: str, limit_s: float, note: Note) -> None:
        self._api = api
        self._key = key
        self._end_s = time.monotonic() + limit_s
        self._note = note

    def _post(self, path: str, body: Mapping[str, Any]) -> Answer:
        left_s = max(1.0, self._end_s - time.monotonic())
        return health.ask(self._api, path, key=self._key, body=body, timeout_s=left_s)

    def warm_up(self, trial: Trial) -> str:
        """Send every shape; what is wrong with the first bad answer, or ""."""
        count = len(trial.warm_up)
        for number, shape in enumerate(trial.warm_up, start=1):
            began_s = time.monotonic()
            with ThreadPoolExecutor(shape["parallel"]) as pool:
                asked = requests(self._api.name, shape, number)
                answers = list(pool.map(lambda one: self._post(*one), asked))
            took_s = time.monotonic() - began_s
            self._note(f"warm-up {number} of {count} {dict(shape)}: {took_s:.2f} s")
            for fault in filter(None, map(shape_fault, answers)):
                return f"warm-up with {shape['prompt_tokens']} tokens: {fault}"
        return ""

    def structure(self) -> str:
        """What is wrong with a completion that may say anything."""
        left_s = max(1.0, self._end_s - time.monotonic())
        return health.canary(self._api, self._key, left_s)

    def answers(self, *, drafts: bool) -> str:
        """What is wrong with answers that have to make sense."""
        from glmspark.serving import canary

        before = health.metrics(self._api, self._key)
        faults: dict[str, str | None] = {}
        for probe in canary.probes(self._api.name):
            answer = self._post(CHAT, probe.body)
            fault = health.judge(answer) or probe.fault(answer.data())
            faults[probe.name] = fault
            said = answer.body[:LOGGED_CHARS].decode(errors="replace")
            self._note(f"{probe.name}: {fault or 'good'}: {said}")
        if drafts:
            after = health.metrics(self._api, self._key)
            faults["drafts"] = canary.acceptance_fault(before, after)
            self._note(f"drafts: {faults['drafts'] or 'good'}")
        try:
            canary.judge(faults)
        except IntegrityError as error:
            return str(error)
        return ""


def shape_fault(answer: Answer) -> str:
    """What is wrong with the answer to a warm-up request: anything but a 200."""
    if answer.status == 200:
        return ""
    said = answer.error or answer.body[:200].decode(errors="replace")
    return f"HTTP {answer.status}: {said}"


def requests(
    model: str, shape: Mapping[str, Any], seed: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The requests of one shape as (path, body); prompts share no prefix."""
    sampling = {key: shape[key] for key in ("max_tokens", "temperature", "top_p")}
    common = {"model": model, **sampling, "top_k": shape["top_k"] or -1}
    for number in range(shape["parallel"]):
        first = 31 * seed + 7 * number
        if shape["thinking"]:
            text = " ".join(f"word{first + at}" for at in range(8))
            messages = [{"role": "user", "content": f"Think about {text}."}]
            think = {"enable_thinking": True, "reasoning_effort": "low"}
            yield CHAT, {**common, "messages": messages, "chat_template_kwargs": think}
        else:
            tokens = [
                FIRST_TOKEN + (first + 13 * at) % TOKENS
                for at in range(shape["prompt_tokens"])
            ]
            yield "/v1/completions", {**common, "prompt": tokens, "ignore_eos": True}


def run(api: Api, key: str, trial: Trial, limit_s: float, note: Note) -> str:
    """Warm the engine up and judge its answers: what is wrong, or "" for nothing."""
    examiner = Examiner(api, key, limit_s, note)
    fault = examiner.warm_up(trial) or examiner.structure()
    if fault or not trial.judges:
        return fault
    return examiner.answers(drafts=trial.drafts)
