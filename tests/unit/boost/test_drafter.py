"""The drafter: the real quantizer on tiny weights, cut off and taken up again."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from glmspark.boost import publish, quantizing
from glmspark.errors import ConfigError
from vllm_exl3 import loopback, schema, stfile

from tests.unit.boost.conftest import DRAFT_KINDS, Desk, Inputs, RangeHub
from tests.unit.weights.conftest import wait_for

WEIGHTS = [f"layers.0.{kind}" for kind in sorted(DRAFT_KINDS)]


def drafts(desk: Desk) -> list[Path]:
    return [path for path in desk.pieces() if path.name.startswith("draft-")]


def tensors(folder: Path) -> dict[str, stfile.Raw]:
    return dict(stfile.tensors(folder))


def check_drafter(desk: Desk, folder: Path) -> None:
    """The weights are near their originals, everything else is the same."""
    own = tensors(desk.tmp / "drafter")
    made = tensors(folder)
    config = json.loads((folder / "config.json").read_text())
    spec = schema.parse(config["quantization_config"])
    rate = spec.dense["model.layers.3.self_attn.o_proj"]
    assert rate.bits == 6
    assert not spec.ignores_native
    for name in WEIGHTS:
        values = [
            np.asarray(made[f"{name}.{part}"].array(), dtype=np.float32)
            for part in ("suh", "svh")
        ]
        trellis = np.asarray(made[f"{name}.trellis"].array())
        dense = loopback.dense(trellis, *values, rate).T
        weight = np.asarray(own.pop(f"{name}.weight").array())
        error = float(((dense - weight) ** 2).mean() / (weight**2).mean())
        assert error < 5e-4, f"{name}: 6 bits keep more than that"
        assert f"{name}.weight" not in made
    assert all(made[name] == raw for name, raw in own.items())
    assert (folder / "README.md").read_text() == "terms"


def test_a_kill_loses_one_weight_and_the_rest_is_not_made_again(
    desk: Desk, hub: RangeHub
) -> None:
    child = desk.start(with_drafter=True)
    wait_for(lambda: len(drafts(desk)) == 1, "one weight is done", 240)
    child.send_signal(signal.SIGKILL)
    desk.end(child)
    kept = drafts(desk)
    assert len(kept) == 1, "the second weight was under way"
    assert not hub.seen, "the drafter comes first, and needs no network"
    ran = desk.ok(with_drafter=True).data
    assert ran["quantized"] == 1
    view = Path(ran["drafter"]["view"]).resolve()
    check_drafter(desk, view)
    manifest = desk.store.manifests()[Path(ran["drafter"]["view"]).name]
    assert manifest.license.startswith("a derivative, for your own use")
    assert manifest.license.endswith(": no derivatives")
    assert desk.ok(with_drafter=True).data["result"] == "already"


def test_the_quantizer_ends_with_the_build(desk: Desk) -> None:
    """A killed build leaves no process that holds the GPU's memory."""
    child = desk.start(with_drafter=True)

    def workers() -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                text = path.read_bytes()
            except OSError:
                continue
            if b"vllm_exl3.tensorwise" in text and str(desk.tmp).encode() in text:
                found.append(int(path.parent.name))
        return found

    wait_for(lambda: bool(workers()), "the quantizer runs", 120)
    child.kill()
    desk.end(child)
    wait_for(
        lambda: not workers(), "it ended by itself", 120
    )  # busy: torch loads first


def test_a_kit_that_comes_ends_the_quantizer(desk: Desk) -> None:
    child = desk.start(with_drafter=True)
    wait_for(lambda: list((desk.tmp / "store/builds").glob("*/.out")) != [], "begun")
    (desk.tmp / "serving").write_text("2")
    began = time.monotonic()
    ran = desk.end(child)
    assert ran.code == 5
    assert "gave way" in ran.data["error"]
    assert time.monotonic() - began < 15
    assert not list((desk.tmp / "store/builds").glob("*/.out"))


def test_the_cpu_is_no_place_for_it(desk: Desk) -> None:
    """What no test hands in: a machine whose engine sees no GPU."""
    ran = desk.run(with_drafter=True, device="cuda")
    assert ran.code == 4
    assert "sees no CUDA device" in ran.data["error"]
    text = (desk.tmp / "profile.toml").read_text()
    (desk.tmp / "profile.toml").write_text(text.replace("bits = 6", 'device = "cpu"'))
    ran = desk.run(with_drafter=True)
    assert ran.code == 3
    assert "quantizing on the head's CPU takes days" in ran.data["error"]


def test_what_the_drafter_lacks_is_named(inputs: Inputs) -> None:
    names = [f"layers.{n}.mlp.down_proj.weight" for n in (0, 1)]
    assert quantizing.wanted(names, ["mlp.down_proj"]) == names
    with pytest.raises(ConfigError, match=r"no weight that ends in self_attn.q_proj"):
        quantizing.wanted(names, ["self_attn.q_proj"])


def test_every_name_that_vllm_gives_a_layer_is_listed() -> None:
    """Source: qwen3_dflash.py of vLLM 0.32.0, start_layer_id and QKVParallelLinear."""
    config = publish.draft_config(
        {}, ["layers.1.self_attn.k_proj.weight"], (6, "mcg"), 45
    )
    listed = config["quantization_config"]["non_routed_exl3"]["layers"]
    assert "model.layers.46.self_attn.qkv_proj" in listed
    assert "model.layers.46.self_attn.k_proj" in listed
    assert "layers.1.self_attn.k_proj" in listed
    spec = schema.parse(config["quantization_config"])
    assert spec.dense_rate("model.layers.46.self_attn.qkv_proj", {}) is not None
    packed = {"qkv_proj": ["k_proj"]}
    assert spec.dense_rate("model.layers.46.self_attn.qkv_proj", packed) is not None
    assert spec.dense_rate("model.layers.1.self_attn.o_proj", {}) is None
