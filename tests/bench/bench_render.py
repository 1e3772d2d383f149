"""Milliseconds to render all ranks' command lines; JSON on stdout.

The target is below 50 ms for the largest kit. Run: python tests/bench/bench_render.py
with python/ on PYTHONPATH.
"""

import json
import statistics
import sys
import time

from glmspark.serving.kit import KitShape, NodeShape, Serving
from glmspark.serving.model import shipped_config
from glmspark.serving.profiles import load_profile
from glmspark.serving.render import render
from glmspark.serving.topology import TOPOLOGIES

ROUNDS = 30


def main() -> None:
    serving = Serving(
        "/target",
        "/drafter",
        shipped_config("glm-5.3-flash"),
        shipped_config("dflash2"),
        "/cache",
    )
    found = {}
    for topo in TOPOLOGIES.values():
        nodes = tuple(
            NodeShape(
                f"n{i}", f"10.0.0.{i}", "eth0", ("mlx5_0",), 3, 130 * 10**9, 126 * 10**9
            )
            for i in range(topo.ranks)
        )
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            render(KitShape(topo.name, nodes), load_profile("default"), serving)
            times.append(1e3 * (time.perf_counter() - start))
        found[topo.name] = {
            "median_ms": round(statistics.median(times), 2),
            "worst_ms": round(max(times), 2),
        }
    json.dump({"target_ms": 50, "rounds": ROUNDS, "render": found}, sys.stdout)


if __name__ == "__main__":
    main()
