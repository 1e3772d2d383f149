"""The kernels of this package, compiled: ``python -m vllm_exl3.build``.

exllamav3's pinned release is fetched by pip and checked by hash; only the translation
units that the plugin calls are compiled, beside its own. Objects are cached by content.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from vllm_exl3 import kernel_file
from vllm_exl3.errors import Exl3ConfigError, Exl3Error
from vllm_exl3.tables import Codebook

HERE = Path(__file__).parent
CSRC = HERE / "csrc"
SOURCES = HERE / "sources.json"
UNITS = (
    "quant/reconstruct.cu",
    "quant/hadamard.cu",
    "quant/exl3_devctx.cu",
    "quant/exl3_moe.cu",
    "quant/exl3_moe_coop.cu",
    "quant/comp_units/exl3_moe_inst_k{bits}_cb{codebook}.cu",
    "quant/comp_units/exl3_moe_coop_inst_k{bits}.cu",
)
# exllamav3's own flags; fast_math is part of how its kernels round.
NVCC_FLAGS = "-O3 --use_fast_math -std=c++20 --expt-relaxed-constexpr"
NVCC_FLAGS += " -Xcompiler -fPIC -Xcudafe --diag_suppress=177"
NVCC_FLAGS += " -Xcudafe --diag_suppress=20012"
LIBRARIES = ("c10", "torch", "torch_cpu", "torch_python", "c10_cuda", "torch_cuda")


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


@dataclass(frozen=True)
class Options:
    """What to build: rate and codebook of the kernels, and how wide."""

    bits: int
    codebook: Codebook
    jobs: int


def fetch(folder: Path) -> Path:
    """exllamav3's pinned file, downloaded into ``folder`` by pip and hash-checked."""
    pin = json.loads(SOURCES.read_text())
    wanted = folder / str(pin["file"])
    if not wanted.exists():
        requirement = f"{pin['name']}=={pin['version']}"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        run([*command, "--dest", str(folder), requirement], "downloading exllamav3")
    check_hash(wanted, pin["sha256"])
    return wanted


def check_hash(path: Path, sha256: str) -> None:
    """Nothing, or an ``Exl3Error`` when a file is not the pinned one."""
    seen = hashlib.sha256(path.read_bytes()).hexdigest()
    if seen != sha256:
        raise Exl3Error(
            f"{path} has sha256 {seen}, needed {sha256}",
            hint="delete it and build again, or pass --source with the pinned file",
        )


def patches_in(folder: Path) -> list[Path]:
    """The patches of a folder; ``Exl3ConfigError`` when it holds none.

    An installed package has none beside it, and unpatched kernels would clamp SwiGLU
    differently without a word.
    """
    found = sorted(folder.glob("*.patch"))
    if not found:
        raise Exl3ConfigError(
            f"{folder} holds no patch for exllamav3",
            hint="pass --patches with the folder overlay/exllamav3 of the sources",
        )
    return found


def unpack(archive: Path, folder: Path, patches: list[Path]) -> Path:
    """The extension's source folder, patched; each patch must apply exactly."""
    with zipfile.ZipFile(archive) as file:
        file.extractall(folder)
    for patch in sorted(patches):
        command = ["patch", "--strip=1", "--fuzz=0", "--batch", f"--input={patch}"]
        run([*command, f"--directory={folder}"], f"applying {patch.name}")
    subfolder: str = json.loads(SOURCES.read_text())["subfolder"]
    return folder / subfolder


def stub_source(options: Options) -> str:
    """C++ that answers "not built" (null) for every kernel that is left out.

    exllamav3's tables name an instance of each rate; the bindings refuse other rates
    before any table is read.
    """
    lines = [
        '#include "quant/comp_units/exl3_moe_instances.cuh"',
        '#include "quant/comp_units/exl3_moe_coop_instances.cuh"',
    ]
    kernel = "fp_exl3_moe_kernel exl3_moe_kernel_{}() {{ return nullptr; }}"
    coop = "MoeCoopKernel exl3_moe_coop_kernel_{} {{ return {{}}; }}"
    for bits in range(9):
        for codebook in (1, 2):
            if (bits, codebook) == (options.bits, int(options.codebook)):
                continue
            lines += [kernel.format(f"k{bits}_n{n}_cb{codebook}") for n in (128, 256)]
        lines += [kernel.format(f"k{bits}_n128_cb2_m{m}") for m in (32, 64)]
    for bits in (1, 2, 3):
        tails = ("n128_cb2", "n256_cb2", "n128_cb2_m32", "n128_cb2_m64")
        lines += [kernel.format(f"h{bits}_{tail}") for tail in tails]
        lines += [
            coop.format(f"a_h{bits}(int, bool)"),
            coop.format(f"b_h{bits}(bool)"),
        ]
    for bits in sorted(set(range(1, 9)) - {options.bits}):
        lines += [
            coop.format(f"a_k{bits}(int, int, bool)"),
            coop.format(f"b_k{bits}(int, bool)"),
        ]
    return "\n".join(lines) + "\n"


def units(source: Path, generated: Path, options: Options) -> list[Path]:
    """The translation units of a build."""
    names = [u.format(bits=options.bits, codebook=int(options.codebook)) for u in UNITS]
    own = sorted(p for p in CSRC.iterdir() if p.suffix in {".cu", ".cpp"})
    stubs = generated / "stubs.cu"
    stubs.write_text(stub_source(options))
    return [*(source / name for name in names), *own, stubs]


def fingerprint(source: Path, tools: Toolchain, options: Options) -> str:
    """A hash of everything that an object's content depends on."""
    digest = hashlib.sha256()
    version = run([tools.nvcc, "--version"], "asking nvcc for its version")
    facts = [
        version,
        tools.torch_version,
        *tools.gencode(),
        *NVCC_FLAGS.split(),
        repr(options),
    ]
    digest.update("\0".join(facts).encode())
    for folder in (source, CSRC):
        for path in sorted(folder.rglob("*.*")):
            if path.suffix in {".cu", ".cuh", ".h", ".cpp"}:
                digest.update(str(path.relative_to(folder)).encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def compile_command(
    unit: Path, out: Path, source: Path, tools: Toolchain, options: Options
) -> list[str]:
    """The nvcc command of one unit."""
    includes = (CSRC, source, *tools.includes)
    defines = {
        "TORCH_EXTENSION_NAME": kernel_file.MODULE,
        "EXL3_BITS": options.bits,
        "EXL3_CODEBOOK": int(options.codebook),
    }
    command = [tools.nvcc, *NVCC_FLAGS.split(), *tools.gencode()]
    command += [f"-D{name}={value}" for name, value in defines.items()]
    command += [f"-I{path}" for path in includes]
    # Last and as system headers: real CUDA library headers win over the stand-ins.
    command += ["-isystem", str(CSRC / "cuda_stubs")]
    language = ["-x", "cu"] if unit.suffix == ".cu" else []
    return [*command, *language, "-c", str(unit), "-o", str(out)]


def build(
    source: Path, cache: Path, out: Path, tools: Toolchain, options: Options
) -> Path:
    """The compiled extension in ``out``, with the manifest that its loader checks."""
    mark = fingerprint(source, tools, options)
    objects = cache / mark[:32]
    objects.mkdir(parents=True, exist_ok=True)
    jobs = [(u, objects / f"{u.name}.o") for u in units(source, objects, options)]

    def compile_one(job: tuple[Path, Path]) -> None:
        unit, target = job
        if target.exists():
            return
        part = target.with_suffix(".part")
        command = compile_command(unit, part, source, tools, options)
        run(command, f"compiling {unit.name}")
        part.rename(target)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(compile_one, jobs))
    out.mkdir(parents=True, exist_ok=True)
    library = out / kernel_file.LIBRARY
    link = [tools.nvcc, "-shared", *tools.gencode(), *(str(o) for _, o in jobs)]
    for folder in tools.libraries:
        link += [f"-L{folder}", "-Xlinker", f"-rpath={folder}"]
        # A CPU build of torch has no CUDA libraries; such a link is for checking only.
        link += [f"-l{n}" for n in LIBRARIES if (folder / f"lib{n}.so").exists()]
    run([*link, "-o", str(library)], "linking")
    kernel_file.Manifest(
        tools.torch_version, tools.archs, options.bits, int(options.codebook), mark
    ).write(out)
    return library


def run(command: list[str], what: str) -> str:
    """A command's stdout; ``Exl3Error`` with the end of its stderr when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Exl3Error(f"{what}: no program {command[0]}", exit_code=5) from error
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
        raise Exl3Error(
            f"{what} failed with status {done.returncode}:\n{tail}", exit_code=5
        )
    return done.stdout


def toolchain(nvcc: str, archs: str) -> Toolchain:
    """The toolchain of this Python's torch; archs as in TORCH_CUDA_ARCH_LIST."""
    import torch

    wanted = tuple(archs.replace(";", " ").split())
    if not wanted or any(not a.rstrip("af").replace(".", "").isdigit() for a in wanted):
        raise Exl3ConfigError(
            f"arch list {archs!r} is no list of capabilities such as 12.1a"
        )
    base = Path(torch.__file__).parent
    includes = [base / "include", base / "include/torch/csrc/api/include"]
    includes.append(Path(sysconfig.get_paths()["include"]))
    site = base.parent / "nvidia"
    includes += sorted(p for p in site.glob("*/include") if p.is_dir())
    return Toolchain(nvcc, wanted, torch.__version__, tuple(includes), (base / "lib",))


def main(argv: list[str] | None = None) -> int:
    """The command line; 0 when the library's path is on stdout."""
    parser = argparse.ArgumentParser("vllm_exl3.build", description=__doc__)
    default = os.environ.get("TORCH_CUDA_ARCH_LIST", "12.1a")
    parser.add_argument("--arch", default=default, help="capabilities (%(default)s)")
    parser.add_argument("--nvcc", default=os.environ.get("NVCC", "nvcc"))
    parser.add_argument("--source", type=Path, help="exllamav3's pinned wheel")
    parser.add_argument("--patches", type=Path, default=HERE.parent / "exllamav3")
    parser.add_argument("--cache", type=Path, default=kernel_file.cache_folder())
    parser.add_argument("--out", type=Path, default=kernel_file.default_folder())
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--codebook", default="mcg")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args(argv)
    try:
        tools = toolchain(args.nvcc, args.arch)
        options = Options(args.bits, Codebook.from_name(args.codebook), args.jobs)
        args.cache.mkdir(parents=True, exist_ok=True)
        archive = args.source or fetch(args.cache)
        check_hash(archive, json.loads(SOURCES.read_text())["sha256"])
        with tempfile.TemporaryDirectory() as folder:
            patches = patches_in(args.patches)
            source = unpack(archive, Path(folder), patches)
            library = build(source, args.cache, args.out, tools, options)
    except Exl3Error as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    sys.stdout.write(f"{library}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
