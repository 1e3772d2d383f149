"""A healthy stub kit: start, already, status, logs, chat, restart, stop."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from glmspark import processes

from tests.cluster.kits import TestKit, wait_for

Make = Callable[..., TestKit]


@pytest.mark.cases(94)
def test_start_serves_and_stop_proves_itself(stub_kit: Make) -> None:
    kit = stub_kit()
    done = kit.run("start")
    assert done.code == 0, done.err
    url = f"http://127.0.0.1:{kit.port}/v1"
    assert done.out == f"GLM-5.3-Flash-EXL3 (loopback) is LIVE on {url}\n"
    assert kit.ask("/v1/models")[0] == 200
    assert kit.chat()[0] == 200
    assert "[DONE]" in kit.chat(stream=True)[1]
    assert kit.chat(model="other")[0] == 404
    assert kit.chat("word " * 3000)[0] == 400
    again = kit.run("start")
    assert (again.code, "is already LIVE on" in again.out) == (0, True)
    status = json.loads(kit.run("status", "--json").out)
    assert (status["phase"], status["serves"]) == ("serving", True)
    assert [rank["rank"] for rank in status["ranks"]] == [0, 1]
    assert kit.run("status").code == 0
    assert kit.run("stop").out == "test: stopped\n"
    kit.assert_nothing_left()
    assert kit.run("stop").out == "test: already stopped\n"
    assert kit.run("status").code == 6


def test_what_start_says_as_json(stub_kit: Make) -> None:
    kit = stub_kit()
    first = json.loads(kit.run("start", "--json").out)
    assert first["result"] == "live" and first["key_file"] is None
    second = json.loads(kit.run("start", "--json").out)
    assert (second["result"], second["boot"]) == ("already", first["boot"])
    assert json.loads(kit.run("stop", "--json").out)["result"] == "stopped"


def test_the_plan_is_what_runs(stub_kit: Make) -> None:
    kit = stub_kit()
    plan = json.loads(kit.run("plan", "--json").out)
    assert json.loads(kit.run("start", "--dry-run", "--json").out) == plan
    assert kit.boots() == []
    kit.run("start")
    for rank in plan["ranks"]:
        pid = kit.state().ranks[rank["rank"]].pid
        assert processes.command_line(pid) == " ".join(rank["argv"])
        env = processes.environment(pid)
        assert {name: env[name] for name in rank["env"]} == rank["env"]
    assert kit.state().digest == plan["digest"]


def test_a_changed_setting_is_named_and_applied_by_restart(stub_kit: Make) -> None:
    kit = stub_kit()
    kit.run("start")
    before = kit.state().boot
    kit.settings["serve.max_num_seqs"] = "3"
    kit.write()
    again = kit.run("start")
    assert again.code == 0 and "`glmspark restart` applies them" in again.err
    assert kit.state().boot == before
    done = kit.run("restart")
    assert done.code == 0, done.err
    assert kit.state().boot != before
    assert len({one.boot for one in kit.members()}) == 1
    assert kit.chat()[0] == 200


@pytest.mark.cases(107)
def test_a_bad_setting_leaves_the_running_kit_alone(stub_kit: Make) -> None:
    kit = stub_kit()
    kit.run("start")
    kit.settings["serve.max_num_seqs"] = "0"
    kit.write()
    assert kit.run("restart").code == 3
    assert kit.chat()[0] == 200


@pytest.mark.cases(133, 134)
def test_the_key_is_asked_for_and_seen_nowhere(stub_kit: Make) -> None:
    kit = stub_kit({"auth.mode": '"key"'})
    planned = kit.run("plan").out
    done = kit.run("start")
    assert done.code == 0, done.err
    file = kit.state_folder / "key"
    key = file.read_text().strip()
    assert len(key) >= 40
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert kit.chat()[0] == 401
    assert kit.chat(key="wrong")[0] == 401
    assert kit.chat(key=key)[0] == 200
    seen = [planned, done.out, done.err, kit.run("status", "--json").out]
    seen += [processes.command_line(pid) for pid in processes.all_pids()]
    others = [p for p in kit.root.rglob("*") if p.is_file() and p != file]
    seen += [path.read_text(errors="replace") for path in others]
    assert not any(key in text for text in seen)
    # The look itself can find a key: the rank has it in its environment.
    env = processes.environment(kit.state().ranks[0].pid)
    assert env["VLLM_API_KEY"] == key
    assert "VLLM_API_KEY" not in processes.environment(kit.state().ranks[1].pid)
    first = kit.run("stop").code
    kit.run("start")
    assert (first, file.read_text().strip()) == (0, key)


@pytest.mark.cases(104)
def test_ten_boots_are_kept(stub_kit: Make) -> None:
    kit = stub_kit()
    for number in range(11):
        folder = kit.state_folder / "boots" / f"20200101T0000{number:02}-abcdef"
        folder.mkdir(parents=True)
        (folder / "rank-0.log").write_text(f"boot {number}\n")
    assert kit.run("start").code == 0
    assert len(kit.boots()) == 10
    assert kit.boots()[-1].name == kit.state().boot
    named = kit.run("logs", "--list").out.split()
    assert named == [folder.name for folder in kit.boots()]
    assert kit.run("logs", "--boot", named[0]).out == "[0] boot 2\n"


def test_logs_are_marked_by_rank(stub_kit: Make) -> None:
    kit = stub_kit(rank0={"log": "one\ntwo"}, rank1={"log": "three"})
    kit.run("start")
    lines = kit.run("logs").out.splitlines()
    assert lines[:2] == ["[0] one", "[0] two"] and "[1] three" in lines
    assert kit.run("logs", "--rank", "1", "-n", "1").out == "[1] joined\n"
    assert kit.run("logs", "--rank", "7").code == 3


def test_a_follower_sees_new_lines(stub_kit: Make) -> None:
    kit = stub_kit(rank0={"log": "one"})
    kit.run("start")
    follower = kit.begin("logs", "-f", "--rank", "0")
    assert follower.stdout is not None
    assert follower.stdout.readline() == "[0] one\n"
    log: Path = kit.boots()[-1] / "rank-0.log"
    with log.open("a") as file:
        file.write("late\n")
    assert follower.stdout.readline() == "[0] late\n"
    follower.terminate()
    follower.communicate()


def test_ranks_of_units_need_no_supervisor(stub_kit: Make) -> None:
    kit = stub_kit()
    ranks = [kit.begin("rank", "--rank", number) for number in ("1", "0")]
    try:
        wait_for(lambda: _answers(kit))
        assert kit.chat()[0] == 200
    finally:
        for rank in ranks:
            rank.terminate()
    said = [rank.communicate()[1] for rank in ranks]
    assert said[0].replace("rank 1 ", "rank 0 ") == said[1]
    assert '"model": "' in said[1] and said[1].startswith("rank 0 runs {")
    done = kit.run("rank", "--rank", "2")
    assert done.code == 3 and "rank 2 was asked for, kit test has 2" in done.err


def _answers(kit: TestKit) -> bool:
    try:
        return kit.ask("/health")[0] == 200
    except OSError:
        return False
