"""The build of ``python -m vllm_exl3.build`` for a torch that is not imported.

build_kernels.py SITE WHEEL PATCHES OUT: SITE is a site-packages with torch's wheel and
NVIDIA's compiler wheels. torch's own import wants every CUDA library and a driver,
which compiling does not; its version and folders are read from its files instead.
"""

from __future__ import annotations

import os
import runpy
import sys
import sysconfig
import tempfile
from pathlib import Path

from vllm_exl3.build import Options, build
from vllm_exl3.tables import Codebook
from vllm_exl3.toolchain import Toolchain
from vllm_exl3.upstream import check_hash, unpack


def toolchain(site: Path, arch: str) -> Toolchain:
    """nvcc, headers and libraries below ``site`` for the one architecture."""
    torch = site / "torch"
    version: str = runpy.run_path(str(torch / "version.py"))["__version__"]
    includes = (
        torch / "include",
        torch / "include/torch/csrc/api/include",
        Path(sysconfig.get_paths()["include"]),
        site / "nvidia/cu13/include",
    )
    nvcc = str(site / "nvidia/cu13/bin/nvcc")
    return Toolchain(nvcc, (arch,), version, includes, (torch / "lib",))


def main() -> None:
    """Build as the arguments say, for $TORCH_CUDA_ARCH_LIST on $NIX_BUILD_CORES."""
    site, wheel, patches, out = map(Path, sys.argv[1:])
    jobs = int(os.environ.get("NIX_BUILD_CORES", "1")) or os.cpu_count() or 1
    check_hash(wheel)
    with tempfile.TemporaryDirectory() as folder:
        source = unpack(wheel, Path(folder), sorted(patches.glob("*.patch")))
        options = Options(4, Codebook.from_name("mcg"), jobs)
        tools = toolchain(site, os.environ["TORCH_CUDA_ARCH_LIST"])
        build(source, Path(folder) / "objects", out, tools, options)


if __name__ == "__main__":
    main()
