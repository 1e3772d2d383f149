"""Ask a running API: its health, its models, and a real completion."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glmspark.boot import Api

CHAT = "/v1/chat/completions"
# vLLM writes -9999 where a probability is zero.
LEAST_LOGPROB = -9999.0


@dataclass(frozen=True)
class Answer:
    """An HTTP answer: status and body; status 0 means that nobody answered."""

    status: int
    body: bytes = b""
    error: str = ""

    def data(self) -> Any:
        """The body as JSON; None where it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def connect_host(host: str) -> str:
    """The address to connect to for a server that binds to ``host``."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104


def ask(
    api: Api,
    path: str,
    *,
    key: str = "",
    body: Mapping[str, Any] | None = None,
    timeout_s: float = 2.0,
) -> Answer:
    """The API's answer to GET ``path``, or to POST with ``body``; never raises.

    Proxies of the environment are not used: the API is on this machine or the fabric.
    """
    connection = http.client.HTTPConnection(
        connect_host(api.host), api.port, timeout=timeout_s
    )
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        if body is None:
            connection.request("GET", path, headers=headers)
        else:
            headers["Content-Type"] = "application/json"
            connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        return Answer(response.status, response.read())
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, error=str(error) or type(error).__name__)
    finally:
        connection.close()


def is_healthy(api: Api, timeout_s: float = 2.0) -> bool | None:
    """Whether /health is 200; None while nobody listens."""
    answer = ask(api, "/health", timeout_s=timeout_s)
    return None if answer.status == 0 else answer.status == 200


def chat_body(name: str, prompt: str, max_tokens: int) -> dict[str, Any]:
    """A greedy chat completion request."""
    return {
        "model": name,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }


def metrics(api: Api, key: str) -> str:
    """The text of /metrics; empty where there is none."""
    answer = ask(api, "/metrics", key=key, timeout_s=10.0)
    return answer.body.decode(errors="replace") if answer.status == 200 else ""


def judge(answer: Answer) -> str:
    """What is wrong with the answer to a chat request; empty: nothing."""
    if answer.status == 0:
        return f"no answer ({answer.error})"
    if answer.status != 200:
        return f"HTTP {answer.status}: {answer.body[:200].decode(errors='replace')}"
    data = answer.data()
    try:
        usage = data["usage"]["completion_tokens"]
        choices = data["choices"]
    except (TypeError, KeyError):
        return f"not a chat completion: {answer.body[:200].decode(errors='replace')}"
    return "" if choices and usage > 0 else "no token was generated"


def logprob_fault(answer: Answer) -> str:
    """What is wrong with the tokens' log probabilities; empty: nothing.

    A random model's words say nothing, but each of its tokens was the likeliest, so
    its probability is a number: not a number, and not vLLM's stand-in for zero.
    """
    choices = answer.data()["choices"]
    found = (choices[0].get("logprobs") or {}).get("content") or []
    values = [token.get("logprob") for token in found]
    if not values:
        return "no log probability came back"
    bad = [
        value
        for value in values
        if not isinstance(value, int | float) or not LEAST_LOGPROB < value <= 0.0
    ]
    return f"a token's log probability is {bad[0]}" if bad else ""


def canary(api: Api, key: str, timeout_s: float) -> str:
    """What is wrong with a real completion of a few tokens; empty: nothing."""
    body = {**chat_body(api.name, "Say hello.", 4), "logprobs": True}
    answer = ask(api, CHAT, key=key, body=body, timeout_s=timeout_s)
    return judge(answer) or logprob_fault(answer)
