"""The kernels' build: the pinned source, the patches, the checks before loading."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from vllm_exl3 import build, kernel_file
from vllm_exl3.errors import Exl3ConfigError, Exl3Error
from vllm_exl3.kernel_file import Manifest
from vllm_exl3.tables import Codebook

from tests.overlay import cubin

REPO = Path(__file__).parents[2]
PATCHES = sorted((REPO / "overlay/exllamav3").glob("*.patch"))
GB10 = Manifest("2.13.0+cu130", ("12.1a",), 4, 1, "0" * 64)


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """exllamav3's pinned wheel, by pip; kept in the cache between runs."""
    cache = kernel_file.cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    return build.fetch(cache)


def test_the_pinned_file_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "exllamav3.whl"
    file.write_bytes(b"something else")
    build.check_hash(file, hashlib.sha256(b"something else").hexdigest())
    with pytest.raises(Exl3Error, match=r"has sha256 .*, needed 550c0d04"):
        build.check_hash(file, json.loads(build.SOURCES.read_text())["sha256"])


def test_a_wrong_source_stops_the_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "exllamav3.whl"
    file.write_bytes(b"something else")
    status = build.main(["--source", str(file), "--cache", str(tmp_path)])
    assert status == 7
    assert "needed 550c0d04" in capsys.readouterr().err


def test_patches_apply_and_reverse(source: Path, tmp_path: Path) -> None:
    folder = build.unpack(source, tmp_path, PATCHES)
    assert PATCHES
    assert (
        "g = fminf(g, limit);"
        in (folder / "quant/exl3_moe_coop_kernel.cuh").read_text()
    )
    for patch in reversed(PATCHES):
        command = ["patch", "--strip=1", "--fuzz=0", "--reverse", "--batch"]
        command += [f"--input={patch}", f"--directory={tmp_path}"]
        build.run(command, "reversing")
        text = patch.read_text()
        heads = ("Why:", "Upstream:", "Delete when:", "Proved by:")
        assert all(head in text for head in heads)


def test_a_patch_that_drifted_fails(source: Path, tmp_path: Path) -> None:
    drifted = tmp_path / "0001.patch"
    text = PATCHES[0].read_text()
    drifted.write_text(text.replace(" act_oai_swiglu(g, u", " act_oai_glu(g, u"))
    with pytest.raises(Exl3Error, match=r"applying 0001\.patch failed"):
        build.unpack(source, tmp_path / "source", [drifted])


def test_an_unpatched_build_is_refused(tmp_path: Path) -> None:
    assert build.patches_in(REPO / "overlay/exllamav3") == PATCHES
    with pytest.raises(Exl3ConfigError, match="holds no patch for exllamav3"):
        build.patches_in(tmp_path)


def test_bad_arch_lists_are_refused() -> None:
    assert build.toolchain("nvcc", "12.1a;9.0a").gencode() == [
        "-gencode=arch=compute_121a,code=sm_121a",
        "-gencode=arch=compute_90a,code=sm_90a",
    ]
    for bad in ("", "sm_121a", "Hopper"):
        with pytest.raises(Exl3ConfigError, match="is no list of capabilities"):
            build.toolchain("nvcc", bad)


def test_a_missing_compiler_or_a_failing_one_is_named() -> None:
    with pytest.raises(Exl3Error, match="compiling x failed with status 1") as caught:
        build.run([sys.executable, "-c", "raise SystemExit('no way')"], "compiling x")
    assert "no way" in str(caught.value)
    assert caught.value.exit_code == 5
    with pytest.raises(Exl3Error, match="asking: no program /no/nvcc"):
        build.run(["/no/nvcc", "--version"], "asking")


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
    (tmp_path / kernel_file.MANIFEST).write_text("{}")
    with pytest.raises(Exl3Error, match="is no manifest"):
        Manifest.read(tmp_path)


def test_every_left_out_kernel_has_a_stub() -> None:
    text = build.stub_source(build.Options(4, Codebook.MCG, 1))
    assert "exl3_moe_kernel_k4_n128_cb1(" not in text
    assert "exl3_moe_kernel_k4_n128_cb2(" in text
    assert text.count("fp_exl3_moe_kernel ") == 9 * 4 - 2 + 9 * 2 + 3 * 4
    assert text.count("MoeCoopKernel ") == 2 * 7 + 2 * 3


@pytest.mark.full
def test_the_kernels_compile_for_gb10(source: Path, tmp_path: Path) -> None:
    """Compile and link for sm_121a; the library holds its machine code."""
    nvcc = shutil.which(os.environ.get("NVCC", "nvcc"))
    if nvcc is None:
        pytest.skip("no nvcc: set NVCC, or install the package nvidia-cuda-nvcc")
    command = [sys.executable, "-m", "vllm_exl3.build", "--arch", "12.1a"]
    command += ["--source", str(source), "--out", str(tmp_path), "--nvcc", nvcc]
    env = os.environ | {"PYTHONPATH": str(REPO / "overlay")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    library = tmp_path / kernel_file.LIBRARY
    assert done.stdout.strip() == str(library)
    assert Manifest.read(tmp_path).archs == ("12.1a",)
    code = library.read_bytes()
    assert cubin.targets(code) == {"sm_121a"}
    kernels = (b"gemm_kernel", b"exl3_moe_coop_a_kernel", b"exl3_moe_kernel")
    assert all(name in code for name in kernels)
