"""What `start` takes to bring a closure to a host, against `nix copy`, as JSON.

Run as root: python -m tests.bench.bench_bring [MB] [repeats]. Two namespaces with a
store each; the worker's store is emptied before each copy. ``ratio`` is plain over ours
(medians): 1 is as fast, 0.9 the target.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.cluster.hosts import Client, Lab
from tests.cluster.nixhosts import NixHosts, mount_point
from tests.cluster.spread import Spread
from tests.nix.check import default_cache
from tests.nix.get_nix import get_nix

OURS = """
import sys, time
from glmspark.bringing import Bringer, wanted_of
from glmspark.console import PlainNarrator
from glmspark.doctor import asker, examine
from glmspark.engine import engine_paths
from glmspark.paths import kit_paths
from glmspark.settings import load_settings
kit = load_settings(sys.argv[1]).kit
paths = kit_paths(kit)
program = engine_paths(kit, paths).program
wanted = wanted_of(kit, paths, program)
views = examine(kit, asker(kit, paths), program, wanted=wanted).views
began = time.monotonic()
Bringer(kit, paths, wanted.closure, PlainNarrator()).bring(views)
print(time.monotonic() - began)
"""


def empty(kit: Spread) -> None:
    """Take the closure from the worker's store."""
    kit.on("spark-2", "rm", "-rf", str(kit.state_folder / "closures"))
    kit.on("spark-2", "nix-store", "--gc")


def ours(kit: Spread) -> float:
    """Seconds of the tool's step, its checks at the end included."""
    env = {**kit.extra_env, "PYTHONPATH": "python", "PATH": kit.path}
    words = [f"{name}={value}" for name, value in env.items()]
    argv = [sys.executable, "-c", OURS, str(kit.root / "kit.toml")]
    here = str(Path(__file__).resolve().parents[2])
    done = kit.on("spark-1", "env", "-C", here, *words, *argv)
    assert done.code == 0, done.err
    return float(done.out)


def plain(kit: Spread) -> float:
    """Seconds of `nix copy` alone, over the same address."""
    known = f"-oUserKnownHostsFile={kit.root / 'state/known_hosts'}"
    ssh = f"-F {kit.lab.client.config} {known} -oHostName=10.66.1.2"
    ssh += f" -oHostKeyAlias={kit.worker.address}"
    daemon = kit.nix.program.with_name("nix-daemon")
    target = f"ssh-ng://spark-2?remote-program={daemon}"
    words = [f"{k}={v}" for k, v in kit.extra_env.items()]
    copy = ["nix", "copy", "--no-check-sigs", "--to", target, kit.closure]
    began = time.monotonic()
    done = kit.on("spark-1", "env", *words, f"NIX_SSHOPTS={ssh}", *copy)
    assert done.code == 0, done.err
    return time.monotonic() - began


def measure(kit: Spread, repeats: int) -> dict[str, Any]:
    """The times of both, taken in turn."""
    times: dict[str, list[float]] = {"ours_s": [], "plain_s": []}
    for _ in range(repeats):
        for name, act in (("ours_s", ours), ("plain_s", plain)):
            empty(kit)
            times[name].append(act(kit))
    middle = {name: statistics.median(found) for name, found in times.items()}
    return {**times, "ratio": middle["plain_s"] / middle["ours_s"]}


def main() -> None:
    """Print the measurement."""
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    program = get_nix(default_cache() / "nix")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name, mount_point():
        hosts = NixHosts(Path(name), program)
        lab = Lab(Path(name), Client(Path(name) / "client"), prepare=hosts.prepare)
        with contextlib.closing(lab):
            kit = Spread(lab.open(("spark-1", "spark-2")), "stub", {})
            hosts.adopt(kit)
            kit.nix = hosts
            kit.closure = hosts.build(kit, size * 1_000_000)
            kit.write(runtime='"nix"', paths__engine=f'"{kit.closure}/bin/vllm"')
            result = measure(kit, repeats)
    sys.stdout.write(json.dumps({"megabytes": size, **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
