"""How long the reference decoder takes for a 4096x2048 matrix; JSON on stdout."""

from __future__ import annotations

import json
import sys
import time

import torch
from vllm_exl3.format import Exl3Linear
from vllm_exl3.tables import Codebook


def main() -> None:
    """Decode at K = 1…8 on one thread; the median of three, after one warm-up."""
    torch.set_num_threads(1)
    seconds = {}
    for bits in range(1, 9):
        shape = (256, 128, 16 * bits)
        layer = Exl3Linear(
            torch.randint(-32768, 32768, shape, dtype=torch.int16),
            torch.ones(4096, dtype=torch.float16),
            torch.ones(2048, dtype=torch.float16),
            Codebook.MCG,
        )
        layer.dense()
        times = []
        for _ in range(3):
            start = time.perf_counter()
            layer.dense()
            times.append(time.perf_counter() - start)
        seconds[bits] = round(sorted(times)[1], 3)
    result = {"matrix": [4096, 2048], "threads": 1, "dense_s_by_bits": seconds}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
