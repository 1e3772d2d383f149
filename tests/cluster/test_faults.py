"""What goes wrong, at start and while serving, and what the tool makes of it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from glmspark import processes
from glmspark.boot import Boot
from glmspark.errors import CommandError

from tests.cluster.kits import TestKit, wait_for

Make = Callable[..., TestKit]


@contextmanager
def stranger(port: int) -> Iterator[int]:
    """Another program that listens on ``port``; its pid."""
    code = (
        f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); "
        "print('up', flush=True); time.sleep(600)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    try:
        yield child.pid
    finally:
        child.kill()
        child.communicate()


@pytest.mark.cases(91)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("code", [0, 1])
def test_a_rank_that_ends_while_starting(stub_kit: Make, rank: int, code: int) -> None:
    log = "(W pid=3) ERROR 11-30 10:00:00 [a.py:1] ValueError: no such layer"
    script = {"exit_after_s": 0.5, "exit_code": code, "log": log, "mute": True}
    kit = stub_kit(**{f"rank{rank}": script})
    done = kit.run("start")
    assert done.code == 5
    assert f"[rank{rank}] rank {rank} ended while starting: exit status {code}" in (
        done.err
    )
    assert "ValueError: no such layer" in done.err
    assert done.out == ""
    kit.assert_nothing_left()
    status = json.loads(kit.run("status", "--json").out)
    assert status["phase"] == "failed" and "no such layer" in status["failure"]
    kit.scripts.clear()
    kit.write()
    assert kit.run("start").code == 0


@pytest.mark.cases(23)
def test_a_first_connection_that_fails_is_tried_once_more_and_said(
    stub_kit: Make,
) -> None:
    log = "NCCL WARN Call to ibv_reg_mr failed: Cannot allocate memory\n"
    log += "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG)"
    script = {"exit_after_s": 0.3, "mute": True, "log": log}
    kit = stub_kit(rank1={**script, "once": True})
    done = kit.run("start")
    assert done.code == 0, done.err
    assert done.err.count("deserves one more try") == 1
    assert len(kit.boots()) == 2  # the logs of the first are kept
    assert kit.run("stop").code == 0
    kit.scripts["1"] = script
    kit.write()
    done = kit.run("start")
    assert done.code == 5 and done.err.count("deserves one more try") == 1
    assert len(kit.boots()) == 4
    kit.assert_nothing_left()


@pytest.mark.cases(102)
def test_a_rank_that_is_late_is_waited_for(stub_kit: Make) -> None:
    kit = stub_kit(rank1={"join_s": 3.0})
    done = kit.run("start")
    assert done.code == 0, done.err
    assert kit.chat()[0] == 200


@pytest.mark.cases(90)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("engine", [True, False], ids=["engine", "main"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_rank_that_dies_while_serving_takes_the_others_with_it(
    stub_kit: Make, rank: int, engine: bool, number: signal.Signals
) -> None:
    kit = stub_kit()
    assert kit.run("start").code == 0
    processes.send(kit.rank(rank, engine=engine), number)
    wait_for(lambda: kit.state().phase == "failed")
    kit.assert_nothing_left()
    failure = kit.state().failure
    assert failure is not None and failure.rank == rank
    assert f"rank {rank}" in failure.message and failure.exit_code == 5
    assert kit.run("status").code == 6
    assert kit.run("start").code == 0


def test_a_dead_supervisor_leaves_no_kit_that_cannot_start(stub_kit: Make) -> None:
    kit = stub_kit()
    kit.run("start")
    first = kit.state().boot
    processes.send(kit.state().supervisor, signal.SIGKILL)
    wait_for(lambda: not kit.state().supervisor.is_alive)
    status = json.loads(kit.run("status", "--json").out)
    assert status["phase"] == "orphaned" and "glmspark stop" in status["hint"]
    done = kit.run("start")
    assert done.code == 0, done.err
    assert {one.boot for one in kit.members()} == {kit.state().boot} != {first}


@pytest.mark.cases(87)
def test_a_supervisor_killed_at_birth_leaves_nothing_that_serves(
    stub_kit: Make,
) -> None:
    kit = stub_kit(rank0={"load_s": 3.0})
    start = kit.begin("start")
    state = kit.state_folder / "state.json"
    wait_for(lambda: state.exists() and len(kit.state().ranks) == 2)
    processes.send(kit.state().supervisor, signal.SIGKILL)
    out, err = start.communicate(timeout=60)
    assert (start.returncode, out) == (5, ""), err
    wait_for(lambda: not [m for m in kit.members() if "serve" in m.title])
    kit.run("stop")
    kit.assert_nothing_left()


def test_a_start_whose_supervisor_comes_up_too_late_leaves_nothing(
    stub_kit: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from glmspark import backends

    kit = stub_kit()
    launch = backends.Launch("test", kit.root, kit.root / "state.json")
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    late = backends.Child(child)
    with pytest.raises(CommandError, match="did not come up"):
        backends.await_state(launch, "boot", late, limit_s=0.2)
    late.abort()
    assert child.poll() is not None


def test_ranks_are_ours_even_when_the_state_folder_has_gone(stub_kit: Make) -> None:
    kit = stub_kit(rank0={"ignore_term": True}, rank1={"ignore_term": True})
    kit.run("start")
    boot, supervisor = kit.state().boot, kit.state().supervisor
    shutil.rmtree(kit.state_folder)
    wait_for(lambda: not supervisor.is_alive, 30)
    assert processes.marked(boot) == []
    done = kit.run("start")
    assert done.code == 0, done.err


def test_ctrl_c_in_a_second_start_leaves_the_first_alone(stub_kit: Make) -> None:
    kit = stub_kit(rank0={"load_s": 4.0})
    first, second = kit.begin("start"), None
    state = kit.state_folder / "state.json"
    wait_for(lambda: state.exists() and kit.state().phase == "load")
    second = kit.begin("start")
    assert second.stderr is not None
    for line in second.stderr:
        if "waiting for it" in line:
            break
    second.send_signal(signal.SIGINT)
    second.communicate(timeout=30)
    out, err = first.communicate(timeout=60)
    assert (second.returncode, first.returncode) == (130, 0), err
    assert "is LIVE" in out


def test_a_frozen_api_is_not_called_live(stub_kit: Make) -> None:
    kit = stub_kit()
    kit.run("start")
    processes.send(kit.rank(0, engine=False), signal.SIGSTOP)
    done = kit.run("start")
    assert done.code == 6 and "does not answer /health" in done.err
    assert kit.run("status").code == 6


def test_status_asks_the_port_that_the_boot_has(stub_kit: Make) -> None:
    kit = stub_kit()
    kit.run("start")
    assert kit.run("status", "--set", "serve.port=1").code == 0


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full", "2>&1 | head -n 1"])
def test_nobody_has_to_read_the_words(stub_kit: Make, where: str) -> None:
    kit = stub_kit()
    line = f"{shlex.join(kit.argv('start'))} {where}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], env=kit.env(), check=False)
    assert done.returncode == 0
    assert kit.chat()[0] == 200


def test_a_result_that_cannot_be_written_is_said(stub_kit: Make) -> None:
    kit = stub_kit()
    line = f"{shlex.join(kit.argv('start'))} > /dev/full"
    done = subprocess.run(
        ["bash", "-c", line], env=kit.env(), check=False, stderr=subprocess.PIPE
    )
    assert done.returncode == 3 and b"Traceback" not in done.stderr


@pytest.mark.parametrize("what", ["boots", "state.json"])
def test_foreign_things_in_the_state_folder(stub_kit: Make, what: str) -> None:
    kit = stub_kit()
    kit.state_folder.mkdir(parents=True)
    if what == "boots":
        (kit.state_folder / what).touch()
    else:
        (kit.state_folder / what).mkdir()
    done = kit.run("start")
    assert done.code in {3, 5} and "Traceback" not in done.err
    assert kit.members() == []


def test_stop_ends_what_a_dead_supervisor_left(stub_kit: Make) -> None:
    kit = stub_kit(rank1={"ignore_term": True})
    kit.run("start")
    processes.send(kit.state().supervisor, signal.SIGKILL)
    wait_for(lambda: not kit.state().supervisor.is_alive)
    assert any(one.rank == 1 for one in kit.members())
    assert kit.run("stop").out == "test: stopped\n"
    kit.assert_nothing_left()


def test_stop_wins_against_a_rank_that_ignores_sigterm(stub_kit: Make) -> None:
    kit = stub_kit(rank0={"ignore_term": True}, rank1={"ignore_term": True})
    kit.run("start")
    assert kit.run("stop").code == 0
    kit.assert_nothing_left()


def test_stop_wins_against_a_supervisor_that_hangs(stub_kit: Make) -> None:
    kit = stub_kit({"timeouts.stop_s": "0.1"})
    kit.run("start")
    processes.send(kit.state().supervisor, signal.SIGSTOP)
    assert kit.run("stop").code == 0
    kit.assert_nothing_left()


@pytest.mark.cases(99)
@pytest.mark.parametrize("which", ["api", "master"])
def test_a_taken_port_is_found_before_anything_starts(
    stub_kit: Make, which: str
) -> None:
    kit = stub_kit()
    with stranger(kit.port if which == "api" else kit.master) as pid:
        done = kit.run("start")
        assert done.code == 4
        assert f"port.{which}: port" in done.err and f"pid {pid}" in done.err
        assert f"--waive port.{which}" in done.err
        assert kit.boots() == []
        waived = kit.run("start", "--waive", f"port.{which}")
        assert waived.code == 5 and "waived: " in waived.err
    assert kit.run("start").code == 0


def test_a_waiver_must_name_a_check(stub_kit: Make) -> None:
    done = stub_kit().run("start", "--waive", "port.apy")
    assert done.code == 3 and "checks: " in done.err


@pytest.mark.cases(99)
def test_a_stranger_on_the_master_port_does_not_hang_the_start(stub_kit: Make) -> None:
    # As with vLLM: the worker connects to the stranger and waits; the head cannot bind.
    kit = stub_kit({"timeouts.stall_s": "3"})
    with stranger(kit.master):
        done = kit.run("start", "--waive", "port.master")
    assert done.code == 5
    assert "rank 0 ended while starting" in done.err
    assert "Address already in use" in done.err
    assert "holds a port of the kit" in done.err
    assert kit.members() == []


@pytest.mark.cases(101)
def test_a_rank_that_never_joins_runs_into_the_stall_limit(stub_kit: Make) -> None:
    kit = stub_kit({"timeouts.stall_s": "2"}, rank1={"mute": True})
    done = kit.run("start")
    assert done.code == 6
    assert "no progress on any rank for 2 s while loading" in done.err
    assert "timeouts.stall_s" in done.err
    kit.assert_nothing_left()


@pytest.mark.cases(83, 90)
def test_an_api_without_answers_is_not_announced(stub_kit: Make) -> None:
    kit = stub_kit(rank0={"reply": ""})
    done = kit.run("start")
    assert done.code == 7
    assert "the first completion failed: no token was generated" in done.err
    kit.assert_nothing_left()


def test_an_api_that_answers_too_late(stub_kit: Make) -> None:
    kit = stub_kit({"timeouts.canary_s": "1"}, rank0={"answer_s": 30})
    assert kit.run("start").code in {6, 7}
    kit.assert_nothing_left()


def test_an_unhealthy_api_is_not_announced(stub_kit: Make) -> None:
    kit = stub_kit({"timeouts.stall_s": "2"}, rank0={"health": 503})
    done = kit.run("start")
    assert done.code == 6
    kit.assert_nothing_left()


def test_ranks_with_different_models_do_not_serve(
    stub_kit: Make, tmp_path: Path
) -> None:
    kit = stub_kit()
    assert kit.run("start").code == 0
    boot = Boot.read(kit.boots()[-1])
    kit.run("stop")
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"another": 1}')
    ranks = [
        replace(r, argv=tuple(str(other) if a == str(kit.model) else a for a in r.argv))
        if r.rank == 1
        else r
        for r in boot.ranks
    ]
    name = "20300101T000000-abcdef"
    folder = kit.state_folder / "boots" / name
    folder.mkdir()
    replace(boot, name=name, ranks=tuple(ranks)).write(folder)
    state = kit.state_folder / "state.json"
    argv = [sys.executable, "-m", "glmspark", "node", "supervise"]
    argv += ["--boot", str(folder), "--state", str(state)]
    done = subprocess.run(argv, env=kit.env(), check=False, timeout=60)
    assert done.returncode == 7
    failure = kit.state().failure
    assert failure is not None
    assert "the ranks do not run the same thing: model differs" in failure.message
    kit.assert_nothing_left()


def test_a_model_that_is_no_model(stub_kit: Make) -> None:
    kit = stub_kit()
    (kit.model / "config.json").unlink()
    done = kit.run("start")
    assert done.code == 7 and "holds no model" in done.err


def test_state_of_an_earlier_boot_of_the_machine_is_stale(stub_kit: Make) -> None:
    kit = stub_kit()
    kit.run("start")
    kit.run("stop")
    old = replace(kit.state(), phase="serving", kernel_boot="another")
    old.write(kit.state_folder / "state.json")
    status = json.loads(kit.run("status", "--json").out)
    assert (status["phase"], status["serves"]) == ("stale", False)
    assert "rebooted" in status["hint"]
    assert kit.run("start").code == 0


def test_a_reused_pid_is_never_killed(stub_kit: Make) -> None:
    kit = stub_kit()
    kit.run("start")
    kit.run("stop")
    bystander = subprocess.Popen(["sleep", "600"])
    reused = processes.Identity(bystander.pid, 1)
    old = replace(kit.state(), phase="serving", supervisor=reused, ranks={0: reused})
    old.write(kit.state_folder / "state.json")
    kit.run("stop")
    assert kit.run("start").code == 0
    kit.run("stop")
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot": 3}', "\0\0", "wrong types"])
def test_a_damaged_state_file_is_no_obstacle(stub_kit: Make, text: str) -> None:
    kit = stub_kit()
    kit.run("start")
    file = kit.state_folder / "state.json"
    if text == "wrong types":
        text = json.dumps({**json.loads(file.read_text()), "boot": ["a"]})
    file.write_text(text)
    assert kit.run("stop").code == 0
    kit.assert_nothing_left()
    assert kit.run("start").code == 0


def test_one_operation_at_a_time_across_checkouts(stub_kit: Make) -> None:
    from glmspark.locks import lock_file, operation_lock

    kit = stub_kit()
    kit.run("start")
    # Whoever has a kit of that name and rendezvous has another state folder.
    with operation_lock(lock_file("test", kit.master), "restart"):
        done = kit.run("stop")
    assert done.code == 5
    assert "another operation works on this kit: restart by" in done.err
    assert f"pid {os.getpid()}, in {Path.cwd()}" in done.err
    assert kit.run("stop").code == 0


def test_two_starts_at_once_make_one_kit(stub_kit: Make) -> None:
    kit = stub_kit(rank0={"load_s": 1.0})
    both = [kit.begin("start"), kit.begin("start")]
    codes = sorted(one.wait(60) for one in both)
    said = [one.communicate() for one in both]
    assert codes in ([0, 0], [0, 5]), said
    assert len({one.boot for one in kit.members()}) == 1
    assert kit.chat()[0] == 200


PHASES = ["check the node", "ranks launched", "load the model", "first completion"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_in_each_phase_leaves_nothing(
    stub_kit: Make, phase: str, number: signal.Signals
) -> None:
    scripts = {"rank0": {"load_s": 1.5, "answer_s": 20}}
    kit = stub_kit(**scripts)
    start = kit.begin("start")
    assert start.stderr is not None
    for line in start.stderr:
        if phase in line:
            break
    start.send_signal(number)
    out, err = start.communicate(timeout=60)
    assert start.returncode == 130, err
    assert out == "" and err.rstrip().endswith("interrupted")
    kit.assert_nothing_left()
    kit.scripts.clear()
    kit.write()
    assert kit.run("start").code == 0


def test_a_start_killed_outright_can_be_taken_up(stub_kit: Make) -> None:
    kit = stub_kit(rank0={"load_s": 2.0})
    start = kit.begin("start")
    assert start.stderr is not None
    for line in start.stderr:
        if "load the model" in line:
            break
    start.kill()
    start.communicate()
    done = kit.run("start")
    assert done.code == 0 and "already LIVE" in done.out


def test_stop_ends_a_start_that_is_under_way(stub_kit: Make) -> None:
    kit = stub_kit(rank1={"mute": True})
    start = kit.begin("start")
    assert start.stderr is not None
    for line in start.stderr:
        if "load the model" in line:
            break
    assert kit.run("stop").out == "test: stopped\n"
    _, err = start.communicate(timeout=30)
    assert start.returncode == 5 and "the start was stopped" in err
    kit.assert_nothing_left()


def test_no_room_for_state(stub_kit: Make, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=True
    )
    try:
        kit = stub_kit({"paths.state": f'"{small}"'})
        done = kit.run("start")
        assert done.code == 4
        assert "disk.state" in done.err and "MiB free for paths.state" in done.err
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.parametrize("where", ["/proc/nowhere", "/dev/null/state"])
def test_a_state_folder_that_cannot_be_made(stub_kit: Make, where: str) -> None:
    done = stub_kit({"paths.state": f'"{where}"'}).run("start")
    assert done.code == 3
    assert "cannot write to folder" in done.err and "GLMSPARK_PATHS_STATE" in done.err


def test_a_read_only_home(stub_kit: Make, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("a read-only mount needs root")
    home = tmp_path / "ro"
    home.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(home)], check=True
    )
    try:
        kit = stub_kit({"paths.state": f'"{home}/state"'})
        done = kit.run("start")
        assert done.code == 3 and "Read-only file system" in done.err
    finally:
        subprocess.run(["umount", str(home)], check=True)


def test_a_port_below_1024_or_in_use_by_us_alone_is_fine_on_restart(
    stub_kit: Make,
) -> None:
    kit = stub_kit()
    kit.run("start")
    with socket.create_connection(("127.0.0.1", kit.port)):
        assert kit.run("restart").code == 0
    assert kit.chat()[0] == 200
