"""The map of known cases: marks are read, unknown numbers refused, lacks are said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.caselist import CASES
from tests.cases import TESTS, build_map, covering, lines, uncovered


def write(folder: Path, text: str) -> None:
    (folder / "test_x.py").write_text(text)


def test_marks_of_functions_and_classes_are_found(tmp_path: Path) -> None:
    write(
        tmp_path,
        "@pytest.mark.cases(1, *(4, 5))\n@pytest.mark.slow(9)\n"
        "def test_a_b(): ...\n\n@mark.cases(6)\nclass TestC: ...\n",
    )
    found = list(covering(tmp_path))
    assert [(one.numbers, one.asserts) for one in found] == [
        ((1, 4, 5), "a b"),
        ((6,), "TestC"),
    ]


def test_a_number_that_is_no_case_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "@pytest.mark.cases(3)\ndef test_a(): ...\n")
    with pytest.raises(ValueError, match="test_a names case 3"):
        build_map(tmp_path)


def test_what_lacks_is_said_with_its_reason_or_as_owed(tmp_path: Path) -> None:
    write(tmp_path, "@pytest.mark.cases(1)\ndef test_a(): ...\n")
    found = build_map(tmp_path)
    lacking = uncovered(found)
    assert 1 not in lacking and lacking[30] and not lacking[2]
    text = "\n".join(lines(found))
    assert "       test_x.py: a\n" in text
    assert "no test: owed" in text and f"no test: {CASES[30].why}" in text
    assert f"1 of {len(CASES)} cases have tests" in text


def test_the_command_prints_this_projects_map() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.cases"],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (
        "\n  18 MTU differs between the ends\n       cluster/test_hosts.py"
        in done.stdout
    )
