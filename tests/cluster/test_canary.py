"""The last step of a start: shapes that compile, then answers that make sense."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from glmspark import operations, processes
from glmspark.boot import Boot
from glmspark.console import PlainNarrator
from glmspark.doctor import Examination
from glmspark.errors import IntegrityError, PreflightError
from glmspark.operations import Operator
from glmspark.runner import ProcessRunner
from glmspark.schema import Kit, Runtime
from glmspark.serving.model import shipped_config
from glmspark.settings import load_settings
from glmspark.views import NodeView

from tests.cluster.kits import TestKit
from tests.conftest import REPOSITORY
from tests.sparks import GIB, Spark, card, spark_view

Make = Callable[..., TestKit]
ANSWERS = {"serve.canary": '"answers"'}


def canary_log(kit: TestKit) -> str:
    return (kit.boots()[-1] / "canary.log").read_text()


def test_a_model_that_makes_sense_is_announced(stub_kit: Make) -> None:
    kit = stub_kit(ANSWERS)
    assert "answers the canary (words, tool, reasoning)" in kit.run("plan").out
    done = kit.run("start")
    assert done.code == 0, done.err
    lines = canary_log(kit).splitlines()
    asked = ["word", "prose", "foreign", "tool", "thinking"]
    assert [line.partition(":")[0] for line in lines] == asked
    assert all(": good: " in line for line in lines)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("repeat", "word: asked for 'OK'"),
        ("repeat", "prose: the answer repeats"),
        ("empty", "prose: the answer was empty"),
        ("foreign", "foreign: the answer lacks"),
        ("tool", "tool: expected one tool call, got 0"),
        ("thinking", "thinking: thinking was asked for and no reasoning"),
    ],
)
def test_a_degenerate_model_is_stopped_and_its_logs_are_kept(
    stub_kit: Make, fault: str, said: str
) -> None:
    kit = stub_kit(ANSWERS, rank0={"fault": fault, "log": "loaded"})
    done = kit.run("start")
    assert (done.code, done.out) == (7, "")
    assert "the model answers wrongly" in done.err and said in done.err
    assert "glmspark weights verify --deep" in done.err
    kit.assert_nothing_left()
    folder = kit.boots()[-1]
    assert "loaded" in (folder / "rank-0.log").read_text()
    assert said.partition(": ")[2] in canary_log(kit)
    assert kit.state().phase == "failed"
    kit.scripts.clear()
    kit.write()
    assert kit.run("start").code == 0


def test_a_waived_verdict_is_said_and_the_kit_serves(stub_kit: Make) -> None:
    kit = stub_kit(ANSWERS, rank0={"fault": "repeat"})
    done = kit.run("start", "--waive", "canary.answers", "--json")
    assert done.code == 0, done.err
    (waived,) = json.loads(done.out)["waived"]
    assert waived["check"] == "canary.answers"
    assert "waived: [rank0] canary.answers" in done.err


@pytest.mark.parametrize(
    ("fault", "code"), [("logprob", 7), ("repeat", 0), ("tool", 0), ("", 0)]
)
def test_a_random_model_has_to_answer_not_to_make_sense(
    stub_kit: Make, fault: str, code: int
) -> None:
    kit = stub_kit(rank0={"fault": fault})
    done = kit.run("start")
    assert done.code == code, done.err
    if code:
        assert "a token's log probability is nan" in done.err
        kit.assert_nothing_left()


@pytest.mark.parametrize("word", ["canary", "canary.answer"])
def test_a_typo_is_no_waiver(stub_kit: Make, word: str) -> None:
    assert stub_kit(ANSWERS).run("start", "--waive", word).code == 3


# The supervisor outlives the command that has launched it, which is a test here.
outlives = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


# A GPU kit from its nodes' facts to serving ranks; the ranks run the stand-in.
class Planned(Operator):
    """An operator whose nodes have answered already."""

    answers: Examination

    def _examine(self) -> Examination:
        return self.answers


@pytest.fixture
def spark_kit(
    stub_kit: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[TestKit, Planned]]:
    """Makes a kit of two Sparks on this machine, and the operator that starts it."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "python"))

    def make(available: int = 112, **script: object) -> tuple[TestKit, Planned]:
        made = stub_kit(rank0=script)
        config = json.dumps(shipped_config("glm-5.3-flash"))
        (made.model / "config.json").write_text(config)
        program = tmp_path / "vllm"
        stub = REPOSITORY / "python/glmspark/stub.py"
        line = shlex.join([sys.executable, "-P", str(stub)])
        program.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        program.chmod(0o755)
        kit = sparks(made, program)
        operator = Planned(kit, ProcessRunner(), PlainNarrator())
        views = [
            view(made.root, node.name, n, available) for n, node in enumerate(kit.nodes)
        ]
        operator.answers = Examination(tuple(views), ())
        return made, operator

    return make


def sparks(made: TestKit, program: Path) -> Kit:
    """The kit's settings, on a runtime that brings nothing to anybody."""
    text = (made.root / "kit.toml").read_text()
    text = text.replace('"loopback"', '"tp2"').replace('"stub"', '"vllm-gb10"')
    text += f'runtime = "oci"\npaths.engine = "{program}"\nauth.mode = "none"\n'
    for n in (1, 2):
        text += f'[[nodes]]\nname = "spark-{n}"\nfabric = "127.0.0.{n}"\n'
    (made.root / "kit.toml").write_text(text)
    kit = load_settings(str(made.root / "kit.toml"), environ={"HOME": "/x"}).kit
    return kit.model_copy(update={"runtime": Runtime.VENV})


def view(root: Path, name: str, rank: int, available: int) -> NodeView:
    """A healthy Spark that has its fabric address on this machine's loopback net."""
    address = f"127.0.0.{rank + 1}"
    fabric = Spark(root / name, card(0, address)).write().facts()
    found = spark_view(name, rank, fabric, address)
    found.facts.memory["MemAvailable"] = available * GIB
    return found


SparkKit = Callable[..., tuple[TestKit, Planned]]


@outlives
def test_a_gpu_kit_starts_from_its_nodes_facts(spark_kit: SparkKit) -> None:
    made, operator = spark_kit()
    outcome = operator.start()
    assert outcome.word == "live"
    boot = Boot.read(made.boots()[-1])
    plan = operator.plan(operations.Goal.START)
    assert tuple(reversed(boot.ranks)) == plan.ranks
    for spec in boot.ranks:
        pid = made.state().ranks[spec.rank].pid
        assert " ".join(spec.argv[1:]) in processes.command_line(pid)
        env = processes.environment(pid)
        assert {name: env[name] for name in spec.env} == dict(spec.env)
    lines = canary_log(made).splitlines()
    count = len(boot.trial.warm_up)
    assert count > 10 and lines[count - 1].startswith(f"warm-up {count} of {count}")
    said = [line.partition(":")[0] for line in lines[count:]]
    assert said == ["word", "prose", "foreign", "tool", "thinking", "drafts"]
    again = operator.start()
    assert again.word == "already"
    assert operator.stop().word == "stopped"
    made.assert_nothing_left()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("drafts", "drafts: of 320 drafted tokens none was accepted"),
        ("warm-up", "warm-up with 1 tokens: HTTP 500"),
        ("thinking", "thinking was asked for"),
    ],
)
@outlives
def test_a_degenerate_gpu_kit_does_not_serve(
    spark_kit: SparkKit, fault: str, said: str
) -> None:
    made, operator = spark_kit(fault=fault)
    with pytest.raises(IntegrityError, match=said) as error:
        operator.start()
    assert error.value.exit_code == 7 and "canary.log" in str(error.value.hint)
    made.assert_nothing_left()


@outlives
def test_a_gpu_kit_that_does_not_fit_launches_nothing(spark_kit: SparkKit) -> None:
    made, operator = spark_kit(available=90)
    with pytest.raises(PreflightError, match="GiB short; the largest context"):
        operator.start()
    assert made.boots() == []
    made, operator = spark_kit(available=105)
    outcome = operator.start(("host.memory",))
    assert outcome.word == "live"


@outlives
def test_a_restart_plans_with_the_memory_before_the_boot(spark_kit: SparkKit) -> None:
    made, operator = spark_kit()
    operator.start()
    found = json.loads((made.boots()[-1] / "nodes-memory.json").read_text())
    assert found["spark-2"]["MemAvailable"] == 112 * GIB
