"""Logs of two hosts as one, and a report that keeps secrets and addresses."""

from __future__ import annotations

import json
import os
import re
import tarfile
import time
from collections.abc import Callable

import pytest

from tests.cluster.kits import TestKit, wait_for


def line(after_s: int, text: str) -> str:
    stamp = time.strftime("%m-%d %H:%M:%S", time.localtime(time.time() + after_s))
    return f"INFO {stamp} [core.py:1] {text}"


@pytest.fixture
def kit(pair_kit: Callable[..., TestKit]) -> TestKit:
    made = pair_kit(
        {"serve.host": '"127.0.0.1"'},
        rank0={"log": line(100, "first") + "\n" + line(104, "third")},
        rank1={"log": line(102, "second at 10.66.1.77 for anna@gpu-box")},
    )
    done = made.run("start")
    assert done.code == 0, done.err
    return made


@pytest.mark.cases(66, 104, 134)
def test_logs_are_one_in_time_and_a_report_tells_no_secret(kit: TestKit) -> None:
    words = [one.split()[-1] for one in kit.run("logs").out.splitlines()]
    wanted = ["first", "anna@gpu-box", "third"]
    assert [word for word in words if word in wanted] == wanted
    only = kit.run("logs", "--node", "spark-2").out.splitlines()
    assert only and all(one.startswith("[1] ") for one in only)
    assert kit.run("logs", "--node", "spark-9").code == 3
    assert kit.run("logs", "--since", "2027-01-01").out == ""
    follower = kit.begin("logs", "-f", "-n", "0")
    # The follower reads whole lines of the log that this very rank goes on writing.
    log = kit.boots()[-1] / "rank-1.log"
    wait_for(lambda: _is_open(follower.pid))
    with log.open("a") as file:
        file.write("a late line\n")
    assert follower.stdout is not None
    assert follower.stdout.readline() == "[1] a late line\n"
    follower.kill()
    follower.communicate()

    key = (kit.state_folder / "key").read_text().strip()
    output = kit.root / "r.tar.gz"
    done = kit.run(
        "report",
        "--output",
        str(output),
        "--json",
        HF_TOKEN="hf_abcdefghijklmnop",
    )
    assert done.code == 0, done.err
    assert output.stat().st_mode & 0o777 == 0o600
    with tarfile.open(output) as bundle:
        texts = {
            member.name: bundle.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in bundle.getmembers()
        }
    names = {name.removeprefix("glmspark-report/") for name in texts}
    assert {"versions.json", "settings.txt", "probes.json", "plan.txt"} <= names
    boot = kit.state().boot
    assert f"boots/{boot}/rank-1.log" in names
    whole = "\n".join(texts.values())
    for gone in (key, "10.66.1.77", "hf_abcdefghijklmnop"):
        assert gone not in whole, gone
    assert not re.search(rf"\b{re.escape(os.uname().nodename)}\b", whole)
    assert json.loads(texts["glmspark-report/probes.json"])["nodes"]
    assert "second at <ip-" in texts[f"glmspark-report/boots/{boot}/rank-1.log"]
    assert kit.run("stop").code == 0


def _is_open(pid: int) -> bool:
    """Whether the follower has said its first words and waits."""
    with open(f"/proc/{pid}/wchan") as file:  # noqa: PTH123 - no regular file
        return "nanosleep" in file.read()


def test_a_report_of_a_kit_that_cannot_be_asked_says_so(
    stub_kit: Callable[..., TestKit],
) -> None:
    kit = stub_kit({"runtime": '"oci"'})
    output = kit.root / "r.tar.gz"
    done = kit.run("report", "--output", str(output))
    assert done.code == 0, done.err
    with tarfile.open(output) as bundle:
        file = bundle.extractfile("glmspark-report/probes.json")
        assert file is not None and b"could not be had: runtime is oci" in file.read()
