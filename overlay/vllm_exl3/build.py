"""The kernels of this package, compiled: ``python -m vllm_exl3.build``.

exllamav3's pinned release is fetched by pip and checked by hash; only the translation
units that the plugin calls are compiled, beside its own. Objects are cached by content.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from vllm_exl3 import kernel_file
from vllm_exl3.errors import Exl3ConfigError, exit_status
from vllm_exl3.files import locked, write_text
from vllm_exl3.tables import Codebook
from vllm_exl3.toolchain import Toolchain, toolchain
from vllm_exl3.upstream import check_hash, fetch, patches_in, run, unpack

HERE = Path(__file__).parent
CSRC = HERE / "csrc"
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
class Options:
    """What to build: rate and codebook of the kernels, and how many jobs at once.

    Raises ``Exl3ConfigError`` for a rate that exllamav3 has no kernels of.
    """

    bits: int
    codebook: Codebook
    jobs: int

    def __post_init__(self) -> None:
        name = self.codebook.label
        if self.bits not in range(1, 9) or self.codebook not in kernel_file.CODEBOOKS:
            raise Exl3ConfigError(
                f"no kernels for K = {self.bits}, codebook {name}",
                hint="they exist for K = 1 to 8 of mcg and mul1",
            )


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
    write_text(stubs, stub_source(options))
    return [*(source / name for name in names), *own, stubs]


def fingerprint(source: Path, tools: Toolchain, options: Options) -> str:
    """A hash of everything that an object's content depends on."""
    digest = hashlib.sha256()
    facts = [*tools.identity(), *NVCC_FLAGS.split(), repr(options.bits)]
    facts.append(options.codebook.name)
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


def compile_all(
    source: Path, objects: Path, tools: Toolchain, options: Options
) -> list[Path]:
    """The object of every unit; those that are in the folder are taken as they are."""

    def compile_one(unit: Path) -> Path:
        target = objects / f"{unit.name}.o"
        if not target.exists():
            part = target.with_suffix(".part")
            command = compile_command(unit, part, source, tools, options)
            run(command, f"compiling {unit.name}")
            part.rename(target)
        return target

    with ThreadPoolExecutor(options.jobs) as pool:
        return list(pool.map(compile_one, units(source, objects, options)))


def link(objects: list[Path], library: Path, tools: Toolchain) -> None:
    """The shared library of the objects."""
    command = [tools.nvcc, "-shared", *tools.gencode(), *map(str, objects)]
    for folder in tools.libraries:
        command += [f"-L{folder}", "-Xlinker", f"-rpath={folder}"]
        # A CPU build of torch has no CUDA libraries; such a link is for checking only.
        found = (n for n in LIBRARIES if (folder / f"lib{n}.so").exists())
        command += [f"-l{name}" for name in found]
    run([*command, "-o", str(library)], "linking")


def build(
    source: Path, cache: Path, out: Path, tools: Toolchain, options: Options
) -> Path:
    """The compiled extension in ``out``, with the manifest that its loader checks.

    One build at a time in a cache and in an output folder. There is no manifest while
    the library is replaced, so a build that is cut short leaves nothing that loads.
    """
    mark = fingerprint(source, tools, options)
    with locked(cache, out):
        objects = cache / mark[:32]
        objects.mkdir(exist_ok=True)
        made = compile_all(source, objects, tools, options)
        library = out / kernel_file.LIBRARY
        part = out / f"{kernel_file.LIBRARY}.part"
        link(made, part, tools)
        (out / kernel_file.MANIFEST).unlink(missing_ok=True)
        part.replace(library)
        kernel_file.Manifest(
            tools.torch_version, tools.archs, options.bits, int(options.codebook), mark
        ).write(out)
    return library


def positive(text: str) -> int:
    """A number of jobs, as argparse wants it."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser("vllm_exl3.build", description=__doc__)
    default = os.environ.get("TORCH_CUDA_ARCH_LIST", "12.1a")
    found.add_argument("--arch", default=default, help="capabilities (%(default)s)")
    found.add_argument("--nvcc", default=os.environ.get("NVCC", "nvcc"))
    found.add_argument("--source", type=Path, help="exllamav3's pinned wheel")
    found.add_argument("--patches", type=Path, default=HERE.parent / "exllamav3")
    found.add_argument("--cache", type=Path, default=kernel_file.cache_folder())
    found.add_argument("--out", type=Path, default=kernel_file.default_folder())
    found.add_argument("--bits", type=int, default=4, choices=range(1, 9))
    names = [codebook.label for codebook in kernel_file.CODEBOOKS]
    found.add_argument("--codebook", default="mcg", choices=names)
    found.add_argument("--jobs", type=positive, default=os.cpu_count() or 1)
    return found


def command(args: argparse.Namespace) -> None:
    """Build as the arguments say; the library's path goes to stdout."""
    tools = toolchain(args.nvcc, args.arch)
    options = Options(args.bits, Codebook.from_name(args.codebook), args.jobs)
    patches = patches_in(args.patches)
    tools.identity()  # no compiler: say so before anything is downloaded
    with locked(args.cache):
        archive = args.source or fetch(args.cache)
    check_hash(archive)
    with tempfile.TemporaryDirectory() as folder:
        source = unpack(archive, Path(folder), patches)
        library = build(source, args.cache, args.out, tools, options)
    sys.stdout.write(f"{library}\n")


def main(argv: list[str] | None = None) -> int:
    """The command line; 0 when the library's path is on stdout."""
    args = parser().parse_args(argv)
    return exit_status(lambda: command(args))


if __name__ == "__main__":
    sys.exit(main())
