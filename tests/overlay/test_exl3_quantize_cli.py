"""``python -m vllm_exl3.quantize`` under bad arguments, bad files and kills."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from vllm_exl3 import loopback, quantize, quantizer, stfile
from vllm_exl3.errors import Exl3Error
from vllm_exl3.schema import Rate
from vllm_exl3.stfile import Raw
from vllm_exl3.tables import Codebook

Run = Callable[..., "subprocess.Popen[str]"]
OVERLAY = Path(__file__).parents[2] / "overlay"
NAME = "model.layers.1.mlp.experts.0.up_proj.weight"


def checkpoint(folder: Path, weight: np.ndarray, count: int = 1) -> Path:
    """A folder with ``count`` experts of one weight."""
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "glm4_moe"}')
    names = [NAME.replace("experts.0", f"experts.{i}") for i in range(count)]
    content = {name: Raw.bf16(weight) for name in names}
    stfile.write(folder / "model.safetensors", content)
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    return checkpoint(tmp_path / "source", rng.standard_normal((128, 128), np.float32))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/no/folder", "x"], "argument source: /no/folder is no folder"),
        (["SRC"], "the following arguments are required: target"),
        (["SRC", "x", "--bits", "four"], "argument --bits: invalid float value"),
        (["SRC", "x", "--codebook", "nf4"], "invalid choice: 'nf4'"),
        (["SRC", "x", "--device", "tpu"], "invalid choice: 'tpu'"),
    ],
)
def test_usage(
    source: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as end:
        quantize.main([str(source) if a == "SRC" else a for a in arguments])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bits", "0"], "--bits: K = 0.0 is no EXL3 rate"),
        (["--bits", "9"], "--bits: K = 9.0 is no EXL3 rate"),
        (["--bits", "nan"], "--bits: K = nan is no EXL3 rate"),
        (["--bits", "inf"], "--bits: K = inf is no EXL3 rate"),
        (["--bits", "2.5"], "--bits: K = 2.5 exists for the mul1 codebook only"),
        (["--device", "cuda"], "--device cuda: torch sees no GPU"),
    ],
)
def test_rates_and_devices(
    source: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    target = source.with_name("target")
    assert quantize.main([str(source), str(target), *arguments]) == 2
    assert f"error: {message}" in capsys.readouterr().err
    assert not target.exists()


def test_nothing_is_written_over(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the source itself nor a folder with older shards in it."""
    before = (source / "model.safetensors").read_bytes()
    assert quantize.main([str(source), str(source)]) == 2
    assert f"error: {source} exists; name a new folder" in capsys.readouterr().err
    assert (source / "model.safetensors").read_bytes() == before
    file = tmp_path / "file"
    file.write_text("mine")
    assert quantize.main([str(source), str(file)]) == 2
    assert file.read_text() == "mine"
    with pytest.raises(Exl3Error, match=r"source exists"):
        loopback.make(source, source)


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        (lambda s: (s / "config.json").unlink(), 3, "config.json is absent"),
        (lambda s: (s / "config.json").write_text("{"), 3, "config.json is no JSON"),
        (lambda s: (s / "config.json").write_text("[]"), 3, "is no JSON object"),
        (lambda s: (s / "model.safetensors").unlink(), 3, "holds no *.safetensors"),
        (
            lambda s: (s / "model.safetensors").write_bytes(b"\xff" * 40),
            7,
            "model.safetensors has no safetensors header",
        ),
        (
            lambda s: (s / "model.safetensors").write_bytes(b"\2" + b"\0" * 7 + b"[]"),
            7,
            "model.safetensors has no safetensors header",
        ),
        (
            lambda s: (s / "model2.safetensors").write_bytes(
                (s / "model.safetensors").read_bytes()
            ),
            7,
            f"model2.safetensors holds {NAME}, and so does model.safetensors",
        ),
        (
            lambda s: (s / "config.json").unlink() or (s / "config.json").mkdir(),
            5,
            "config.json: Is a directory",
        ),
    ],
)
def test_bad_sources(
    source: Path,
    change: object,
    status: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert callable(change)
    tmp_path = source.parent
    change(source)
    assert quantize.main([str(source), str(tmp_path / "x")]) == status
    assert message in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
            "4 bytes of t, needed 8",
        ),
        ({"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}, "-4 bytes of t"),
        ({"dtype": "F32", "shape": [1]}, "describes t as"),
        ({"dtype": "F32", "shape": 1, "data_offsets": [0, 4]}, "describes t as"),
        ("x", "describes t as 'x'"),
        ({"dtype": "F8", "shape": [9], "data_offsets": [0, 9]}, "ends inside tensor t"),
    ],
)
def test_bad_headers(tmp_path: Path, entry: object, message: str) -> None:
    header = json.dumps({"t": entry}).encode()
    content = len(header).to_bytes(8, "little") + header + b"\0" * 4
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(Exl3Error, match=message):
        list(stfile.tensors(tmp_path))


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.full((128, 128), np.nan), "holds NaN or infinity"),
        (np.full((128, 128), np.inf), "holds NaN or infinity"),
        (np.ones((128, 100)), "input has 100 elements, needed a multiple of 128"),
        (np.ones((100, 128)), "output has 100 elements, needed a multiple of 128"),
        (np.ones(128), r"has shape [128], needed [out, in]"),
        (np.full((128, 128), 1e30), "beyond fp16 scales"),
    ],
)
def test_bad_weights(
    tmp_path: Path,
    weight: np.ndarray,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = checkpoint(tmp_path / "source", weight.astype(np.float32))
    assert quantize.main([str(source), str(tmp_path / "x")]) in {3, 7}
    assert message in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_columns_below_fp16_become_zero() -> None:
    weight = torch.randn(128, 128, generator=torch.Generator().manual_seed(1))
    weight[:, 3] = 1e-12
    layer = quantizer.quantize(weight, Rate(1, Codebook.MCG))
    dense = layer.dense()
    assert dense.isfinite().all()
    assert dense[:, 3].abs().max() <= 1e-7


@pytest.fixture
def run(source: Path, tmp_path: Path) -> Iterator[Run]:
    """Start a run of ``source`` into ``tmp_path/target``."""
    begun: list[subprocess.Popen[str]] = []

    def begin(*, few_bytes: bool = False) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "vllm_exl3.quantize", str(source)]
        command += [str(tmp_path / "target"), "--bits", "1"]
        if few_bytes:
            command = ["sh", "-c", 'ulimit -f 2; exec "$@"', "sh", *command]
        process = subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": str(OVERLAY)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        return process

    yield begin
    for process in begun:
        if process.poll() is None:
            process.kill()
            process.communicate()


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.02)


def test_a_killed_run_leaves_no_target_and_can_be_repeated(
    run: Run, tmp_path: Path
) -> None:
    target, partial = tmp_path / "target", tmp_path / "target.partial"
    process = run()
    wait_for(partial, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not target.exists()
    (partial / "model-00007.safetensors").write_text("left by the killed run")
    process = run()
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert json.loads(out)["relative_error"] < 0.5
    assert sorted(p.name for p in target.iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    assert not partial.exists()


def test_a_full_disk_leaves_nothing(run: Run, tmp_path: Path) -> None:
    """A limit of 1 KiB a file takes the disk's place."""
    process = run(few_bytes=True)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 5
    assert out == ""
    assert err.splitlines()[-1] == "error: File too large"
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_ctrl_c_leaves_nothing(run: Run, tmp_path: Path) -> None:
    target, partial = tmp_path / "target", tmp_path / "target.partial"
    process = run()
    wait_for(partial, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert err.endswith("interrupted\n")
    assert not target.exists()
    # The signal may come before the folder is held; it is empty then.
    assert not partial.exists() or not any(partial.iterdir())


def test_a_second_run_into_one_target_is_refused(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, partial = tmp_path / "target", tmp_path / "target.partial"
    partial.mkdir()
    handle = os.open(partial, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert quantize.main([str(source), str(target)]) == 5
    finally:
        os.close(handle)
    assert f"error: another process writes {target}" in capsys.readouterr().err
    assert partial.exists()
