"""The tiny checkpoint is the real one's, by layer kind: names, shapes and dtypes."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from glmspark.serving.census import Tensor, checkpoint_tensors
from glmspark.serving.model import model_shape, shipped_config
from vllm_exl3 import loopback, stfile

from tests.overlay.glm5next import checkpoint

BYTES = {"BF16": 2, "F16": 2, "I16": 2, "F32": 4, "I32": 4}
# The census writes these together: the names of the file, by its name for them.
TOGETHER = {
    "norms": ("input_layernorm", "post_attention_layernorm"),
    "indexer.k_norm": ("indexer.k_norm", "indexer.k_norm.bias"),
    "the five norms": (
        "input_layernorm",
        "post_attention_layernorm",
        "enorm",
        "hnorm",
        "shared_head.norm",
    ),
}
Row = tuple[str, tuple[int, ...], int]


@pytest.fixture(scope="module")
def exl3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("tiny")
    source = checkpoint.make_bf16(base / "source")
    loopback.make(source, base / "exl3")
    return base / "exl3"


def plain(name: str) -> str:
    """A file's name as the census has it: no layer, no expert, no ``.weight``."""
    name = re.sub(r"^model\.(layers\.\d+\.)?(self_attn\.)?", "", name)
    return re.sub(r"\.experts\.\d+\.", ".experts.*.", name).removesuffix(".weight")


def rows_of_file(folder: Path) -> Counter[Row]:
    found = Counter[Row]()
    for name, raw in stfile.tensors(folder):
        shape = raw.shape or (1,)  # the marker is a scalar in the file
        found[plain(name), shape, BYTES[raw.dtype]] += 1
    return found


def rows_of_census(tensors: list[Tensor]) -> Counter[Row]:
    found = Counter[Row]()
    for tensor in tensors:
        names = TOGETHER.get(tensor.name, (tensor.name,))
        for name in names:
            found[name, tensor.shape, tensor.stored] += tensor.count // len(names)
    return found


def tiny_config() -> dict[str, Any]:
    config = checkpoint.config() | {"quantization_config": {"bits": 4}}
    return config | {"vision_config": None}  # Glm5NextForCausalLM holds no tower


def test_every_tensor_is_the_census_of_its_configuration(exl3: Path) -> None:
    """The census that counts the real file to the byte, at the tiny sizes."""
    expected = checkpoint_tensors(model_shape(tiny_config()))
    assert rows_of_file(exl3) == rows_of_census(expected)


def by_kind(names: list[str], text: dict[str, Any]) -> dict[str, set[str]]:
    """Names of the file by kind of layer, numbers of layers and experts left out."""
    found: dict[str, set[str]] = {}
    for name in names:
        match = re.match(r"model\.layers\.(\d+)\.", name)
        if match is None:
            found.setdefault("top", set()).add(name)
            continue
        index = int(match[1])
        kind = "draft"
        if index < text["num_hidden_layers"]:
            kind = f"{text['layer_types'][index]} {text['mlp_layer_types'][index]}"
        rest = re.sub(r"\.experts\.\d+\.", ".experts.*.", name[match.end() :])
        found.setdefault(kind, set()).add(rest)
    return found


def test_names_by_layer_kind_are_those_of_the_real_sizes(exl3: Path) -> None:
    """At full size the same generator's names make up the published count."""
    real = shipped_config("glm-5.3-flash")
    native = list(checkpoint.shapes(real))
    routed = [name for name in native if loopback.EXPERT.fullmatch(name)]
    # 1,618 native tensors, 347 of them the vision tower's; four fields an expert's.
    assert len(native) - len(routed) == 1618 - 347
    assert 4 * len(routed) == 148_608
    fields = ("trellis", "suh", "svh", "mcg")
    packed = [n.removesuffix("weight") + f for n in routed for f in fields]
    expected = by_kind(sorted({*native} - {*routed}) + packed, real["text_config"])
    tiny = [name for name, _ in stfile.tensors(exl3)]
    assert by_kind(tiny, checkpoint.config()["text_config"]) == expected


def test_the_configuration_has_every_field_of_the_real_one() -> None:
    real, tiny = shipped_config("glm-5.3-flash"), checkpoint.config()
    assert set(real) - set(tiny) == {"quantization_config"}  # loopback.make's
    for part in ("text_config", "vision_config"):
        assert set(tiny[part]) == set(real[part])
    linear = "linear_attn_config"
    assert set(tiny["text_config"][linear]) == set(real["text_config"][linear])


def test_the_comparison_can_fail(exl3: Path) -> None:
    config = tiny_config()
    text = config["text_config"]
    text["index_head_dim"] += 1
    other = rows_of_census(checkpoint_tensors(model_shape(config)))
    different = {name for name, _, _ in other - rows_of_file(exl3)}
    assert different == {
        "indexer.wq_b",
        "indexer.wk",
        "indexer.k_norm",
        "indexer.k_norm.bias",
        "indexer.index_kpool_compress_ape",
        "indexer.index_kpool_compress_gate",
    }
