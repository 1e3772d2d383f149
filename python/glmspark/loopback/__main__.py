"""``python -m glmspark.loopback FOLDER``: build the tiny model there if it is not."""

from __future__ import annotations

import sys
from pathlib import Path

from glmspark.loopback.model import build_tiny_model

if __name__ == "__main__":
    build_tiny_model(Path(sys.argv[1]))
