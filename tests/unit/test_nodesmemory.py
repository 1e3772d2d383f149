"""A kit that serves is planned and judged with the memory from before its boot."""

from __future__ import annotations

from pathlib import Path

import pytest
from glmspark import nodesmemory
from glmspark.nodesmemory import (
    read_nodes_memory,
    remembering,
    with_memory,
    write_nodes_memory,
)
from glmspark.paths import KitPaths
from glmspark.schema import Node

from tests.sparks import GIB, Spark, card, spark_view


def ask(node: Node, _arguments: object) -> dict[str, object]:
    """A node whose memory is taken by a rank that serves."""
    memory = {"MemTotal": 121 * GIB, "MemAvailable": 9 * GIB}
    return {"facts": {"hostname": node.name, "memory": memory}, "clock": [0, 0]}


A, B = (Node(name=name, fabric=f"10.0.0.{n}") for n, name in enumerate("ab", start=1))


@pytest.fixture
def boot(tmp_path: Path) -> Path:
    fabric = Spark(tmp_path / "a", card(0, "10.0.0.1")).write().facts()
    folder = tmp_path / "boot"
    folder.mkdir()
    write_nodes_memory(folder, [spark_view("a", 0, fabric, "10.0.0.1")])
    return folder


def test_known_nodes_have_what_was_there_and_others_what_is(boot: Path) -> None:
    again = with_memory(ask, read_nodes_memory(boot))
    assert again(A, {})["facts"]["memory"]["MemAvailable"] == 112 * GIB
    assert again(A, {})["facts"]["hostname"] == "a"
    assert again(B, {})["facts"]["memory"]["MemAvailable"] == 9 * GIB


def test_a_boot_that_left_nothing_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "nodes-memory.json").write_text("not json")
    assert read_nodes_memory(tmp_path) == {} == read_nodes_memory(tmp_path / "none")


@pytest.mark.parametrize(("up", "gib"), [(True, 112), (False, 9)])
def test_only_a_kit_that_is_up_remembers(
    boot: Path, monkeypatch: pytest.MonkeyPatch, up: bool, gib: int
) -> None:
    class State:
        is_up = up
        boot = "boot"

    monkeypatch.setattr(nodesmemory, "read_state", lambda _path: State)
    paths = KitPaths(boot.parent, boot.parent, boot.parent / "key", boot.parent)
    monkeypatch.setattr(KitPaths, "boots", boot.parent)
    answer = remembering(ask, paths)(A, {})
    assert answer["facts"]["memory"]["MemAvailable"] == gib * GIB
