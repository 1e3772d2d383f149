"""NVIDIA's compiler from pinned wheels, for machines that have none.

The pins are those that the engine's kernels are built with in Nix.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

PKGS = Path(__file__).parents[2] / "pkgs"
LOCKS = {
    "x86_64": PKGS / "exllamav3/wheels-cp312-x86_64.json",
    "aarch64": PKGS / "vllm-gb10/wheels-cp312-aarch64.json",
}
# What compiling needs: the compiler, its back end, and the headers.
NAMES = {
    "nvidia-cuda-cccl",
    "nvidia-cuda-crt",
    "nvidia-cuda-nvcc",
    "nvidia-cuda-runtime",
    "nvidia-nvvm",
}
NVCC = Path("nvidia/cu13/bin/nvcc")
# nvcc 13.5 with the headers of 13.0, which CUB refuses unless told.
FLAGS = "-DCCCL_DISABLE_CTK_COMPATIBILITY_CHECK"


def requirements(machine: str) -> str:
    """pip's requirement lines for ``machine``, each with its hash."""
    entries = json.loads(LOCKS[machine].read_text())
    lines = [
        f"{e['name']}=={e['version']} --hash=sha256:{e['sha256']}"
        for e in entries
        if e["name"] in NAMES
    ]
    return "\n".join(lines) + "\n"


def install(cache: Path) -> Path:
    """The path of an nvcc in ``cache``, installed there by pip unless it is."""
    folder = cache / "nvcc-13.5.37"
    if not (folder / NVCC).exists():
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            wanted = Path(scratch) / "requirements.txt"
            wanted.write_text(requirements(platform.machine()))
            fresh = Path(scratch) / "site"
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            command += ["--require-hashes", "--only-binary=:all:"]
            command += ["--requirement", str(wanted), "--target", str(fresh)]
            subprocess.run(command, check=True)
            fresh.rename(folder)
    return folder / NVCC
