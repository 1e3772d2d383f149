"""``python -m glmspark.loopback FOLDER``: the loopback kit's model, made if need be."""

from __future__ import annotations

import sys
from pathlib import Path

from glmspark.loopback.exl3 import build_exl3_model

if __name__ == "__main__":
    try:
        build_exl3_model(Path(sys.argv[1]))
    except (OSError, ImportError) as error:
        sys.exit(f"cannot make the loopback model in {sys.argv[1]}: {error}")
