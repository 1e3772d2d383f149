"""The tiny model's tokenizer and chat template."""

from __future__ import annotations

import json

import pytest
from glmspark.loopback import folder, model, tokenizer


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> folder.GeneratedModel:
    return model.build_tiny_model(tmp_path_factory.mktemp("kit") / "model")


TEXTS = (
    "Hello, world! What is the time?",
    "größer, ça va, два, Ελλάδα, 电脑, 計算機, حاسوب",
    "emoji \N{ROCKET}, tab\t, newline\n, NUL \x00, e\N{COMBINING ACUTE ACCENT}",
    "[gMASK]<sop><|user|>\nHi<think></think>",
    "",
)


@pytest.mark.parametrize("text", TEXTS)
def test_every_text_comes_back(built: folder.GeneratedModel, text: str) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the engine's tokenizer")
    reader = tokenizers.Tokenizer.from_file(str(built.path / "tokenizer.json"))
    ids = reader.encode(text).ids
    assert reader.decode(ids, skip_special_tokens=False) == text
    assert all(0 <= token < 512 for token in ids)


def test_the_vocabulary_is_512_different_tokens(built: folder.GeneratedModel) -> None:
    tokens = tokenizer.vocabulary()
    assert len(tokens) == len(set(tokens)) == 512
    written = json.loads((built.path / "tokenizer.json").read_text())
    assert written["model"]["vocab"] == {t: i for i, t in enumerate(tokens)}
    for added in written["added_tokens"]:
        assert tokenizer.token_id(added["content"]) == added["id"]
        assert tokens[added["id"]] == added["content"]


def test_training_takes_the_most_frequent_pair_first() -> None:
    assert tokenizer.train("abab ab", 1) == [("a", "b")]
    assert tokenizer.train("ab cd", 1) == [("a", "b")]  # of equals the first
    with pytest.raises(ValueError, match="the text has 2 pairs and 3 are asked"):
        tokenizer.train("abc", 3)


def test_the_chat_template_writes_a_conversation_as_glm_does(
    built: folder.GeneratedModel,
) -> None:
    jinja2 = pytest.importorskip("jinja2", reason="the engine's template language")
    config = json.loads((built.path / "tokenizer_config.json").read_text())
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(config["chat_template"])
    parts = [{"type": "text", "text": "Look"}, {"type": "image"}]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "Yes?"},
        {"role": "tool", "content": "42"},
    ]
    assert template.render(messages=messages, add_generation_prompt=True) == (
        "[gMASK]<sop><|system|>\nBe brief.<|user|>\nLook<|assistant|>\nYes?"
        "<|observation|>\n42<|assistant|>\n"
    )
