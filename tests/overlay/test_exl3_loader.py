"""The loader: shards that add up, and a named error for every bad checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from vllm_exl3 import format as exl3
from vllm_exl3 import layout, loader, loopback, reference, stfile
from vllm_exl3.errors import Exl3Error
from vllm_exl3.schema import Rate
from vllm_exl3.tables import Codebook

from tests.overlay import exl3_model

MCG4 = Rate(4, Codebook.MCG)
HIDDEN, WIDTH, EXPERTS = 256, 512, 2
Fields = dict[str, torch.Tensor]


def torch_of(raw: stfile.Raw) -> torch.Tensor:
    return torch.from_numpy(np.array(raw.array()))


def expert_fields(expert: int) -> dict[tuple[str, str], torch.Tensor]:
    found = {}
    for shard, projection in layout.PROJECTIONS.items():
        shape = (WIDTH, HIDDEN) if shard == "w2" else (HIDDEN, WIDTH)
        packed, _ = loopback.random_layer(f"{expert}.{projection}", shape, MCG4, 0)
        for name, raw in packed.items():
            found[shard, name.rpartition(".")[2]] = torch_of(raw)
    return found


def make_loader(
    split: layout.Split, local_id: Callable[[int], int] = int
) -> loader.ExpertLoader:
    local = [e for e in range(EXPERTS) if local_id(e) >= 0]
    needed = loader.needed_keys(local, layout.PROJECTIONS.values(), MCG4)
    ledger = loader.Ledger("model.layers.7.mlp.experts", split.rank, needed)
    return loader.ExpertLoader(ledger, MCG4, HIDDEN, WIDTH, split, local_id)


def load_all(split: layout.Split) -> list[list[exl3.Exl3Linear]]:
    """Every expert's (gate, up, down) as one rank holds them."""
    experts = make_loader(split)
    share = WIDTH // split.size
    held = []
    for expert in range(EXPERTS):
        layers = {}
        for (shard, name), tensor in expert_fields(expert).items():
            key = "marker" if name == "mcg" else name
            rows, columns = (share, HIDDEN) if shard == "w2" else (HIDDEN, share)
            shapes = {
                "trellis": (rows // 16, columns // 16, 64),
                "suh": (rows,),
                "svh": (columns,),
                "marker": (1,),
            }
            pair = () if shard == "w2" else (2,)
            param = torch.zeros(EXPERTS, *pair, *shapes[key], dtype=tensor.dtype)
            assert experts.load(param, tensor, key, shard, expert)
            place = (
                param[expert] if shard == "w2" else param[expert, int(shard == "w3")]
            )
            layers[shard, key] = place
        held.append(
            [
                exl3.Exl3Linear(
                    *(layers[s, k] for k in ("trellis", "suh", "svh")), Codebook.MCG
                )
                for s in ("w1", "w3", "w2")
            ]
        )
    experts.ledger.check_complete()
    return held


def routed(held: list[list[exl3.Exl3Linear]], x: torch.Tensor) -> torch.Tensor:
    w13, w2 = reference.dense_experts(held, torch.float32)
    ids = torch.tensor([[0, 1]]).expand(len(x), 2)
    weights = torch.tensor([[0.7, 0.3]]).expand(len(x), 2)
    return reference.routed_experts(x, weights, ids, w13, w2)


@pytest.mark.parametrize("size", [2, 4])
def test_the_ranks_parts_add_up(size: int) -> None:
    x = torch.randn(5, HIDDEN)
    whole = routed(load_all(layout.Split()), x)
    parts = [routed(load_all(layout.Split(r, size)), x) for r in range(size)]
    assert torch.allclose(sum(parts), whole, atol=1e-5)
    assert whole.abs().mean() > 0.05


def test_numpy_and_torch_decode_alike() -> None:
    for rate in (MCG4, Rate(3, Codebook.THREE_INST), Rate(2.5, Codebook.MUL1)):
        packed, twin = loopback.random_layer("layer", (128, 256), rate, 3)
        parts = [torch_of(packed[f"layer.{n}"]) for n in ("trellis", "suh", "svh")]
        inner = exl3.decode_trellis(parts[0], rate.codebook)
        slow = loopback.decode(np.array(packed["layer.trellis"].array()), rate)
        assert np.array_equal(inner.float().numpy(), slow)
        dense = exl3.Exl3Linear(*parts, rate.codebook).dense()
        assert torch.allclose(dense.T, torch_of(twin), rtol=2**-8, atol=1e-6)
        assert dense.std() == pytest.approx(128**-0.5, rel=0.05)


def load_one(
    experts: loader.ExpertLoader, shard: str, name: str, tensor: torch.Tensor
) -> bool:
    key = "marker" if name == "mcg" else name
    wide = torch.zeros(EXPERTS, *(() if shard == "w2" else (2,)), *tensor.shape)
    if key == "marker":
        wide = wide[..., None]
    return experts.load(wide.to(tensor.dtype), tensor, key, shard, 1)


def test_a_missing_tensor_is_named_with_layer_expert_and_rank() -> None:
    experts = make_loader(layout.Split())
    for expert in range(EXPERTS):
        for (shard, name), _ in expert_fields(expert).items():
            if (expert, shard, name) != (1, "w3", "svh"):
                experts.ledger.record((expert, layout.PROJECTIONS[shard], name))
    with pytest.raises(Exl3Error) as caught:
        experts.ledger.check_complete()
    assert str(caught.value).startswith(
        "1 of 24 EXL3 tensors are missing: "
        "model.layers.7.mlp.experts: expert 1 up_proj.svh (rank 0)"
    )


def test_an_empty_layer_says_how_many_are_missing() -> None:
    with pytest.raises(Exl3Error, match=r"24 of 24 .* \(rank 0\); \.\.\.; verify"):
        make_loader(layout.Split()).ledger.check_complete()


def test_a_doubled_tensor_is_named() -> None:
    experts, fields = make_loader(layout.Split()), expert_fields(1)
    assert load_one(experts, "w1", "suh", fields["w1", "suh"])
    with pytest.raises(Exl3Error, match=r"expert 1 gate_proj\.suh .* comes twice"):
        load_one(experts, "w1", "suh", fields["w1", "suh"])


@pytest.mark.parametrize(
    ("shard", "name", "change", "message"),
    [
        ("w2", "trellis", lambda t: t[:-1], r"down_proj\.trellis .* shape \[31, 16"),
        ("w1", "svh", lambda t: t.float(), r"gate_proj\.svh .* is float32"),
        ("w1", "trellis", lambda t: t[..., :48], r"needed \[16, 32, 64\]"),
        ("w3", "mcg", lambda t: t + 1, r"up_proj\.mcg .* holds -877912082"),
        ("w3", "mcg", lambda t: t.repeat(2), r"up_proj\.mcg .* shape \[2\]"),
    ],
)
def test_a_bad_tensor_is_named(
    shard: str, name: str, change: Callable[[torch.Tensor], torch.Tensor], message: str
) -> None:
    tensor = change(expert_fields(1)[shard, name])
    with pytest.raises(Exl3Error, match=message):
        load_one(make_loader(layout.Split()), shard, name, tensor)


def test_a_foreign_marker_is_refused() -> None:
    with pytest.raises(Exl3Error, match=r"gate_proj\.mul1 .* codebook mcg"):
        make_loader(layout.Split()).refuse("mul1", "w1", 0)


def test_another_ranks_expert_is_left_out() -> None:
    experts = make_loader(layout.Split(), lambda e: -1 if e == 1 else e)
    assert not load_one(experts, "w1", "suh", expert_fields(1)["w1", "suh"])
    assert len(experts.ledger.needed) == 12


def test_old_sign_bitfields_become_scales() -> None:
    experts = make_loader(layout.Split())
    param = torch.zeros(EXPERTS, 2, HIDDEN, dtype=torch.float16)
    bits = torch.full((HIDDEN // 16,), 1, dtype=torch.int16)
    assert experts.load(param, bits, "suh", "w3", 1, old=True)
    assert param[1, 1].tolist() == ([-1.0] + [1.0] * 15) * (HIDDEN // 16)
    with pytest.raises(
        Exl3Error, match=r"expert 1 up_proj\.suh \(rank 0\) comes twice"
    ):
        experts.load(param, param[1, 1], "suh", "w3", 1)


@pytest.mark.parametrize(
    "bits",
    [
        torch.ones(HIDDEN // 16, dtype=torch.float16),
        torch.ones(HIDDEN // 16 - 1, dtype=torch.int16),
        torch.ones(HIDDEN // 16, 1, dtype=torch.int16),
    ],
)
def test_bad_sign_bitfields_are_named(bits: torch.Tensor) -> None:
    message = (
        r"layers\.7\.mlp\.experts: expert 1 up_proj\.su \(rank 0\) is .* needed int16"
    )
    with pytest.raises(Exl3Error, match=message):
        make_loader(layout.Split()).load(bits, bits, "suh", "w3", 1, old=True)


def test_the_loopback_checkpoint_has_the_real_contract(tmp_path: Path) -> None:
    source = exl3_model.make_bf16(tmp_path / "source")
    loopback.make(source, tmp_path / "a", tmp_path / "twin", seed=5)
    loopback.make(source, tmp_path / "b", seed=5)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (
        tmp_path / "b/model.safetensors"
    ).read_bytes()
    names = dict(stfile.tensors(tmp_path / "a"))
    at = "model.layers.2.mlp.experts.7.down_proj"
    found = {n.rpartition(".")[2]: r for n, r in names.items() if n.startswith(at)}
    assert {k: (r.dtype, r.shape) for k, r in found.items()} == {
        "trellis": ("I16", (16, 16, 64)),
        "suh": ("F16", (256,)),
        "svh": ("F16", (256,)),
        "mcg": ("I32", ()),
    }
    assert int(found["mcg"].array()) == -877912083
    assert names["model.layers.2.self_attn.q_proj.weight"].dtype == "BF16"
    assert "quantization_config" not in (tmp_path / "twin/config.json").read_text()
    with pytest.raises(Exl3Error, match="no routed experts"):
        loopback.make(tmp_path / "a", tmp_path / "c")


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    source = exl3_model.make_bf16(tmp_path / "source")
    file = source / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(Exl3Error, match=r"model\.safetensors ends inside tensor"):
        list(stfile.tensors(source))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Two files of one tensor each, and their index."""
    one = {"a": stfile.Raw.of(np.ones(3, np.float32))}
    stfile.write(tmp_path / "model-1.safetensors", one)
    stfile.write(tmp_path / "model-2.safetensors", {"b": one["a"]})
    index = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    text = json.dumps({"weight_map": index})
    (tmp_path / "model.safetensors.index.json").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "model-2.safetensors",
            None,
            r"model-2\.safetensors is absent, which .* names",
        ),
        ("model-2.safetensors", lambda b: b[:-1], r"has \d+ bytes, needed \d+; verify"),
        (
            "model-2.safetensors",
            lambda b: b + b"0",
            r"has \d+ bytes, needed \d+; verify",
        ),
        ("model-2.safetensors", lambda b: b[:4], "has no safetensors header"),
        (
            "model-2.safetensors",
            lambda b: b.replace(b'"b"', b'"c"'),
            r"model-2\.safetensors lacks b, which .* names \(1 such",
        ),
        ("model.safetensors.index.json", lambda b: b[:-1], "is no index with"),
        ("model.safetensors.index.json", lambda _: b"[]", "is no index with"),
        ("model.safetensors.index.json", lambda _: b'{"weight_map": 3}', "is no index"),
    ],
)
def test_a_folder_that_is_not_whole(
    sharded: Path,
    name: str,
    change: Callable[[bytes], bytes] | None,
    message: str,
) -> None:
    stfile.check_folder(sharded)
    path = sharded / name
    content = path.read_bytes()
    path.unlink()
    if change is not None:
        path.write_bytes(change(content))
    with pytest.raises(Exl3Error, match=message):
        stfile.check_folder(sharded)
