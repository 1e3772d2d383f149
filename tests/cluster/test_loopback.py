"""The real thing: two vLLM ranks on this machine, asked, broken, and gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from glmspark import processes

from tests.cluster.kits import TestKit, wait_for

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
pytest.importorskip("vllm.version", reason="the engine is not installed here")


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestKit]:
    """A running loopback kit with a key; the tests of this file share it in order."""
    root: Path = tmp_path_factory.mktemp("loopback")
    settings = {"paths.cache": f'"{root / "cache"}"', "auth.mode": '"key"'}
    settings["timeouts.stop_s"] = "5"
    made = TestKit(root, engine="vllm-cpu", settings=settings)
    done = made.run("start", limit_s=500)
    assert done.code == 0, done.err
    yield made
    made.close()


@pytest.fixture
def key(kit: TestKit) -> str:
    return (kit.state_folder / "key").read_text().strip()


def test_it_is_two_real_ranks(kit: TestKit) -> None:
    titles = {(o.rank, o.title.split()[0]) for o in kit.members()}
    assert {(0, "VLLM::EngineCore"), (0, "VLLM::Worker_TP0")} <= titles
    assert (1, "VLLM::Worker_TP1") in titles
    assert kit.state().private_shm
    status = json.loads(kit.run("status", "--json").out)
    assert status["serves"] and [r["rank"] for r in status["ranks"]] == [0, 1]
    assert kit.run("start").out.startswith("GLM-5.3-Flash-EXL3 (loopback) is already")


def test_chat(kit: TestKit, key: str) -> None:
    status, text = kit.chat(key=key)
    answer = json.loads(text)
    assert status == 200 and answer["usage"]["completion_tokens"] > 0
    assert "tp2" in answer["system_fingerprint"]
    assert kit.chat(key=key)[1] != "" and answer["model"] == "GLM-5.3-Flash-EXL3"


def test_the_same_question_has_the_same_answer(kit: TestKit, key: str) -> None:
    texts = {
        json.loads(kit.chat("The weather", key=key)[1])["choices"][0]["message"][
            "content"
        ]
        for _ in range(3)
    }
    assert len(texts) == 1


def test_streaming(kit: TestKit, key: str) -> None:
    status, text = kit.chat(key=key, stream=True)
    events = [line for line in text.splitlines() if line.startswith("data: ")]
    assert status == 200 and events[-1] == "data: [DONE]" and len(events) > 3


def test_models(kit: TestKit, key: str) -> None:
    status, text = kit.ask("/v1/models", key=key)
    assert status == 200
    assert [one["id"] for one in json.loads(text)["data"]] == ["GLM-5.3-Flash-EXL3"]


def test_bad_requests(kit: TestKit, key: str) -> None:
    assert kit.chat(key=key, model="other")[0] == 404
    status, text = kit.chat("word " * 3000, key=key)
    assert status == 400 and "2048" in text
    assert kit.chat()[0] == 401
    assert kit.chat(key="wrong")[0] == 401


def test_the_key_stands_nowhere(kit: TestKit, key: str) -> None:
    seen = [processes.command_line(pid) for pid in processes.all_pids()]
    seen += [file.read_text(errors="replace") for file in kit.boots()[-1].iterdir()]
    assert not any(key in text for text in seen)


def test_a_killed_worker_ends_the_kit(kit: TestKit) -> None:
    # vLLM's own /health would stay 200 until somebody asks.
    who = kit.rank(1, engine=True)
    processes.send(who, processes.signal.SIGKILL)
    wait_for(lambda: kit.state().phase in {"ending", "failed"}, 10)
    wait_for(lambda: kit.state().phase == "failed", 30)
    failure = kit.state().failure
    assert failure is not None and failure.rank == 1
    assert "rank 1 lost its process VLLM::Worker_TP1" in failure.message
    kit.assert_nothing_left()


def test_it_starts_again_and_stops(kit: TestKit) -> None:
    done = kit.run("start", limit_s=500)
    assert done.code == 0, done.err
    assert kit.run("stop").out == "test: stopped\n"
    kit.assert_nothing_left()
