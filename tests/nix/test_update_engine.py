"""The command that locks the engine's wheels: pure choice, comparison, refusal."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "pkgs/vllm-gb10"
LOCKS = sorted(
    [*FOLDER.glob("wheels-*.json"), *(ROOT / "pkgs/exllamav3").glob("wheels-*.json")]
)


def load() -> Any:
    """The module of the command, which is no package."""
    spec = importlib.util.spec_from_file_location(
        "update_engine", FOLDER / "update_engine.py"
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["update_engine"] = module
    spec.loader.exec_module(module)
    return module


engine: Any = load()


@pytest.mark.parametrize(
    ("file", "fits"),
    [
        ("a-1-cp312-cp312-manylinux_2_28_aarch64.whl", True),
        ("a-1-cp38-abi3-manylinux_2_28_aarch64.whl", True),
        ("a-1-py3-none-any.whl", True),
        ("a-1-py2.py3-none-any.whl", True),
        ("a-1-py3-none-manylinux2014_aarch64.manylinux_2_17_aarch64.whl", True),
        ("a-1-cp313-cp313-manylinux_2_28_aarch64.whl", False),
        ("a-1-cp313-abi3-manylinux_2_28_aarch64.whl", False),
        ("a-1-cp312-cp312-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp312-cp312-musllinux_1_2_aarch64.whl", False),
        ("a-1-cp312-cp312-macosx_14_0_arm64.whl", False),
        ("a-1.tar.gz", False),
    ],
)
def test_which_wheels_fit(file: str, fits: bool) -> None:
    assert (engine.rank_wheel(file, "cp312", "aarch64") is not None) == fits


def test_exact_build_is_preferred() -> None:
    names = [
        "a-1-py3-none-any.whl",
        "a-1-cp38-abi3-manylinux_2_28_aarch64.whl",
        "a-1-cp312-cp312-manylinux_2_28_aarch64.whl",
    ]
    files = [{"filename": n} for n in names]
    assert engine.pick_wheel(files, "cp312", "aarch64")["filename"] == names[2]
    assert engine.pick_wheel(files[:2], "cp312", "aarch64")["filename"] == names[1]


def test_no_fitting_wheel_names_what_there_is() -> None:
    files = [{"filename": "a-1.tar.gz"}]
    with pytest.raises(engine.UpdateError, match=r"a-1\.tar\.gz"):
        engine.pick_wheel(files, "cp312", "aarch64")


def wheel(**changes: Any) -> Any:
    row = {"name": "a", "version": "1", "file": "a-1.whl", "sha256": "00", "size": 1}
    return engine.Wheel(**(row | changes))


def test_changed_bytes_are_refused_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "lock.json"
    lock.write_text(engine.lock_text([wheel()]))
    before = lock.read_text()
    status = engine.update_lock(lock, [wheel(sha256="ff")], check=False)
    assert status == engine.INTEGRITY
    assert lock.read_text() == before
    assert "a-1.whl: locked 00, index has ff" in capsys.readouterr().err


def test_new_version_is_written_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "lock.json"
    lock.write_text(engine.lock_text([wheel()]))
    new = [wheel(version="2", file="a-2.whl", sha256="ff")]
    assert engine.update_lock(lock, new, check=False) == 0
    assert engine.read_lock(lock) == new
    assert "a 1 -> 2" in capsys.readouterr().err


def test_check_writes_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "lock.json"
    assert engine.update_lock(lock, [wheel()], check=True) == 0
    assert not lock.exists()


def test_requirements_with_and_without_hashes() -> None:
    text = (
        "a==1 \\\n    --hash=sha256:"
        + "0" * 64
        + "\nb[x]==2 ; python_version > '3'\n# c==3\n"
    )
    assert engine.read_requirements(text) == [
        ("a", "1", frozenset({"0" * 64})),
        ("b", "2", frozenset()),
    ]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda p: p.name)
def test_locks_hold_no_address(lock: Path) -> None:
    """Name, version, file, sha256, size of each wheel, once, and nothing else."""
    rows = json.loads(lock.read_text())
    assert rows
    for row in rows:
        assert sorted(row) == ["file", "name", "sha256", "size", "version"]
        assert re.fullmatch(r"[0-9a-f]{64}", row["sha256"])
        assert row["file"].split("-")[1] == row["version"]
    assert len({row["name"] for row in rows}) == len(rows)
    assert "://" not in lock.read_text()


@pytest.mark.parametrize("tag", ["cp312", "cp313"])
def test_gb10_locks_fit_the_machine(tag: str) -> None:
    for row in json.loads((FOLDER / f"wheels-{tag}-aarch64.json").read_text()):
        assert engine.rank_wheel(row["file"], tag, "aarch64") is not None, row["file"]


def test_gb10_locks_hold_what_the_parsers_of_glm_need() -> None:
    """vLLM 0.32.0 asks for mistral_common[image] >= 1.11.6, which its parsers import.

    The packages that the loopback engine does without must not be missing here.
    """
    for tag in ("cp312", "cp313"):
        rows = json.loads((FOLDER / f"wheels-{tag}-aarch64.json").read_text())
        versions = {row["name"]: row["version"] for row in rows}
        found = tuple(map(int, versions["mistral-common"].split(".")))
        assert found >= (1, 11, 6), tag
        assert versions.keys() >= {"opencv-python-headless", "pillow", "ijson"}, tag
