"""The trellis quantizer: valid paths, and errors near the rate-distortion bound."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from vllm_exl3 import format as exl3
from vllm_exl3 import quantize, quantizer, stfile
from vllm_exl3.errors import Exl3Error
from vllm_exl3.quantizer import Trellis
from vllm_exl3.schema import Rate, parse
from vllm_exl3.tables import Codebook

CPU = torch.device("cpu")
TILES = 4


def tile_error(rate: Rate, targets: torch.Tensor) -> float:
    trellis = Trellis.of(rate, CPU)
    gain = quantizer.GAIN_COARSE if rate.bits <= 2 else quantizer.GAIN_FINE
    scale = trellis.spread * gain
    states = quantizer.quantize_tiles(targets * scale, trellis)
    exl3.pack_states(states, rate.bits)  # raises unless it is a tail-biting path
    found = trellis.values[states.long()] / scale
    fit = (found * targets).sum() / found.square().sum()
    return float((targets - fit * found).square().mean())


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The search's steps are too short to share between threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def gaussian() -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(TILES, 256, generator=generator)


@pytest.mark.parametrize(
    ("bits", "codebook", "bound"),
    [
        # Shannon's bound for a Gaussian is 4^-K; a 16-bit trellis comes within about
        # 1.1 of it at K = 2 (QTIP, arXiv 2406.11235, table 1), the codebooks' grain
        # shows from K = 4 on. At K = 4 the bound asked for is 0.006 = 1.54 * 4^-4.
        (2, Codebook.MCG, 1.15),
        (3, Codebook.MCG, 1.3),
        (4, Codebook.MCG, 1.54),
        (4, Codebook.THREE_INST, 1.54),
        (4, Codebook.MUL1, 1.54),
        (2.5, Codebook.MUL1, 1.25),
    ],
)
def test_error_is_near_the_bound(
    gaussian: torch.Tensor, bits: float, codebook: Codebook, bound: float
) -> None:
    error = tile_error(Rate(bits, codebook), gaussian)
    assert 0.95 <= error * 4**bits <= bound


def test_error_falls_with_every_bit(gaussian: torch.Tensor) -> None:
    errors = [tile_error(Rate(k, Codebook.MCG), gaussian[:1]) for k in (1, 2, 3, 4, 6)]
    assert all(b < a / 2.5 for a, b in itertools.pairwise(errors))


def test_a_decodable_tile_is_found_again() -> None:
    """Values that are a path of the trellis cost nothing, the ring's joint included."""
    rate = Rate(4, Codebook.MCG)
    trellis = Trellis.of(rate, CPU)
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(
        -32768, 32768, (2, 64), generator=generator, dtype=torch.int16
    )
    states = exl3.unpack_states(words)
    found = quantizer.quantize_tiles(trellis.values[states.long()], trellis)
    assert torch.equal(found, states)


def test_a_checkpoint_of_real_weights(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text('{"model_type": "glm4_moe"}')
    (source / "tokenizer.json").write_text("{}")
    rng = np.random.default_rng(0)
    # A few large columns and rows, as real weights have: rotations spread them.
    weight = rng.standard_normal((128, 128), dtype=np.float32)
    weight[3] *= 20
    weight[:, 5] *= 8
    weight[7] = 0  # an output column, since checkpoints hold [out, in]
    name = "model.layers.1.mlp.experts.0.up_proj"
    content = {f"{name}.weight": stfile.Raw.bf16(weight)}
    content["model.norm.weight"] = stfile.Raw.bf16(np.ones(128, np.float32))
    stfile.write(source / "model.safetensors", content)
    target = tmp_path / "target"
    arguments = [str(source), str(target), "--bits", "2", "--codebook", "mcg"]
    assert quantize.main(arguments) == 0
    found = dict(stfile.tensors(target))
    parts = [
        torch.from_numpy(np.array(found[f"{name}.{f}"].array()))
        for f in ("trellis", "suh", "svh")
    ]
    layer = exl3.Exl3Linear(*parts, Codebook.MCG)
    assert int(found[f"{name}.mcg"].array()) == Codebook.MCG.marker
    assert found["model.norm.weight"].dtype == "BF16"
    assert (target / "tokenizer.json").exists()
    dense = torch.from_numpy(weight.T.copy())
    assert quantizer.relative_error(layer, dense) < 0.1
    assert layer.dense()[:, 7].abs().max() == 0
    config = json.loads((target / "config.json").read_text())
    assert parse(config["quantization_config"]).experts == Rate(2, Codebook.MCG)


def test_bad_requests_are_named() -> None:
    with pytest.raises(Exl3Error, match="input has 100 elements"):
        quantizer.quantize(torch.zeros(100, 128), Rate(4, Codebook.MCG))
