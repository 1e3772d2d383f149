"""The compiler, and the torch that a build of the kernels is for."""

from __future__ import annotations

import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from vllm_exl3.errors import Exl3ConfigError, Exl3Error
from vllm_exl3.kernel_file import ARCH
from vllm_exl3.upstream import run

# Variables that change what nvcc makes, beside its arguments.
NVCC_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN")


@dataclass(frozen=True)
class Toolchain:
    """The compilers and torch that a build is for."""

    nvcc: str
    archs: tuple[str, ...]
    torch_version: str
    includes: tuple[Path, ...]
    libraries: tuple[Path, ...]

    def gencode(self) -> list[str]:
        """Nvcc's target flags for ``archs`` such as ``12.1a``; machine code only."""
        flags = []
        for arch in self.archs:
            name = arch.replace(".", "")
            flags.append(f"-gencode=arch=compute_{name},code=sm_{name}")
        return flags

    def identity(self) -> list[str]:
        """What of it an object depends on; asks nvcc for its version."""
        version = run(
            [self.nvcc, "--version"],
            "asking nvcc for its version",
            hint="install CUDA 13's compiler and pass --nvcc, or set NVCC",
        )
        settings = [f"{name}={os.environ.get(name, '')}" for name in NVCC_VARIABLES]
        return [version, self.torch_version, *self.gencode(), *settings]


def parse_archs(text: str) -> tuple[str, ...]:
    """The capabilities of a TORCH_CUDA_ARCH_LIST such as ``12.1a;9.0a``."""
    wanted = tuple(dict.fromkeys(text.replace(";", " ").split()))
    if not wanted or not all(ARCH.fullmatch(arch) for arch in wanted):
        raise Exl3ConfigError(
            f"arch list {text!r} is no list of capabilities such as 12.1a",
            hint="pass --arch 12.1a for a GB10, or set TORCH_CUDA_ARCH_LIST",
        )
    return wanted


def toolchain(nvcc: str, archs: str) -> Toolchain:
    """The toolchain of this Python's torch; archs as in TORCH_CUDA_ARCH_LIST."""
    wanted = parse_archs(archs)
    try:
        import torch
    except ImportError as error:
        raise Exl3Error(
            f"this Python cannot import torch: {error}",
            hint="run the build with the engine's Python",
            exit_code=5,
        ) from error
    base = Path(torch.__file__).parent
    includes = [base / "include", base / "include/torch/csrc/api/include"]
    includes.append(Path(sysconfig.get_paths()["include"]))
    site = base.parent / "nvidia"
    includes += sorted(p for p in site.glob("*/include") if p.is_dir())
    return Toolchain(nvcc, wanted, torch.__version__, tuple(includes), (base / "lib",))
