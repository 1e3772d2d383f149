"""Milliseconds to render all ranks' command lines, and the whole plan of a start.

JSON on stdout. The target is below 50 ms for the largest kit, from what the nodes
answered to the plan. Run with python/ on PYTHONPATH.
"""

import json
import statistics
import sys
import time

from glmspark.plan import Goal, build_plan
from glmspark.ranks import EnginePaths
from glmspark.schema import Kit
from glmspark.serving.kit import KitShape, NodeShape, Serving
from glmspark.serving.model import shipped_config
from glmspark.serving.profiles import load_profile
from glmspark.serving.render import render
from glmspark.serving.topology import TOPOLOGIES

ROUNDS = 30


def shape_of(topology):
    nodes = tuple(
        NodeShape(
            f"n{i}",
            f"10.0.0.{i + 1}",
            "eth0",
            ("mlx5_0:1",),
            3,
            130 * 10**9,
            126 * 10**9,
        )
        for i in range(topology.ranks)
    )
    return KitShape(topology.name, nodes)


def kit_of(topology):
    return Kit.model_validate(
        {
            "topology": topology.name,
            "runtime": "nix",
            "weights": {"drafter": "dflash2"},
            "nodes": [
                {"name": f"n{i}", "ssh": f"n{i}", "fabric": f"10.0.0.{i + 1}"}
                for i in range(topology.ranks)
            ],
        }
    )


def timed(work):
    """Median and worst of some rounds, in milliseconds, after one to warm up."""
    work()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - start))
    return {
        "median_ms": round(statistics.median(times), 2),
        "worst_ms": round(max(times), 2),
    }


def main() -> None:
    serving = Serving(
        "/target",
        "/drafter",
        shipped_config("glm-5.3-flash"),
        shipped_config("dflash2"),
        "/cache",
        padded_draft_dir="/padded",
    )
    program = f"/nix/store/{'0' * 32}-vllm-gb10/bin/vllm"
    paths = EnginePaths((program,), "/target", "/cache", "/key", "/drafter", "/padded")
    profile = load_profile("default")
    found = {}
    for topo in TOPOLOGIES.values():
        shape, kit = shape_of(topo), kit_of(topo)
        found[topo.name] = {
            "render": timed(lambda s=shape: render(s, profile, serving)),
            "plan": timed(lambda k=kit, s=shape: build_plan(k, Goal.START, paths, s)),
        }
    json.dump({"target_ms": 50, "rounds": ROUNDS, **found}, sys.stdout)


if __name__ == "__main__":
    main()
