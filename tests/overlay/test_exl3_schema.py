"""What config.json may say, and the parallel layouts that work."""

from __future__ import annotations

from typing import Any

import pytest
from vllm_exl3 import layout, schema
from vllm_exl3.errors import Exl3ConfigError, Exl3Error
from vllm_exl3.schema import Rate
from vllm_exl3.tables import Codebook

REAL = {
    "quant_method": "exl3",
    "bits": 4,
    "codebook": "mcg",
    "scope": "glm53_routed_experts_only",
    "tensor_storage": {"model.layers.3": "a ledger of 37 MB"},
}
MCG4 = Rate(4, Codebook.MCG)


def test_the_real_configuration() -> None:
    spec = schema.parse(REAL)
    assert spec.experts == MCG4
    assert spec.experts.words == 64
    assert spec.dense == {}
    assert "ledger" not in repr(spec)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": None}, r"quantization_config\.bits is None, needed a number"),
        ({"bits": "4"}, r"quantization_config\.bits is '4'"),
        ({"bits": True}, r"quantization_config\.bits is True"),
        ({"bits": 9}, r"K = 9 is no EXL3 rate"),
        ({"bits": 0}, r"K = 0 is no EXL3 rate"),
        ({"bits": 2.5}, r"K = 2\.5 exists for the mul1 codebook only"),
        ({"bits": float("nan")}, r"K = nan is no EXL3 rate"),
        ({"codebook": "nf4"}, r"codebook 'nf4' is unknown"),
        ({"codebook": None}, r"quantization_config\.codebook is None"),
        ({"quant_method": "gptq"}, r"quant_method is 'gptq'"),
        ({"non_routed_exl3": [1]}, r"non_routed_exl3 is \[1\]"),
        ({"non_routed_exl3": {"layers": 7}}, r"non_routed_exl3\.layers is 7"),
        ({"non_routed_exl3": {"layers": {"a": 3}}}, r"each with an object or null"),
        (
            {"non_routed_exl3": {"layers": {"a.o_proj": {"bits": 12}}}},
            r"layers\[a\.o_proj\]\..*K = 12",
        ),
    ],
)
def test_bad_fields_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(Exl3ConfigError, match=message) as caught:
        schema.parse(REAL | change)
    assert caught.value.exit_code == 3


def test_dense_layers_and_their_rates() -> None:
    layers = {"m.q_proj": {"bits": 5}, "m.k_proj": {"bits": 5}, "m.o_proj": None}
    spec = schema.parse(REAL | {"non_routed_exl3": {"layers": layers}})
    packed = {"qk_proj": ["q_proj", "k_proj"], "qkv_proj": ["q_proj", "v_proj"]}
    assert spec.dense_rate("m.o_proj", packed) == MCG4
    assert spec.dense_rate("m.qk_proj", packed) == Rate(5, Codebook.MCG)
    assert spec.dense_rate("m.gate", packed) is None
    with pytest.raises(Exl3ConfigError, match="not EXL3 at one rate"):
        spec.dense_rate("m.qkv_proj", packed)
    renamed = spec.renamed(lambda name: f"language_model.{name}")
    assert renamed.dense_rate("language_model.m.o_proj", packed) == MCG4
    listed = schema.parse(REAL | {"non_routed_exl3": {"layers": ["m.o_proj"]}})
    assert listed.dense == {"m.o_proj": MCG4}


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_sizes_that_keep_hadamard_blocks_whole(size: int) -> None:
    layout.check_split("width", 2048, size)


def test_a_cut_block_is_refused_with_the_sizes_that_work() -> None:
    with pytest.raises(Exl3ConfigError) as caught:
        layout.check_split("the experts' width", 2048, 3, experts=288)
    text = str(caught.value)
    assert "2048 elements cannot be split over 3 ranks" in text
    assert "tensor-parallel size of 1, 2, 4, 8, 16" in text
    assert "keep 3 with --enable-expert-parallel" in text
    with pytest.raises(Exl3ConfigError) as caught:
        layout.check_split("the experts' width", 2048, 5, experts=288)
    assert "--enable-expert-parallel" not in str(caught.value)
    with pytest.raises(Exl3ConfigError, match="needed a multiple of 128"):
        layout.check_split("the experts' width", 2000, 1)


def test_a_tensor_must_be_what_the_layout_says() -> None:
    shape = layout.LinearLayout(4096, 2048, MCG4, "columns")
    assert shape.whole("trellis") == (256, 128, 64)
    assert [shape.cut_dimension(f) for f in layout.DTYPES] == [1, None, 0, None]
    down = layout.LinearLayout(2048, 4096, MCG4, "rows")
    assert [down.cut_dimension(f) for f in layout.DTYPES] == [0, 0, None, None]
    layout.check_tensor("t", "marker", "int32", (1,), ())
    with pytest.raises(Exl3Error, match=r"t has shape \[4095\], needed \[4096\]"):
        layout.check_tensor("t", "suh", "float16", (4095,), (4096,))
    with pytest.raises(Exl3Error, match="t is bfloat16, needed float16"):
        layout.check_tensor("t", "suh", "bfloat16", (4096,), (4096,))
    with pytest.raises(Exl3Error, match=r"t holds -2082680531, needed -877912083"):
        layout.check_marker("t", -2082680531, MCG4)
