"""The EXL3 reference decoder against hand-made vectors and a second decoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_exl3 import format as exl3
from vllm_exl3 import tables
from vllm_exl3.errors import Exl3Error
from vllm_exl3.tables import Codebook

from tests.overlay import exl3_scalar as scalar

NAMES = {Codebook.THREE_INST: "3inst", Codebook.MCG: "mcg", Codebook.MUL1: "mul1"}
RATES = [(k, cb) for cb in Codebook for k in range(1, 9)]
RATES += [(k, Codebook.MUL1) for k in tables.HALF_RATES]


def random_trellis(rows: int, columns: int, bits: float, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, columns, int(16 * bits))
    return torch.randint(-32768, 32768, shape, generator=generator, dtype=torch.int16)


def random_linear(
    rows: int, columns: int, bits: float, codebook: Codebook, seed: int = 0
) -> exl3.Exl3Linear:
    generator = torch.Generator().manual_seed(seed + 1)
    return exl3.Exl3Linear(
        random_trellis(rows // 16, columns // 16, bits, seed),
        (torch.randn(rows, generator=generator) * 0.06).half(),
        torch.randn(columns, generator=generator).half(),
        codebook,
    )


@pytest.mark.parametrize(
    ("codebook", "state", "value"),
    [
        # 0 * m = 0: both halves are 0x3B60 = 0.921875.
        (Codebook.MCG, 0, 1.84375),
        # 0xCBAC1FED & 0x8FFF8FFF ^ 0x3B603B60 = 0xB0CC348D: -0.14990 + 0.28442.
        (Codebook.MCG, 1, 0.13452),
        # 64248484 = 0x03D45AA4: halves 0x38B4 = 0.58789, 0x31C4 = 0.18018.
        (Codebook.THREE_INST, 0, 0.76807),
        # No bytes: 1024 * 0.00676727 - 10.3828125.
        (Codebook.MUL1, 0, -3.4531),
    ],
)
def test_codebook_by_hand(codebook: Codebook, state: int, value: float) -> None:
    assert float(tables.codebook_values(codebook)[state]) == pytest.approx(
        value, rel=1e-3
    )


@pytest.mark.parametrize("codebook", list(Codebook))
def test_every_state_of_a_codebook(codebook: Codebook) -> None:
    name = NAMES[codebook]
    slow = np.array([scalar.codebook_value(s, name) for s in range(65536)], np.float16)
    assert np.array_equal(
        slow.view(np.uint16), tables.codebook_values(codebook).view(np.uint16)
    )


@pytest.mark.parametrize(("bits", "codebook"), RATES)
def test_tiles_against_the_scalar_decoder(bits: float, codebook: Codebook) -> None:
    trellis = random_trellis(2, 3, bits, seed=int(bits * 2))
    dense = exl3.decode_trellis(trellis, codebook)
    for i in range(2):
        for j in range(3):
            tile = scalar.tile_of(trellis[i, j].tolist(), bits, NAMES[codebook])
            block = dense[16 * i : 16 * i + 16, 16 * j : 16 * j + 16]
            assert torch.equal(block, torch.tensor(tile, dtype=torch.float16))


def test_one_nibble_by_hand() -> None:
    """K = 4: the nibble 0x5 of position 9 is in four states, shifted by its age."""
    trellis = torch.zeros(1, 1, 64, dtype=torch.int16)
    # Stream bits 36..39 are the second nibble of word 2; words swap in pairs: 3.
    trellis[0, 0, 3] = 0x0500
    states = exl3.unpack_states(trellis)[0, 0]
    wanted = torch.zeros(256, dtype=torch.int32)
    wanted[9], wanted[10], wanted[11], wanted[12] = 0x5, 0x50, 0x500, 0x5000
    assert torch.equal(states, wanted)


def test_states_wrap_round_the_tile() -> None:
    """The last nibble is in the first three states: the path bites its tail."""
    trellis = torch.zeros(1, 1, 64, dtype=torch.int16)
    trellis[0, 0, 62] = 0x0007
    states = exl3.unpack_states(trellis)[0, 0]
    assert states[[255, 0, 1, 2, 3]].tolist() == [0x7, 0x70, 0x700, 0x7000, 0]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(RATES), st.integers(0, 2**32))
def test_packing_round_trip(rate: tuple[float, Codebook], seed: int) -> None:
    trellis = random_trellis(2, 2, rate[0], seed)
    packed = exl3.pack_states(exl3.unpack_states(trellis), rate[0])
    assert torch.equal(packed, trellis)


def test_packing_refuses_states_that_are_no_path() -> None:
    states = torch.zeros(1, 256, dtype=torch.int32)
    states[0, 7] = 0x8000
    with pytest.raises(Exl3Error, match="no tail-biting path"):
        exl3.pack_states(states, 4)


def test_tile_order_round_trip() -> None:
    matrix = torch.arange(32 * 48, dtype=torch.float32).view(32, 48)
    tiles = exl3.encode_tiles(matrix)
    assert tiles[0, 0, :8].tolist() == [
        matrix[r, c] for r, c in ((0, 0), (1, 0), (8, 0), (9, 0))
    ] + [matrix[r, c] for r, c in ((0, 8), (1, 8), (8, 8), (9, 8))]
    assert sorted(tables.tile_order().tolist()) == list(range(256))


def test_hadamard_is_its_own_inverse_and_keeps_length() -> None:
    x = torch.randn(3, 256)
    assert torch.allclose(exl3.hadamard_columns(exl3.hadamard_columns(x)), x, atol=1e-5)
    turned = exl3.hadamard_rows(x.T.contiguous())
    assert torch.allclose(turned.T, exl3.hadamard_columns(x), atol=1e-5)
    assert torch.allclose(turned.norm(), x.norm())
    unit = torch.zeros(1, 128)
    unit[0, 1] = 1
    signs = exl3.hadamard_columns(unit)[0] * 128**0.5
    assert torch.allclose(signs, torch.tensor([1.0, -1.0] * 64))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32), st.floats(-4, 4), st.floats(-4, 4))
def test_forward_is_linear_and_equals_the_dense_weight(
    seed: int, a: float, b: float
) -> None:
    layer = random_linear(128, 256, 4, Codebook.MCG, seed)
    x, y = torch.randn(2, 128), torch.randn(2, 128)
    mixed = layer.forward(a * x + b * y)
    parts = a * layer.forward(x) + b * layer.forward(y)
    scale = 1 + parts.abs().max()
    assert torch.allclose(mixed / scale, parts / scale, atol=1e-5)
    assert torch.allclose(layer.forward(x), x @ layer.dense(), atol=1e-3)


def test_old_sign_bitfields() -> None:
    signs = exl3.unpack_signs(torch.tensor([0b101, -32768], dtype=torch.int16))
    assert signs.dtype == torch.float16
    assert signs.tolist() == [-1, 1, -1] + [1] * 28 + [-1]
    with pytest.raises(Exl3Error, match=r"bitfield is torch\.int32"):
        exl3.unpack_signs(torch.zeros(2, dtype=torch.int32))


def test_a_shard_decodes_to_the_slice_of_the_whole() -> None:
    layer = random_linear(256, 512, 4, Codebook.MCG)
    whole = layer.dense()
    columns = exl3.Exl3Linear(
        layer.trellis[:, 16:], layer.suh, layer.svh[256:], layer.codebook
    )
    rows = exl3.Exl3Linear(
        layer.trellis[8:], layer.suh[128:], layer.svh, layer.codebook
    )
    assert torch.allclose(columns.dense(), whole[:, 256:], atol=1e-6)
    assert torch.allclose(rows.dense(), whole[128:], atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trellis": torch.zeros(8, 8, 64, dtype=torch.int32)}, "trellis is torch.int"),
        ({"trellis": torch.zeros(8, 8, 24, dtype=torch.int16)}, "mul1 codebook only"),
        ({"trellis": torch.zeros(8, 8, 144, dtype=torch.int16)}, "no EXL3 rate"),
        ({"suh": torch.zeros(112, dtype=torch.float16)}, r"needed float16 \[128\]"),
        ({"svh": torch.zeros(128)}, "svh is torch.float32"),
        (
            {
                "trellis": torch.zeros(4, 8, 64, dtype=torch.int16),
                "suh": torch.zeros(64, dtype=torch.float16),
            },
            "multiple of 128",
        ),
    ],
)
def test_bad_tensors_are_named(change: dict[str, Any], message: str) -> None:
    parts: dict[str, Any] = {
        "trellis": torch.zeros(8, 8, 64, dtype=torch.int16),
        "suh": torch.zeros(128, dtype=torch.float16),
        "svh": torch.zeros(128, dtype=torch.float16),
        "codebook": Codebook.MCG,
    }
    with pytest.raises(Exl3Error, match=message):
        exl3.Exl3Linear(**(parts | change))


def test_unknown_names_and_rates() -> None:
    with pytest.raises(Exl3Error, match="'4bit' is unknown; known: 3inst, mcg, mul1"):
        Codebook.from_name("4bit")
    with pytest.raises(Exl3Error, match=r"K = 2\.25 is no EXL3 rate"):
        tables.check_rate(2.25, Codebook.MUL1)
    assert Codebook.MCG.marker == -877912083
    assert Codebook.MUL1.marker == -2082680531
    assert Codebook.THREE_INST.marker is None
