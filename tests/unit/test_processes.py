"""Processes: who they are for certain, what is ours, and how they are ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from glmspark import processes
from glmspark.processes import Identity, identity, marked, send


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    env = {**os.environ, "GLMSPARK_BOOT": "unit-boot", "GLMSPARK_RANK": "3"}
    child = subprocess.Popen(["sleep", "600"], env=env)
    yield child
    child.kill()
    child.wait()


def test_identity_is_pid_and_start(sleeper: subprocess.Popen[bytes]) -> None:
    who = identity(sleeper.pid)
    assert who is not None and who.is_alive
    assert not Identity(who.pid, who.start + 1).is_alive
    assert identity(2**22 + 1) is None


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen(["sleep", "600"])
    who = identity(child.pid)
    assert who is not None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not who.is_alive
    child.wait()


def test_marked_finds_ours_and_nobody_else(sleeper: subprocess.Popen[bytes]) -> None:
    found = marked("unit-boot")
    assert [one.who.pid for one in found] == [sleeper.pid]
    assert (found[0].rank, found[0].title) == (3, "sleep 600")
    assert marked("another-boot") == []


def test_a_signal_reaches_the_very_process_only(
    sleeper: subprocess.Popen[bytes],
) -> None:
    who = identity(sleeper.pid)
    assert who is not None
    assert not send(Identity(who.pid, who.start + 1), signal.SIGKILL)
    assert sleeper.poll() is None
    assert send(who, signal.SIGKILL)
    assert sleeper.wait() == -signal.SIGKILL
    assert not send(who, signal.SIGKILL)


def test_a_name_with_brackets_and_blanks_is_parsed(tmp_path: Path) -> None:
    name = tmp_path / "a) (b"
    name.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(name), "600"])
    stat = processes.read_stat(child.pid)
    child.kill()
    child.wait()
    assert stat is not None and stat.parent == os.getpid()


def test_counters_of_this_process_grow() -> None:
    before = processes.io_bytes(os.getpid())
    Path("/proc/self/status").read_text()
    assert processes.io_bytes(os.getpid()) > before
    assert processes.pss_bytes(os.getpid()) > 1 << 20
    assert processes.pss_bytes(2**22 + 1) == 0


def test_shared_segments_are_those_that_are_mapped() -> None:
    code = (
        "import mmap, os, sys\n"
        "fd = os.open('/dev/shm/glmspark-unit', os.O_RDWR | os.O_CREAT)\n"
        "os.ftruncate(fd, 4096); m = mmap.mmap(fd, 4096); print('up', flush=True)\n"
        "sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    segment = Path("/dev/shm/glmspark-unit")  # noqa: S108
    try:
        assert processes.shared_segments([child.pid]) == {segment}
        assert segment not in processes.shared_segments([os.getpid()])
    finally:
        child.communicate(b"")
        segment.unlink()
