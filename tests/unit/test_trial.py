"""What is sent before the announcement, and the drafter's folder for three ranks."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from glmspark import health, paddeddraft, trial
from glmspark.boot import Api, Trial
from glmspark.health import CHAT, Answer
from glmspark.serving.warmup import WarmUp

API = Api("127.0.0.1", 1, "m", "", "")


def test_prompts_have_their_length_and_share_no_beginning() -> None:
    shape = asdict(WarmUp(120, 16, parallel=4))
    sent = [body for _, body in trial.requests("m", shape, 3)]
    sent += [body for _, body in trial.requests("m", shape, 4)]
    assert {len(body["prompt"]) for body in sent} == {120}
    assert len({body["prompt"][0] for body in sent}) == len(sent)
    assert all(body["ignore_eos"] and body["max_tokens"] == 16 for body in sent)


def test_samplers_reach_the_request() -> None:
    shape = asdict(WarmUp(24, 8, temperature=1.0, top_p=0.95, top_k=40))
    ((path, body),) = trial.requests("m", shape, 1)
    assert path == "/v1/completions"
    assert (body["temperature"], body["top_p"], body["top_k"]) == (1.0, 0.95, 40)
    ((_, plain),) = trial.requests("m", asdict(WarmUp(24, 8)), 1)
    assert plain["top_k"] == -1  # vLLM's word for none


def test_thinking_is_a_chat() -> None:
    ((path, body),) = trial.requests("m", asdict(WarmUp(24, 8, thinking=True)), 1)
    assert path == CHAT and body["chat_template_kwargs"]["enable_thinking"]


def test_shapes_come_first_and_a_bad_one_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def ask(_api: Api, path: str, **_more: object) -> Answer:
        asked.append(path)
        return Answer(500, b"no kernel") if len(asked) == 3 else Answer(200, b"{}")

    monkeypatch.setattr(health, "ask", ask)
    shapes = tuple(asdict(WarmUp(n, 4)) for n in (1, 24, 56, 120))
    notes: list[str] = []
    fault = trial.run(API, "", Trial(shapes, judges=True), 10, notes.append)
    assert fault == "warm-up with 56 tokens: HTTP 500: no kernel"
    assert asked == ["/v1/completions"] * 3 and len(notes) == 3


def test_a_trial_that_judges_nothing_asks_one_completion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def ask(_api: Api, path: str, **_more: object) -> Answer:
        asked.append(path)
        return Answer(0, error="refused")

    monkeypatch.setattr(health, "ask", ask)
    assert "refused" in trial.run(API, "", Trial(), 10, lambda _line: None)
    assert asked == [CHAT]


@pytest.fixture
def view(tmp_path: Path) -> Path:
    folder = tmp_path / "view"
    folder.mkdir()
    (folder / "config.json").write_text('{"num_attention_heads": 32, "x": 1}')
    blob = tmp_path / "blob"
    blob.write_text("weights")
    (folder / "model.safetensors").symlink_to(blob)
    return folder


CHANGES = {"num_attention_heads": 36}


def make(view: Path) -> Path:
    target = view.parent / "cache" / "padded"
    found = paddeddraft.make(view=str(view), folder=str(target), changes=CHANGES)
    assert found == str(target)
    return target


def test_the_padded_folder_is_the_view_with_another_config(view: Path) -> None:
    made = make(view)
    config = json.loads((made / "config.json").read_text())
    assert config == {"num_attention_heads": 36, "x": 1}
    weights = made / "model.safetensors"
    assert weights.readlink() == (view.parent / "blob").resolve()
    assert sorted(p.name for p in made.parent.iterdir()) == ["padded"]


def test_a_right_folder_is_left_alone_and_a_wrong_one_made_anew(view: Path) -> None:
    made = make(view)
    before = made.stat().st_ino
    assert make(view).stat().st_ino == before
    other = view.parent / "other"
    other.write_text("newer")
    (view / "model.safetensors").unlink()
    (view / "model.safetensors").symlink_to(other)
    assert (make(view) / "model.safetensors").read_text() == "newer"
    (made / "config.json").write_text("{}")
    assert json.loads((make(view) / "config.json").read_text())["x"] == 1


def test_without_a_view_there_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"config\.json"):
        paddeddraft.make(view=str(tmp_path), folder=str(tmp_path / "f"), changes={})
    assert not (tmp_path / "f").exists()
