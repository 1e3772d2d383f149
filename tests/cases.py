"""The map of the field's known cases: ``python -m tests.cases`` prints which tests
reproduce which, what each asserts, and why the others have none.

Tests carry ``@pytest.mark.cases(numbers)``; the files are read, not run.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.caselist import CASES

TESTS = Path(__file__).parent


@dataclass(frozen=True)
class Covering:
    """A test: the cases that it reproduces, where it is, and what its name asserts."""

    numbers: tuple[int, ...]
    file: str
    name: str

    @property
    def asserts(self) -> str:
        """What holds when the test passes, in words."""
        return self.name.removeprefix("test_").replace("_", " ")


def _numbers(decorator: ast.expr) -> list[int]:
    """The numbers of a ``pytest.mark.cases`` decorator; none for any other."""
    if not isinstance(decorator, ast.Call) or not isinstance(
        decorator.func, ast.Attribute
    ):
        return []
    if decorator.func.attr != "cases":
        return []
    found = []
    for argument in decorator.args:
        value = argument.value if isinstance(argument, ast.Starred) else argument
        number = ast.literal_eval(value)
        found += list(number) if isinstance(number, tuple) else [number]
    return found


def covering(folder: Path = TESTS) -> Iterator[Covering]:
    """Every marked test below ``folder``."""
    for file in sorted(folder.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                numbers = [n for one in node.decorator_list for n in _numbers(one)]
                if numbers:
                    name = str(file.relative_to(folder))
                    yield Covering(tuple(numbers), name, node.name)


def build_map(folder: Path = TESTS) -> dict[int, list[Covering]]:
    """The tests of each case, by number.

    Raises:
        ValueError: a test names a number that is no case.
    """
    found: dict[int, list[Covering]] = {number: [] for number in CASES}
    for one in covering(folder):
        for number in one.numbers:
            if number not in found:
                raise ValueError(f"{one.file}: {one.name} names case {number}")
            found[number].append(one)
    return found


def uncovered(found: dict[int, list[Covering]]) -> dict[int, str]:
    """The cases without a test, each with the reason; "" where a test is owed."""
    return {n: CASES[n].why for n, tests in found.items() if not tests}


def lines(found: dict[int, list[Covering]]) -> Iterator[str]:
    """The map for people."""
    lacking = uncovered(found)
    for number, case in CASES.items():
        yield f"{number:4} {case.title}"
        for one in found[number]:
            yield f"       {one.file}: {one.asserts}"
        if number in lacking:
            yield f"       no test: {lacking[number] or 'owed'}"
    owed = [number for number, why in lacking.items() if not why]
    have = sum(1 for tests in found.values() if tests)
    yield f"{have} of {len(CASES)} cases have tests, {len(owed)} are owed: {owed}"


def main() -> None:
    """Print the map; ``--json`` as data."""
    found = build_map()
    if "--json" in sys.argv:
        data = {
            number: [f"{one.file}::{one.name}" for one in tests]
            for number, tests in found.items()
        }
        sys.stdout.write(json.dumps(data, indent=1) + "\n")
        return
    sys.stdout.write("\n".join(lines(found)) + "\n")


if __name__ == "__main__":
    main()
