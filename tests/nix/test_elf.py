"""The ELF reader, on libraries that gcc makes here."""

from __future__ import annotations

import importlib.util
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load() -> Any:
    """The module, which is no package."""
    spec = importlib.util.spec_from_file_location("elf", ROOT / "pkgs/vllm-gb10/elf.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["elf"] = module
    spec.loader.exec_module(module)
    return module


elf: Any = load()
needs_gcc = pytest.mark.skipif(
    shutil.which("gcc") is None, reason="gcc is missing: no library can be made"
)


def compile_library(target: Path, code: str, *flags: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            "gcc",
            "-shared",
            "-fPIC",
            "-o",
            str(target),
            "-x",
            "c",
            "-",
            "-x",
            "none",
            *flags,
        ],
        input=code,
        text=True,
        check=True,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """liba needs libb (found by $ORIGIN) and libdriver (not in the tree)."""
    root = tmp_path / "tree"
    compile_library(tmp_path / "libdriver.so.1", "int cuInit(void) { return 0; }",
                    "-Wl,-soname,libdriver.so.1")  # fmt: skip
    compile_library(root / "lib/libb.so", "int b(void) { return 2; }",
                    "-Wl,-soname,libb.so")  # fmt: skip
    compile_library(
        root / "sub/liba.so",
        "int cuInit(void); int b(void); int a(void) { return cuInit() + b(); }",
        *("-nostdlib", f"-L{root}/lib", "-lb", str(tmp_path / "libdriver.so.1")),
        "-Wl,-rpath,$ORIGIN/../lib",
    )
    return root


@needs_gcc
def test_missing_library_fails_and_is_named(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    libc = [Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib/aarch64-linux-gnu")]
    assert elf.resolve(tree, libc, []) == 1
    assert "MISSING libdriver.so.1: sub/liba.so" in capsys.readouterr().out


@needs_gcc
def test_allowed_library_passes(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    libc = [Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib/aarch64-linux-gnu")]
    assert elf.resolve(tree, libc, ["libdriver.so.*"]) == 0
    assert "2 ELF files" in capsys.readouterr().out


@needs_gcc
def test_undefined_symbols(tree: Path) -> None:
    names = elf.undefined_symbols((tree / "sub/liba.so").read_bytes())
    assert {"cuInit", "b"} <= names
    assert "a" not in names


def test_empty_tree_is_no_pass(tmp_path: Path) -> None:
    assert elf.resolve(tmp_path, [], []) == 1


def fatbin(*entries: tuple[int, int, int]) -> bytes:
    """A fat binary's bytes with entries of (kind, architecture, flags)."""
    rows = b"".join(
        struct.pack("<HHIQ", kind, 0x101, 64, 16)
        + bytes(12)
        + struct.pack("<IQQ", arch, 0, flags)
        + bytes(16 + 16)
        for kind, arch, flags in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(rows)) + rows


def test_architectures_of_a_fat_binary() -> None:
    data = fatbin((2, 121, 0x01100011), (1, 90, 0x11)) + fatbin((2, 120, 0x01200011))
    found = list(elf._fatbin_entries(data))
    assert found == ["sm_121a", "compute_90", "sm_120f"]
