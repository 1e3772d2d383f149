"""A stand-in for ``vllm serve`` in tests: same arguments, same faults, no model.

It speaks the part of the OpenAI API that the tool and its tests use, joins its ranks on
the master port, and behaves as vLLM 0.32.0 was measured to: /health is blind to the
other rank, a lost rank shows at the first request and then exits 0, a headless rank
never notices that the head has gone. MODEL/stub.json scripts faults by rank number.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PR_SET_NAME = 15


_HOGGED: list[bytearray] = []


@dataclass(frozen=True)
class Script:
    """What a stub rank does, and when; times in seconds.

    ``log`` is printed at start; ``exit_after_s`` ends it with ``exit_code`` that long
    after launch; ``mute`` never joins; ``reply`` is the completion, empty for none;
    ``ignore_term`` makes SIGTERM do nothing; ``answer_s`` delays every completion;
    ``join_s`` passes before it joins; ``hog_bytes`` is memory that it takes when it is
    asked for a completion or has joined; ``once`` leaves the script out at the second
    start. ``fault`` names what is wrong with the answers, "" for a model that makes
    sense: repeat, empty, foreign, tool, thinking, drafts, logprob, warm-up.
    """

    load_s: float = 0.2
    log: str = ""
    exit_after_s: float = -1.0
    exit_code: int = 1
    mute: bool = False
    reply: str = "Hello there."
    health: int = 200
    ignore_term: bool = False
    answer_s: float = 0.0
    fault: str = ""
    hog_bytes: int = 0
    join_s: float = 0.0
    once: bool = False

    def hog(self) -> None:
        """Take the memory, page by page, and keep it."""
        taken = bytearray(self.hog_bytes)
        for offset in range(0, len(taken), 4096):
            taken[offset] = 1
        _HOGGED.append(taken)

    @staticmethod
    def read(model: Path, rank: int) -> Script:
        """The script of ``rank`` in the model's folder, or one without faults."""
        file = model / "stub.json"
        scripts = json.loads(file.read_text()) if file.is_file() else {}
        found = Script(**scripts.get(str(rank), {}))
        mark = model.with_name(f"started-{rank}")
        if found.once and mark.exists():
            return Script()
        if found.once:
            mark.touch()
        return found


# A question's telling word, and what a model that makes sense answers to it.
SENSE = (
    ("exactly one word", "OK"),
    ("lighthouse", "A lighthouse stands on a rock. Its lamp turns all night."),
    (
        "nothing else:",
        "\u0445\u043e\u0440\u043e\u0448\u043e \u6b63\u786e \u0635\u062d\u064a\u062d",
    ),
    ("7 times 8", "It is 56."),
)


def answer_to(body: dict[str, Any], script: Script) -> dict[str, Any]:
    """The assistant's message to a chat request, as the script has it."""
    prompt = " ".join(str(m.get("content")) for m in body.get("messages", []))
    content = next((said for ask, said in SENSE if ask in prompt), script.reply)
    if script.fault == "repeat":
        content = "the the the " * 20
    elif script.fault == "empty" or (script.fault == "foreign" and "\u6b63" in content):
        content = ""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if body.get("tools") and script.fault != "tool":
        call = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
        message = {"role": "assistant", "tool_calls": [{"function": call}]}
    thinks = body.get("chat_template_kwargs", {}).get("enable_thinking")
    if thinks and script.fault != "thinking":
        message["reasoning"] = "Seven eights are fifty-six."
    return message


def _fork_engine(title: str) -> int:
    """A child process with vLLM's kind of title, which sleeps until it is ended."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(PR_SET_NAME, title.encode(), 0, 0, 0)
        while True:
            time.sleep(3600)
    return pid


class Rendezvous:
    """The head's side of the master port: counts who has joined and who has gone."""

    def __init__(self, port: int, others: int) -> None:
        self._server = socket.create_server(("0.0.0.0", port))  # noqa: S104 - as torch
        self._others = others
        self.joined = threading.Event()
        self.broken = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        for number in range(1, self._others + 1):
            peer, _ = self._server.accept()
            threading.Thread(target=self._hold, args=(peer,), daemon=True).start()
            if number == self._others:
                self.joined.set()
        if not self._others:
            self.joined.set()

    def _hold(self, peer: socket.socket) -> None:
        try:
            while peer.recv(1):
                pass
        except OSError:
            pass
        self.broken.set()


class _Handler(BaseHTTPRequestHandler):
    """The API: /health, /v1/models, /v1/chat/completions (streaming too)."""

    script: Script
    name: str
    limit: int
    key: str
    meeting: Rendezvous
    asked: list[int]

    def log_message(self, *_args: object) -> None:
        """Be quiet: the log is for what matters to a test."""

    def _send(self, status: int, data: Any, *, kind: str = "application/json") -> None:
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refused(self) -> bool:
        given = self.headers.get("Authorization", "")
        if self.key and given != f"Bearer {self.key}":
            self._send(401, {"error": "Unauthorized"})
            return True
        return False

    def do_GET(self) -> None:
        """Health and the list of models."""
        if self.path == "/health":
            self._send(self.script.health, b"", kind="text/plain")
        elif self.path == "/metrics":
            accepted = 0 if self.script.fault == "drafts" else 3 * self.asked[0]
            text = f"vllm:spec_decode_num_draft_tokens_total {64 * self.asked[0]}\n"
            text += f"vllm:spec_decode_num_accepted_tokens_total {accepted}\n"
            self._send(200, text.encode(), kind="text/plain")
        elif self.path == "/v1/models" and not self._refused():
            self._send(200, {"object": "list", "data": [{"id": self.name}]})
        elif self.path != "/v1/models":
            self._send(404, {"error": "Not Found"})

    def do_POST(self) -> None:
        """A chat completion, whole or streamed."""
        length = int(self.headers.get("Content-Length", "0"))
        body = json.loads(self.rfile.read(length) or b"{}")
        if self._refused():
            return
        if self.meeting.broken.is_set():
            self._send(500, {"error": "EngineCore encountered an issue"})
            sys.stdout.write("[gloo] Connection closed by peer\n")
            sys.stdout.flush()
            os._exit(0)
        if body.get("model") != self.name:
            self._send(404, {"error": {"message": "The model does not exist."}})
            return
        prompt = " ".join(str(m.get("content")) for m in body.get("messages", []))
        if len(prompt.split()) > self.limit:
            message = f"maximum context length is {self.limit} tokens"
            self._send(400, {"error": {"message": message}})
            return
        if self.path == "/v1/completions":
            self._complete(body)
            return
        self.asked[0] += 1
        time.sleep(self.script.answer_s)
        if body.get("stream"):
            self._stream()
        else:
            self._send(200, self._completion(body))

    def _complete(self, body: dict[str, Any]) -> None:
        """A plain completion of token ids: the shape matters, the text does not."""
        if self.script.fault == "warm-up" or len(body["prompt"]) > self.limit:
            self._send(500, {"error": {"message": "no kernel for this shape"}})
        else:
            self._send(200, {"choices": [{"index": 0, "text": "x"}]})

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        message = answer_to(body, self.script)
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        if body.get("logprobs"):
            value = float("nan") if self.script.fault == "logprob" else -0.5
            choice["logprobs"] = {"content": [{"token": "x", "logprob": value}]}
        count = len(self.script.reply.split())
        return {
            "object": "chat.completion",
            "model": self.name,
            "choices": [choice],
            "usage": {"completion_tokens": count},
        }

    def _stream(self) -> None:
        words = [
            {"choices": [{"index": 0, "delta": {"content": word + " "}}]}
            for word in self.script.reply.split()
        ]
        events = [f"data: {json.dumps(word)}\n\n" for word in words]
        body = ("".join(events) + "data: [DONE]\n\n").encode()
        self._send(200, body, kind="text/event-stream")


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="stub", allow_abbrev=False)
    parser.add_argument("serve")
    parser.add_argument("model", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--served-model-name", default="stub")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--master-addr", default="127.0.0.1")
    parser.add_argument("--master-port", type=int, default=29555)
    parser.add_argument("--headless", action="store_true")
    known, _ = parser.parse_known_args(argv)
    return known


def _join(args: argparse.Namespace, script: Script) -> None:
    """The worker's side of the rendezvous; tries until the head is there."""
    time.sleep(script.join_s)
    while True:
        try:
            peer = socket.create_connection((args.master_addr, args.master_port), 5)
            break
        except OSError:
            time.sleep(0.05)
    sys.stdout.write("joined\n")
    sys.stdout.flush()
    peer.settimeout(None)
    script.hog()
    while True:  # as vLLM's worker: the head's end goes unnoticed
        time.sleep(3600)


def _serve(args: argparse.Namespace, script: Script) -> None:
    meeting = Rendezvous(args.master_port, args.nnodes - 1)
    meeting.joined.wait()
    time.sleep(script.load_s)
    handler = type(
        "Handler",
        (_Handler,),
        {
            "script": script,
            "name": args.served_model_name,
            "limit": args.max_model_len,
            "key": os.environ.get("VLLM_API_KEY", ""),
            "meeting": meeting,
            "asked": [0],
        },
    )
    ThreadingHTTPServer((args.host, args.port), handler).serve_forever()


def main(argv: list[str]) -> None:
    """Run one stub rank until it is ended."""
    args = _arguments(argv)
    script = Script.read(args.model, args.node_rank)
    if script.log:
        sys.stdout.write(script.log + "\n")
        sys.stdout.flush()
    if script.exit_after_s >= 0:
        timer = threading.Timer(script.exit_after_s, os._exit, args=(script.exit_code,))
        timer.daemon = True
        timer.start()
    child = _fork_engine(f"VLLM::Worker_TP{args.node_rank}")

    def end(_number: int, _frame: object) -> None:
        os.kill(child, signal.SIGKILL)
        os._exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if script.ignore_term else end)
    threading.Thread(target=_end_with, args=(child,), daemon=True).start()
    if script.mute:
        while True:
            time.sleep(3600)
    if args.headless:
        _join(args, script)
    _serve(args, script)


def _end_with(child: int) -> None:
    """As vLLM: the parent notices its worker's death some seconds later, exits 0."""
    os.waitpid(child, 0)
    time.sleep(4)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
