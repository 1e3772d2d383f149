"""The kernels' build: the pinned source, the patches, the checks before loading."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm_exl3 import build, kernel_file, upstream
from vllm_exl3.errors import Exl3ConfigError, Exl3Error
from vllm_exl3.kernel_file import Manifest
from vllm_exl3.tables import Codebook
from vllm_exl3.toolchain import toolchain

from tests.overlay import cubin, pinned_nvcc

REPO = Path(__file__).parents[2]
PATCHES = sorted((REPO / "overlay/exllamav3").glob("*.patch"))
GB10 = Manifest("2.13.0+cu130", ("12.1a",), 4, 1, "0" * 64)


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """exllamav3's pinned wheel, by pip; kept in the cache between runs."""
    cache = kernel_file.cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    return upstream.fetch(cache)


def test_the_pinned_file_is_checked(source: Path, tmp_path: Path) -> None:
    upstream.check_hash(source)
    file = tmp_path / "exllamav3.whl"
    file.write_bytes(source.read_bytes()[:-1])
    with pytest.raises(Exl3Error, match=r"has sha256 .*, needed 550c0d04"):
        upstream.check_hash(file)


def test_patches_apply_and_reverse(source: Path, tmp_path: Path) -> None:
    folder = upstream.unpack(source, tmp_path, PATCHES)
    assert PATCHES
    assert (
        "g = fminf(g, limit);"
        in (folder / "quant/exl3_moe_coop_kernel.cuh").read_text()
    )
    for patch in reversed(PATCHES):
        command = ["patch", "--strip=1", "--fuzz=0", "--reverse", "--batch"]
        command += [f"--input={patch}", f"--directory={tmp_path}"]
        upstream.run(command, "reversing")
        text = patch.read_text()
        heads = ("Why:", "Upstream:", "Delete when:", "Proved by:")
        assert all(head in text for head in heads)


def test_a_patch_that_drifted_fails(source: Path, tmp_path: Path) -> None:
    drifted = tmp_path / "0001.patch"
    text = PATCHES[0].read_text()
    drifted.write_text(text.replace(" act_oai_swiglu(g, u", " act_oai_glu(g, u"))
    with pytest.raises(Exl3Error, match=r"applying 0001\.patch failed"):
        upstream.unpack(source, tmp_path / "source", [drifted])


def test_an_unpatched_build_is_refused(tmp_path: Path) -> None:
    assert upstream.patches_in(REPO / "overlay/exllamav3") == PATCHES
    with pytest.raises(Exl3ConfigError, match="holds no patch for exllamav3"):
        upstream.patches_in(tmp_path)


def test_bad_arch_lists_are_refused() -> None:
    assert toolchain("nvcc", "12.1a;9.0a").gencode() == [
        "-gencode=arch=compute_121a,code=sm_121a",
        "-gencode=arch=compute_90a,code=sm_90a",
    ]
    for bad in ("", "sm_121a", "Hopper", "121a", "12.1aa", "12.1a+PTX", "1.2.3"):
        with pytest.raises(Exl3ConfigError, match="is no list of capabilities"):
            toolchain("nvcc", bad)


def test_a_missing_compiler_or_a_failing_one_is_named() -> None:
    with pytest.raises(Exl3Error, match="compiling x failed with status 1") as caught:
        upstream.run(
            [sys.executable, "-c", "raise SystemExit('no way')"], "compiling x"
        )
    assert "no way" in str(caught.value)
    assert caught.value.exit_code == 5
    with pytest.raises(Exl3Error, match="asking: no program /no/nvcc"):
        upstream.run(["/no/nvcc", "--version"], "asking")


@pytest.mark.parametrize(
    ("arch", "capability", "runs"),
    [
        ("12.1a", (12, 1), True),
        ("12.1a", (12, 0), False),
        ("12.0", (12, 1), True),
        ("12.0f", (12, 1), True),
        ("9.0a", (12, 1), False),
        ("12.1", (12, 0), False),
    ],
)
def test_machine_code_and_gpus(
    arch: str, capability: tuple[int, int], runs: bool
) -> None:
    assert kernel_file.runs_on(arch, capability) is runs


def test_an_extension_for_something_else_is_refused(tmp_path: Path) -> None:
    GB10.write(tmp_path)
    read = Manifest.read(tmp_path)
    assert read == GB10
    read.check("2.13.0+cu130", (12, 1))
    with pytest.raises(Exl3Error, match=r"for torch 2\.13\.0\+cu130, this is 2\.11"):
        read.check("2.11.0+cu130", (12, 1))
    with pytest.raises(Exl3Error, match=r"for 12\.1a, this GPU has capability 9\.0"):
        read.check("2.13.0+cu130", (9, 0))


def test_an_absent_or_broken_manifest_says_how_to_build(tmp_path: Path) -> None:
    with pytest.raises(Exl3Error, match=r"not built.*python -m vllm_exl3\.build"):
        Manifest.read(tmp_path)
    good = asdict(GB10)
    path = tmp_path / kernel_file.MANIFEST
    wrong: list[Any] = [{}, [], 7, good | {"archs": "12.1a"}, good | {"torch": None}]
    wrong += [good | {"archs": ["gb10"]}, good | {"codebook": 9}, good | {"x": 1}]
    for bad in wrong:
        path.write_text(json.dumps(bad))
        with pytest.raises(Exl3Error, match="is no manifest"):
            Manifest.read(tmp_path)
    path.write_bytes(b"\xff{")
    with pytest.raises(Exl3Error, match="is no manifest"):
        Manifest.read(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(Exl3Error, match="cannot be read: Is a directory"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize(
    ("manifest", "library", "message"),
    [
        (GB10, b"", r"for torch 2\.13\.0\+cu130, this is"),
        (replace(GB10, torch=torch.__version__, archs=("9.0a",)), b"", r"for 9\.0a"),
        (replace(GB10, torch=torch.__version__), b"junk", r"kernels\.so does not load"),
        (replace(GB10, torch=torch.__version__), None, r"kernels\.so does not load"),
        (None, b"", r"not built: .* is absent; python -m vllm_exl3\.build"),
    ],
    ids=["torch", "arch", "junk", "no library", "no manifest"],
)
def test_nothing_foreign_is_loaded(
    manifest: Manifest | None,
    library: bytes | None,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The checks run where an engine loads the kernels, on a machine called GB10."""
    monkeypatch.setenv("EXL3_KERNELS", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (12, 1))
    if manifest is not None:
        manifest.write(tmp_path)
    if library is not None:
        (tmp_path / kernel_file.LIBRARY).write_bytes(library)
    with pytest.raises(Exl3Error, match=message):
        kernel_file.load.__wrapped__()


def test_every_left_out_kernel_has_a_stub() -> None:
    text = build.stub_source(build.Options(4, Codebook.MCG, 1))
    assert "exl3_moe_kernel_k4_n128_cb1(" not in text
    assert "exl3_moe_kernel_k4_n128_cb2(" in text
    assert text.count("fp_exl3_moe_kernel ") == 9 * 4 - 2 + 9 * 2 + 3 * 4
    assert text.count("MoeCoopKernel ") == 2 * 7 + 2 * 3


def compiler(cache: Path) -> tuple[str, dict[str, str]]:
    """The machine's nvcc 13, else that of the pinned wheels, and its environment."""
    nvcc = shutil.which(os.environ.get("NVCC", "nvcc"))
    if nvcc is not None and "release 13." in upstream.run([nvcc, "--version"], nvcc):
        return nvcc, {}
    return str(pinned_nvcc.install(cache)), {"NVCC_PREPEND_FLAGS": pinned_nvcc.FLAGS}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_compiler_is_pinned_for_both_machines(machine: str) -> None:
    lines = pinned_nvcc.requirements(machine).splitlines()
    assert {line.partition("==")[0] for line in lines} == pinned_nvcc.NAMES
    assert all("--hash=sha256:" in line for line in lines)


@pytest.mark.full
def test_the_kernels_compile_for_gb10(source: Path, tmp_path: Path) -> None:
    """Compile and link for sm_121a; the library holds its machine code."""
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if shutil.which("g++") is None or not header.exists():
        pytest.skip("nvcc needs a host compiler: apt-get install g++ python3-dev")
    nvcc, flags = compiler(source.parent)
    command = [sys.executable, "-m", "vllm_exl3.build", "--arch", "12.1a"]
    command += ["--source", str(source), "--out", str(tmp_path), "--nvcc", nvcc]
    command += ["--cache", str(source.parent)]
    env = os.environ | {"PYTHONPATH": str(REPO / "overlay")} | flags
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    library = tmp_path / kernel_file.LIBRARY
    assert done.stdout.strip() == str(library)
    assert Manifest.read(tmp_path).archs == ("12.1a",)
    code = library.read_bytes()
    assert cubin.targets(code) == {"sm_121a"}
    kernels = (b"gemm_kernel", b"exl3_moe_coop_a_kernel", b"exl3_moe_kernel")
    assert all(name in code for name in kernels)
