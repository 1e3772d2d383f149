"""The loopback kit's EXL3 model: the contract of the real checkpoint, same bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from glmspark.loopback.exl3 import build_exl3_model
from safetensors import safe_open

from tests.conftest import REPOSITORY


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_exl3_model(tmp_path_factory.mktemp("m") / "model").path


def test_routed_experts_are_exl3_and_nothing_else_is(made: Path) -> None:
    config = json.loads((made / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "exl3"
    with safe_open(made / "model.safetensors", "np") as file:
        names = list(file.keys())
    experts = [name for name in names if ".experts." in name]
    fields = {name.rpartition(".")[2] for name in experts}
    assert fields == {"trellis", "suh", "svh", "mcg"}
    layers, count = 2, config["n_routed_experts"]
    assert len(experts) == layers * count * 3 * len(fields)
    assert not [n for n in names if n not in experts and n.endswith("trellis")]


def test_the_same_bytes_every_time_and_kept_when_whole(
    made: Path, tmp_path: Path
) -> None:
    again = build_exl3_model(tmp_path / "model")
    assert again.content_hash == build_exl3_model(made).content_hash
    file = made / "config.json"
    before = file.stat().st_mtime_ns
    build_exl3_model(made)
    assert file.stat().st_mtime_ns == before


def test_a_damaged_model_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    good = build_exl3_model(folder).content_hash
    (folder / "model.safetensors").chmod(0o644)
    (folder / "model.safetensors").write_bytes(b"cut short")
    assert build_exl3_model(folder).content_hash == good


def test_without_the_plugin_it_says_so(tmp_path: Path) -> None:
    argv = [sys.executable, "-S", "-m", "glmspark.loopback", str(tmp_path / "model")]
    done = subprocess.run(
        argv,
        env={"PYTHONPATH": str(REPOSITORY / "python")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"cannot make the loopback model in {tmp_path}/model: " in done.stderr


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    argv = [sys.executable, "-m", "glmspark.loopback", str(tmp_path / "file/model")]
    path = f"{REPOSITORY / 'python'}:{REPOSITORY / 'overlay'}"
    done = subprocess.run(
        argv, env={"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "cannot make the loopback model" in done.stderr
