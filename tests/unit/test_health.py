"""What an API may answer, and what is made of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from glmspark.boot import Api
from glmspark.health import Answer, ask, canary, connect_host, is_healthy, judge

from tests.conftest import take_port

CHOICE = {
    "message": {"content": "x"},
    "logprobs": {"content": [{"token": "x", "logprob": -0.25}]},
}
GOOD = {"choices": [CHOICE], "usage": {"completion_tokens": 1}}


class Server(BaseHTTPRequestHandler):
    status = 200
    answer: Any = GOOD
    seen: list[tuple[str, str | None, Any]]

    def log_message(self, *_args: object) -> None: ...

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        body = json.loads(self.rfile.read(length) or "null")
        self.seen.append((self.path, self.headers.get("Authorization"), body))
        data = json.dumps(self.answer).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET  # noqa: N815 - the name that http.server calls


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Api, type[Server]]]:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9/")
    kind = type("Kind", (Server,), {"seen": []})
    with HTTPServer(("127.0.0.1", 0), kind) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield Api("127.0.0.1", http.server_port, "m", "", ""), kind
        http.shutdown()
        thread.join()


def test_health_is_the_status_and_proxies_are_not_used(
    server: tuple[Api, type[Server]],
) -> None:
    api, kind = server
    assert is_healthy(api) is True
    kind.status = 503
    assert is_healthy(api) is False
    assert is_healthy(Api("127.0.0.1", take_port(), "m", "", "")) is None


def test_the_canary_is_a_chat_with_the_key(server: tuple[Api, type[Server]]) -> None:
    api, kind = server
    assert canary(api, "k", 5) == ""
    ((path, auth, body),) = kind.seen
    assert (path, auth, body["model"]) == ("/v1/chat/completions", "Bearer k", "m")


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        (Answer(0, error="refused"), "no answer (refused)"),
        (Answer(500, b"broken"), "HTTP 500: broken"),
        (Answer(200, b"<html>"), "not a chat completion"),
        (Answer(200, b"[]"), "not a chat completion"),
        (
            Answer(200, b'{"choices": [], "usage": {"completion_tokens": 1}}'),
            "no token",
        ),
        (
            Answer(200, b'{"choices": [1], "usage": {"completion_tokens": 0}}'),
            "no token",
        ),
    ],
)
def test_what_is_no_completion(answer: Answer, part: str) -> None:
    assert part in judge(answer)


def test_a_completion_is_fine() -> None:
    assert judge(Answer(200, json.dumps(GOOD).encode())) == ""


@pytest.mark.parametrize(
    ("logprobs", "part"),
    [
        (None, "no log probability"),
        ({"content": []}, "no log probability"),
        ({"content": [{"logprob": None}]}, "is None"),
        ({"content": [{"logprob": float("nan")}]}, "is nan"),
        ({"content": [{"logprob": -9999.0}]}, "is -9999.0"),
        ({"content": [{"logprob": -1.0}, {"logprob": 0.5}]}, "is 0.5"),
    ],
)
def test_tokens_without_a_probability_are_a_fault(
    server: tuple[Api, type[Server]], logprobs: Any, part: str
) -> None:
    api, kind = server
    choice = {"message": {"content": "x"}, "logprobs": logprobs}
    kind.answer = {"choices": [choice], "usage": {"completion_tokens": 1}}
    assert part in canary(api, "", 5)


def test_an_answer_that_breaks_off_does_not_raise(
    server: tuple[Api, type[Server]],
) -> None:
    api, kind = server
    kind.status = 999
    assert ask(api, "/x").status in {0, 999}


def test_wildcards_are_asked_on_loopback() -> None:
    assert connect_host("0.0.0.0") == "127.0.0.1"
    assert connect_host("::") == "::1"
    assert connect_host("10.0.0.1") == "10.0.0.1"
