"""One build in a process of its own: ``driver.py JOB.json``, outcome as JSON.

It hands in what no user can: the CPU in the place of the GPU, small pieces, a number of
ranks that serve, and a place to wait for the signal that ends it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from glmspark.boost import build as building
from glmspark.boost import dense
from glmspark.boost.guard import Guard
from glmspark.boost.job import Job
from glmspark.boost.ranges import Patience
from glmspark.errors import GlmSparkError
from glmspark.serving import boost, profiles
from glmspark.weights import trouble
from glmspark.weights.progress import PlainProgress
from glmspark.weights.store import Store


def say(data: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(data) + "\n")


def main(spec: dict[str, Any]) -> int:
    dense.PIECE_BYTES = spec["piece_bytes"]
    boost.MERGE_GAP_BYTES = spec["gap_bytes"]
    trouble.backoff_s = lambda failures, _asked: 0.1 * failures
    serving = Path(spec["serving"])  # holds the number of ranks, once there is one
    guard = Guard(
        Path(spec["states"]),
        lambda: int(serving.read_text()) if serving.exists() else 0,
        has_cuda=spec["has_cuda"],
    )
    job = Job(
        profile=profiles.parse(spec["name"], Path(spec["profile"]).read_text()),
        base=spec["base"],
        store=Store.open(Path(spec["store"])),
        python=sys.executable,
        guard=guard,
        progress=PlainProgress(),
        with_drafter=spec["with_drafter"],
        patience=Patience(attempts=spec["attempts"], stall_s=1),
        device=spec["device"],
        env=dict(os.environ),
    )
    began = time.monotonic()
    try:
        if spec["dry_run"]:
            say({"steps": building.steps(job)})
            return 0
        outcome = building.build(job)
    except GlmSparkError as error:
        say({"error": str(error), "hint": error.hint})
        return error.exit_code
    data = outcome.to_json(job.store.root)
    say(data | {"seconds": time.monotonic() - began})
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
