"""``peak.py FILE PROGRAM…`` runs a program and writes what it used to FILE.

Three numbers: peak memory in KiB, user seconds, system seconds.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    code = subprocess.run(sys.argv[2:], check=False).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = f"{used.ru_maxrss} {used.ru_utime:.2f} {used.ru_stime:.2f}"
    Path(sys.argv[1]).write_text(words)
    sys.exit(code)
