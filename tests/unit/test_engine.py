"""Which program and which model a kit's ranks open."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from glmspark.engine import engine_python, find_program, model_folder, view_name
from glmspark.errors import ConfigError
from glmspark.paths import kit_paths
from glmspark.schema import Kit
from glmspark.settings import load_settings
from glmspark.weights.manifest import Manifest

REVISION = "4739eb1bcfd478e8a32da6358908567bc3a9ac51"


def kit(*sets: str) -> Kit:
    return load_settings(sets=sets, environ={"HOME": "/x"}).kit


def folder(*sets: str) -> str:
    made = kit(*sets)
    return str(model_folder(made, kit_paths(made, {"HOME": "/h"})))


def test_the_model_of_each_kind_of_target(tmp_path: Path) -> None:
    assert folder() == "/h/.cache/glmspark/loopback-model"
    assert folder(f"weights.target={tmp_path}") == str(tmp_path)
    target = f"weights.target=who/what@{REVISION}"
    assert folder(target, "weights.store=/s") == "/s/views/who--what--4739eb1bcfd4"


def test_the_view_has_the_name_that_the_store_gives_it() -> None:
    assert view_name(f"a/b@{REVISION}") == Manifest("a/b", REVISION, ()).slug


@pytest.mark.parametrize("target", ["a/b", "a/b@main", "a/b@4739eb1b"])
def test_a_target_without_a_whole_revision(target: str) -> None:
    with pytest.raises(ConfigError, match="40 hex digits"):
        folder(f"weights.target={target}")


def test_a_target_folder_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="is no folder"):
        folder("weights.target=/nowhere/at/all")


def test_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_program(kit("engine=stub"))[0] == sys.executable
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    with pytest.raises(ConfigError, match="which does not exist"):
        find_program(kit(f"paths.engine={program}"))
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_program(kit(f"paths.engine={program}")) == (str(program),)
    assert engine_python((str(program),)) == sys.executable
    (program.parent / "python").touch()
    assert engine_python((str(program),)) == str(program.parent / "python")
    link = tmp_path / "profile" / "vllm"
    link.parent.mkdir()
    link.symlink_to(program)
    assert engine_python((str(link),)) == str(program.parent / "python")
    monkeypatch.chdir(program.parent)
    assert engine_python(("vllm",)) == sys.executable
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    monkeypatch.setenv("PATH", str(program.parent))
    assert find_program(kit()) == (str(program),)
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_program(kit()) == ("vllm",)
