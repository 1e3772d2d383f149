"""``peak.py FILE PROGRAM…`` runs a program and writes its peak memory (KiB) to FILE."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    code = subprocess.run(sys.argv[2:], check=False).returncode
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    Path(sys.argv[1]).write_text(str(peak))
    sys.exit(code)
