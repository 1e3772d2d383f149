"""What goes wrong with hosts and cables while a kit starts or serves.

After each: no rank on any host, the exit code, the first cause, and the next start
works. The stub engine runs the ranks; real sshd, cables, file systems and cgroups.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.kits import wait_for
from tests.cluster.spread import Spread

pytestmark = [pytest.mark.netns, pytest.mark.timeout(240)]
Make = Callable[..., Spread]


def serving(spread: Make, **settings: str) -> Spread:
    kit = spread(**settings)
    done = kit.run("start")
    assert done.code == 0, done.err
    return kit


def gone(kit: Spread, limit_s: float = 15) -> float:
    return wait_for(
        lambda: not kit.ranks(kit.head) and not kit.ranks(kit.worker), limit_s
    )


@pytest.mark.cases(29, 34)
@pytest.mark.parametrize(
    ("end", "device"),
    [
        ("worker", "c7"),
        pytest.param("head", "c0", marks=pytest.mark.full),
    ],
)
def test_a_cable_that_goes_down_while_serving_ends_the_kit_by_name(
    spread: Make, end: str, device: str
) -> None:
    kit = serving(spread)
    host = kit.worker if end == "worker" else kit.head
    host.run("ip", "link", "set", device, "down")
    gone(kit)
    said = kit.failure()
    # Both ends see it; the first to say so is named.
    assert "the fabric: device c" in said and "is down" in said, said
    assert kit.run("start").code == 4
    host.run("ip", "link", "set", device, "up")
    kit.assert_serves_again()


@pytest.mark.full
@pytest.mark.parametrize("pick", [min, max], ids=["rank", "engine process"])
def test_the_heads_rank_or_its_engine_dies(
    spread: Make, pick: Callable[[list[int]], int]
) -> None:
    kit = serving(spread)
    os.kill(pick(kit.ranks(kit.head)[0]), 9)
    assert gone(kit) < 10
    assert "rank 0" in kit.failure()
    kit.assert_serves_again()


@pytest.mark.cases(42, 87, 93)
def test_an_sshd_that_goes_takes_its_rank_along_and_nothing_else_is_left(
    spread: Make,
) -> None:
    kit = serving(spread)
    kit.worker.kill_sshd()
    gone(kit, 40)
    assert "lost the connection to spark-2" in kit.failure()
    done = kit.run("start")
    assert done.code == 4 and "[spark-2] node.reach" in done.err
    kit.worker.boot()
    kit.assert_serves_again()


@pytest.mark.cases(79, 87, 108)
def test_a_head_that_was_rebooted_starts_again(spread: Make) -> None:
    kit = serving(spread)
    kit.head.kill_all()  # all processes gone, the state files left
    kit.head.boot()
    wait_for(lambda: not kit.ranks(kit.worker), 25)
    status = kit.run("status")
    assert status.code == 6 and "test: serving" not in status.out
    kit.assert_serves_again()


PHASES = ("look at every node", "ranks launched", "load the model", "first completion")


@pytest.mark.parametrize(
    "phase",
    [
        pytest.param(phase, marks=() if phase == "load the model" else pytest.mark.full)
        for phase in PHASES
    ],
)
def test_ctrl_c_in_each_phase_leaves_nothing_on_any_host(
    spread: Make, phase: str
) -> None:
    kit = spread()
    kit.scripts = {"0": {"load_s": 1.5, "answer_s": 20}}
    kit.write()
    start = kit.begin("start")
    assert start.stderr is not None
    for line in start.stderr:
        if phase in line:
            break
    for pid in kit.head.pids():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"glmspark" in words and b"start" in words:
            os.kill(pid, signal.SIGINT)
    out, err = start.communicate(timeout=60)
    assert start.returncode == 130, err
    assert out == "" and err.rstrip().endswith("interrupted")
    kit.assert_nothing_left()
    kit.scripts = {}
    kit.write()
    kit.assert_serves_again()


@pytest.mark.full
@pytest.mark.cases(99)
def test_a_port_that_is_taken_on_the_head_is_named_before_anything_starts(
    spread: Make,
) -> None:
    kit = spread()
    code = "import socket; s = socket.create_server(('', 29555)); s.accept()"
    argv = ["ip", "netns", "exec", kit.head.netns, "python3", "-c", code]
    with subprocess.Popen(argv) as stranger:
        wait_for(lambda: "29555" in kit.head.run("ss", "-tln").stdout)
        done = kit.run("start")
        stranger.kill()
    assert done.code == 4 and "[spark-1] port.master: port 29555 is taken" in done.err
    kit.assert_serves_again()


@pytest.mark.full
@pytest.mark.cases(56)
def test_a_full_disk_on_the_other_host_is_found_before_anything_starts(
    spread: Make, open_folder: Path
) -> None:
    cache = open_folder / "lab/cache"

    def prepare(name: str) -> str:
        mount = f"mkdir -p {cache} && mount -t tmpfs -o size=300m tmpfs {cache}"
        return mount if name == "spark-2" else ""

    kit = spread(prepare=prepare)
    kit.on("spark-2", "fallocate", "-l", "280M", str(cache / "full"))
    done = kit.run("start")
    assert done.code == 4, done.err
    assert "[spark-2] disk.state: 20 MiB free for paths.cache" in done.err
    kit.assert_nothing_left()
    kit.on("spark-2", "rm", str(cache / "full"))
    kit.assert_serves_again()


@pytest.mark.full
@pytest.mark.cases(56)
def test_a_disk_that_fills_while_serving_keeps_no_stop_from_working(
    spread: Make, open_folder: Path
) -> None:
    state = open_folder / "lab/state/test"

    def prepare(name: str) -> str:
        mount = f"mkdir -p {state} && mount -t tmpfs -o size=300m tmpfs {state}"
        return mount if name == "spark-1" else ""

    kit = spread(prepare=prepare)
    assert kit.run("start").code == 0
    kit.on("spark-1", "sh", "-c", f"head -c 400000000 /dev/zero > {state}/full; true")
    assert "test: serving" in kit.run("status").out
    done = kit.run("stop")
    assert done.code == 0, done.err
    kit.assert_nothing_left()
    assert kit.run("start").code == 4
    kit.on("spark-1", "rm", f"{state}/full")
    kit.assert_serves_again()


@pytest.fixture
def memory_group() -> Iterator[Callable[[int, int], None]]:
    """Puts a process into a cgroup of so many bytes; for both versions of cgroups."""
    for base, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        folder = base / f"ghA{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        if (folder / limit).exists():
            break
        folder.rmdir()
    else:
        pytest.skip("needs a memory cgroup that can be made here")

    def put(pid: int, size: int) -> None:
        (folder / limit).write_text(str(size))
        swap = folder / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
        (folder / "cgroup.procs").write_text(str(pid))

    yield put
    for pid in (folder / "cgroup.procs").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    for _ in range(50):
        try:
            folder.rmdir()
            return
        except OSError:
            time.sleep(0.1)


@pytest.mark.full
@pytest.mark.cases(78, 85)
def test_a_host_out_of_memory_is_told_from_a_mere_kill(
    spread: Make, memory_group: Callable[[int, int], None]
) -> None:
    kit = spread()
    assert kit.worker.sshd is not None
    memory_group(kit.worker.sshd._listener(), 200 << 20)
    kit.scripts = {"0": {"load_s": 4.0}, "1": {"hog_bytes": 400 << 20}}
    kit.write()
    done = kit.run("start")
    assert done.code == 5, done.err
    assert "on spark-2: the kernel killed it for lack of memory" in done.err
    assert "glmspark doctor names the largest programs" in done.err
    kit.assert_nothing_left()
    kit.scripts = {}
    kit.write()
    kit.assert_serves_again()


@pytest.mark.full
@pytest.mark.cases(125)
def test_a_clock_that_is_ahead_is_a_warning_and_the_logs_stay_in_order(
    spread: Make,
) -> None:
    found = list(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not found:
        pytest.skip("needs libfaketime (apt install faketime)")
    kit = spread()
    sshd = kit.worker.sshd
    assert sshd is not None
    path = shutil.which("python3", path="/usr/bin") or "/usr/bin/python3"
    assert path
    sshd.options = (f"SetEnv LD_PRELOAD={found[0]} FAKETIME=+600s",)
    sshd.restart()
    done = kit.run("doctor")
    assert "warning: [spark-2] host.clock: its clock is 600 s ahead" in done.out
    assert done.code == 0
    kit.assert_serves_again()
    clock = next(kit.state_folder.glob("boots/*/rank-1.clock"))
    assert 595 < float(clock.read_text()) < 605
