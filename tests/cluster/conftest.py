"""Fixtures: stub kits, and the real cluster that a file's tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.kits import TestKit


@pytest.fixture
def stub_kit(tmp_path: Path) -> Iterator[Callable[..., TestKit]]:
    """Makes a stub kit: settings as TOML by key, scripts by rank."""
    made: list[TestKit] = []

    def make(settings: dict[str, str] | None = None, **scripts: Any) -> TestKit:
        by_rank = {name.removeprefix("rank"): value for name, value in scripts.items()}
        root = tmp_path / f"kit{len(made)}"
        made.append(TestKit(root, settings=settings or {}, scripts=by_rank))
        return made[-1]

    yield make
    for kit in made:
        kit.close()
