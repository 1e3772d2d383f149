"""What is said twice in pyproject.toml, because two tools read it, is the same."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import glmspark
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pyproject() -> dict:
    return tomllib.loads((ROOT / "python/pyproject.toml").read_text())


@pytest.mark.parametrize("key", ["name", "version", "description"])
def test_project_and_poetry_agree(pyproject: dict, key: str) -> None:
    assert pyproject["project"][key] == pyproject["tool"]["poetry"][key]


def test_the_authors_agree(pyproject: dict) -> None:
    authors = [author["name"] for author in pyproject["project"]["authors"]]
    assert authors == pyproject["tool"]["poetry"]["authors"]


def test_the_dependencies_agree(pyproject: dict) -> None:
    declared = {}
    for requirement in pyproject["project"]["dependencies"]:
        match = re.fullmatch(r"([a-z0-9-]+) \((.+)\)", requirement)
        assert match, requirement
        declared[match[1]] = match[2]
    declared["python"] = pyproject["project"]["requires-python"]
    assert declared == pyproject["tool"]["poetry"]["dependencies"]


def test_the_scripts_agree(pyproject: dict) -> None:
    assert pyproject["project"]["scripts"] == pyproject["tool"]["poetry"]["scripts"]


def test_the_package_states_the_projects_version(pyproject: dict) -> None:
    assert glmspark.__version__ == pyproject["project"]["version"]
