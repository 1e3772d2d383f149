"""One vLLM process that answers all test files of this folder.

Reads a line of JSON ``{"ask": module, "cases": [...]}`` at a time and writes the
answers as one line; vLLM is imported once. ``module`` is one of the vllm_*_oracle
files beside this one, whose ``answers(cases)`` is called.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def main() -> None:
    # vLLM may print; answers go to the stream that only this file holds.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        module = importlib.import_module(f"vllm_{asked['ask']}_oracle")
        json.dump(module.answers(asked["cases"]), out, default=str)
        out.write("\n")
        out.flush()


if __name__ == "__main__":
    main()
