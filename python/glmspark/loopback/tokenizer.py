"""A byte-level BPE tokenizer of exactly 512 tokens, trained here on a few sentences.

Every byte is a token, so every text can be written; the merges only make some common
words short. Nothing is read but this file.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from functools import cache
from typing import Any

VOCABULARY = 512
END_OF_TEXT = "<|endoftext|>"
USER = "<|user|>"
# The names that GLM's own templates use; ids follow the other tokens.
SPECIAL = (
    END_OF_TEXT,
    "[gMASK]",
    "<sop>",
    "<|system|>",
    USER,
    "<|assistant|>",
    "<|observation|>",
    "<think>",
    "</think>",
)
MERGES = VOCABULARY - 256 - len(SPECIAL)

SENTENCES = """
Two small computers share one large model: each holds half of every layer.
The first one takes the question, the second one helps with every token of the answer.
A cable joins them, and after each layer they add their halves together.
This little model was never trained: its weights are random, so its words mean nothing.
It is here to show that the whole path works, from the request to the last byte.
Hello, world! What is the time? It is one, two, three, four, five, six or seven.
Start, stop, restart, status and logs are all that you need to know to run it.
Zwei kleine Rechner teilen sich ein großes Modell und prüfen jede Antwort.
Deux petits ordinateurs partagent un grand modèle, et ça marche très bien.
Два маленьких компьютера делят одну большую модель.
Δύο μικροί υπολογιστές μοιράζονται ένα μεγάλο μοντέλο.
两台小电脑共用一个大模型。
二台の小さな計算機が一つの大きなモデルを分け合う。
حاسوبان صغيران يتقاسمان نموذجا كبيرا.
"""

# As GLM writes a conversation. Content may be text or a list of parts; the parts that
# are not text are left out.
CHAT_TEMPLATE = """[gMASK]<sop>
{%- for message in messages %}
{%- set role = 'observation' if message.role == 'tool' else message.role %}
{{- '<|' ~ role ~ '|>\\n' }}
{%- if message.content is string %}{{- message.content }}
{%- elif message.content %}
{%- for part in message.content if part.type == 'text' %}{{- part.text }}{% endfor %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{% endif %}"""


@cache
def byte_symbols() -> tuple[str, ...]:
    """The visible character that stands for each byte in a byte-level vocabulary.

    Printable Latin-1 characters stand for themselves, the others get the characters
    from U+0100 on in their order. Source: the byte-level scheme of GPT-2's tokenizer.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = itertools.count(0x100)
    return tuple(chr(b) if b in printable else chr(next(spare)) for b in range(256))


def train(text: str, merges: int) -> list[tuple[str, str]]:
    """The ``merges`` most frequent pairs, each joined before the next is counted.

    Of pairs that are equally frequent the first in code point order is taken, so that
    the result is the same everywhere. Raises ValueError where the text is too short.
    """
    symbols = byte_symbols()
    words = Counter(
        tuple(symbols[byte] for byte in word.encode())
        for word in re.findall(r" ?\w+| ?[^\w\s]+|\s", text)
    )
    result: list[tuple[str, str]] = []
    while len(result) < merges:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += count
        if not pairs:
            raise ValueError(f"the text has {len(result)} pairs and {merges} are asked")
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        result.append(best)
        words = Counter({_join(word, best): count for word, count in words.items()})
    return result


def _join(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    joined: list[str] = []
    position = 0
    while position < len(word):
        if word[position : position + 2] == pair:
            joined.append(pair[0] + pair[1])
            position += 2
        else:
            joined.append(word[position])
            position += 1
    return tuple(joined)


@cache
def vocabulary() -> tuple[str, ...]:
    """All tokens by id: the 256 bytes, the merges, the special ones."""
    merged = [left + right for left, right in train(SENTENCES, MERGES)]
    return (*byte_symbols(), *merged, *SPECIAL)


def is_plain(token: str) -> bool:
    """Whether the token is printable ASCII, and so can be shown by itself."""
    symbols = byte_symbols()
    plain = {symbols[byte] for byte in range(0x20, 0x7F)}
    return token not in SPECIAL and set(token) <= plain


def tokenizer_json() -> dict[str, Any]:
    """Content of ``tokenizer.json``."""
    tokens = vocabulary()
    first_special = VOCABULARY - len(SPECIAL)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added_token(first_special + index, token)
            for index, token in enumerate(SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level | {"use_regex": True},
        "post_processor": None,
        "decoder": byte_level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [list(pair) for pair in train(SENTENCES, MERGES)],
        },
    }


def _added_token(index: int, token: str) -> dict[str, Any]:
    return {
        "id": index,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        # The marks around thinking are shown, as GLM shows them.
        "special": token not in {"<think>", "</think>"},
    }


def tokenizer_config(max_tokens: int) -> dict[str, Any]:
    """Content of ``tokenizer_config.json``; ``max_tokens`` is the longest context."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "model_max_length": max_tokens,
        "padding_side": "left",
    }


def token_id(token: str) -> int:
    """The id of a special token."""
    return VOCABULARY - len(SPECIAL) + SPECIAL.index(token)
