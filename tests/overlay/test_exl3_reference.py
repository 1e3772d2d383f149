"""The routed sum in plain torch: what every kernel is held to, at its edges."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor
from vllm_exl3 import reference, upstream

REPO = Path(__file__).parents[2]
EXPERTS, HIDDEN, WIDTH, TOP_K = 4, 8, 6, 2


@pytest.fixture
def weights() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    w13 = torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, generator=generator)
    return w13, torch.randn(EXPERTS, HIDDEN, WIDTH, generator=generator)


def one_by_one(
    x: Tensor, gains: Tensor, ids: Tensor, weights: tuple[Tensor, Tensor], limit: float
) -> Tensor:
    """The same sum, a token and a choice at a time, in float64."""
    w13, w2 = weights
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token, row in enumerate(ids.tolist()):
        for slot, expert in enumerate(row):
            if not 0 <= expert < EXPERTS:
                continue
            both = w13[expert].double() @ x[token].double()
            gate, up = both[:WIDTH], both[WIDTH:]
            if limit:
                gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            act = gate / (1 + torch.exp(-gate)) * up
            out[token] += gains[token, slot].double() * (w2[expert].double() @ act)
    return out.float()


@pytest.mark.parametrize(
    "ids",
    [
        [[0, 1], [2, 3], [3, 0]],
        [[2, 2]] * 5,  # every choice of every token: one expert
        [[-1, 7], [4, 1]],  # experts of other ranks
        [[-1, -1]],
    ],
)
@pytest.mark.parametrize("limit", [0.0, 0.5])
def test_every_choice_is_added_once(
    weights: tuple[Tensor, Tensor], ids: list[list[int]], limit: float
) -> None:
    chosen = torch.tensor(ids)
    x, gains = torch.randn(len(ids), HIDDEN), torch.rand(len(ids), TOP_K)
    out = reference.routed_experts(x, gains, chosen, *weights, limit)
    wanted = one_by_one(x, gains, chosen, weights, limit)
    assert torch.allclose(out, wanted, atol=1e-5)


def test_no_tokens_are_no_rows(weights: tuple[Tensor, Tensor]) -> None:
    empty = torch.zeros(0, TOP_K)
    out = reference.routed_experts(
        torch.zeros(0, HIDDEN, dtype=torch.bfloat16), empty, empty.long(), *weights
    )
    assert out.shape == (0, HIDDEN)
    assert out.dtype == torch.bfloat16


def test_the_nix_package_pins_the_same_release() -> None:
    text = (REPO / "pkgs/exllamav3/package.nix").read_text()
    digest = base64.b64encode(bytes.fromhex(upstream.pin()["sha256"])).decode()
    assert f'hash = "sha256-{digest}"' in text
    versions = set(re.findall(r'version = "(\d[\d.]*)"', text))
    assert versions == {upstream.pin()["version"]}
