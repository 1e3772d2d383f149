"""`glmspark plan --memory`: the kit's nodes, probed or assumed, and the refusal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from glmspark.cli import run

KIT = """\
topology = "tp2"
nodes = [
  {name = "spark-1", ssh = "local", fabric = "10.0.0.1"},
  {name = "spark-2", ssh = "u@s2", fabric = "10.0.0.2"},
]
"""
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _kit() -> None:
    Path("kit.toml").write_text(KIT)


def test_nodes_that_were_not_probed_are_said_to_be_assumed(capsys: Capture) -> None:
    assert run(["plan", "--memory", "--node-memory", "spark-2=121.7,105"]) == 0
    out = capsys.readouterr().out
    assert "rank 0 on spark-1 (assumed, not probed): 110.00 GiB available" in out
    assert "rank 1 on spark-2: 105.00 GiB available of 121.70" in out


def test_the_tightest_node_decides(capsys: Capture) -> None:
    sizes = []
    for available in ("112", "105"):
        argv = ["plan", "--memory", "--json", "--node-memory"]
        assert run([*argv, f"spark-2=121.7,{available}"]) == 0
        sizes.append(json.loads(capsys.readouterr().out)["kv_bytes"])
    assert sizes[0] > sizes[1] > 0


def test_what_does_not_fit_is_exit_4_with_the_shortfall(capsys: Capture) -> None:
    assert run(["plan", "--memory", "--node-memory", "spark-1=121.7,80"]) == 4
    out, err = capsys.readouterr()
    assert "does not fit: " in out
    assert "[spark-1]" in err and "GiB short" in err


@pytest.mark.parametrize(
    "text",
    ["spark-1", "spark-1=5", "=1,1", "spark-1=1,2", "spark-1=a,b", "spark-9=9,8"],
)
def test_bad_sizes(text: str, capsys: Capture) -> None:
    assert run(["plan", "--memory", "--node-memory", text]) == 3
    assert "--node-memory" in capsys.readouterr().err


def test_a_cpu_kit_needs_none(capsys: Capture) -> None:
    Path("kit.toml").unlink()
    assert run(["plan", "--memory"]) == 3
    assert "needs no memory plan" in capsys.readouterr().err
