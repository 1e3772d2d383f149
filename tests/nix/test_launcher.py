"""The engine's launcher: the host's driver, the compiler's environment, messages."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = ROOT / "pkgs/vllm-gb10/launcher"


def load(name: str) -> ModuleType:
    """A module of the launcher, which is no package."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, LAUNCHER / f"{name}.py")
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


driver: Any = load("driver")
launch: Any = load("launch")

CLOSURE = {
    "program": "/store/engine/libexec/vllm",
    "cuda_home": "/store/engine/nvidia/cu13",
    "cxx": "/store/gcc/bin/g++",
    "path": ["/store/engine/bin", "/store/gcc/bin"],
    "arch": "12.1a",
    "key": "0123456789abcdef",
}


def lay_library(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(name)


def shared_object(folder: Path, name: str) -> None:
    """A real shared library of that name: ldconfig lists nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "empty.c"
    source.write_text("")
    subprocess.run(
        [
            "gcc",
            "-shared",
            f"-Wl,-soname,{name}",
            "-o",
            str(folder / name),
            str(source),
        ],
        check=True,
    )


def test_nixos_driver_comes_first(tmp_path: Path) -> None:
    lay_library(tmp_path / driver.NIXOS_DRIVER, "libcuda.so.1")
    lay_library(tmp_path / "usr/lib/aarch64-linux-gnu", "libcuda.so.1")
    found = driver.find_driver(tmp_path / "links", tmp_path)
    assert found.folder == tmp_path / driver.NIXOS_DRIVER
    assert not (tmp_path / "links").exists()


@pytest.mark.cases(130)
@pytest.mark.skipif(
    not (shutil.which("gcc") and Path("/sbin/ldconfig").exists()),
    reason="gcc or ldconfig is missing: no real linker cache can be made",
)
def test_driver_of_the_linker_cache(tmp_path: Path) -> None:
    """A cache that ldconfig itself wrote is read; only driver files are linked."""
    libraries = tmp_path / "opt/driver"
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libc.so.6"):
        shared_object(libraries, name)
    lay_library(libraries, "libnvidia-gpucomp.so.580.95")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.conf").write_text("/opt/driver\n")
    ldconfig = ["/sbin/ldconfig", "-r", str(tmp_path), "-X"]
    subprocess.run(ldconfig, check=True)
    found = driver.find_driver(tmp_path / "links", tmp_path)
    assert {f.name for f in found.folder.iterdir()} == {
        "libcuda.so",
        "libcuda.so.1",
        "libnvidia-gpucomp.so.580.95",
        "libnvidia-ml.so.1",
    }
    assert found.libcuda == libraries / "libcuda.so.1"


@pytest.mark.cases(130)
def test_container_without_linker_cache(tmp_path: Path) -> None:
    folder = tmp_path / "usr/lib/aarch64-linux-gnu"
    lay_library(folder, "libcuda.so.1", "libcuda.so.580", "libssl.so.3")
    found = driver.find_driver(tmp_path / "links", tmp_path)
    names = {f.name for f in found.folder.iterdir()}
    assert names == {"libcuda.so", "libcuda.so.1", "libcuda.so.580"}


def test_links_are_made_once_and_follow_an_update(tmp_path: Path) -> None:
    folder = tmp_path / "usr/lib64"
    lay_library(folder, "libcuda.so.580")
    (folder / "libcuda.so.1").symlink_to("libcuda.so.580")
    first = driver.find_driver(tmp_path / "links", tmp_path).folder
    assert driver.find_driver(tmp_path / "links", tmp_path).folder == first
    lay_library(folder, "libcuda.so.590")
    (folder / "libcuda.so.1").unlink()
    (folder / "libcuda.so.1").symlink_to("libcuda.so.590")
    second = driver.find_driver(tmp_path / "links", tmp_path).folder
    assert second != first
    assert (second / "libcuda.so.1").resolve().name == "libcuda.so.590"


def test_no_driver_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(driver.NoDriverError, match="/run/opengl-driver/lib"):
        driver.find_driver(tmp_path / "links", tmp_path)


def test_damaged_linker_cache_is_no_driver(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(b"not a cache")
    with pytest.raises(driver.NoDriverError):
        driver.find_driver(tmp_path / "links", tmp_path)


def test_gpu_environment(tmp_path: Path) -> None:
    lay_library(tmp_path / driver.NIXOS_DRIVER, "libcuda.so.1")
    env = {"HOME": "/home/me", "PATH": "/usr/bin", "PYTHONPATH": "/mine"}
    got = launch.environment(CLOSURE, env, tmp_path)
    folder = str(tmp_path / driver.NIXOS_DRIVER)
    assert got["LD_LIBRARY_PATH"] == folder
    assert got["TRITON_LIBCUDA_PATH"] == folder
    assert got["PATH"] == "/store/engine/bin:/store/gcc/bin:/usr/bin"
    assert got["CUDA_HOME"] == CLOSURE["cuda_home"]
    assert got["NVCC_CCBIN"] == got["CXX"] == CLOSURE["cxx"]
    assert got["TORCH_CUDA_ARCH_LIST"] == got["FLASHINFER_CUDA_ARCH_LIST"] == "12.1a"
    assert "PYTHONPATH" not in got
    assert got["NVCC_PREPEND_FLAGS"] == launch.NVCC_FLAGS


@pytest.mark.cases(71)
def test_caches_are_keyed_by_the_closure() -> None:
    """Kernels compiled for one closure are never found by another."""
    env = {"HOME": "/home/me", "PATH": "/usr/bin"}
    one = launch.base_environment(CLOSURE, env)
    other = launch.base_environment(CLOSURE | {"key": "fedcba"}, env)
    for name in launch.CACHES:
        assert f"/jit/{CLOSURE['key']}/" in one[name]
        assert one[name] != other[name]


@pytest.mark.parametrize(
    ("env", "root"),
    [
        ({"HOME": "/h"}, "/h/.cache/glmspark"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/c"}, "/c/glmspark"),
        (
            {"HOME": "/h", "CACHE_DIRECTORY": "/var/cache/glmspark"},
            "/var/cache/glmspark",
        ),
        ({"CACHE_DIRECTORY": "/a", "GLMSPARK_PATHS_CACHE": "/b"}, "/b"),
    ],
    ids=["home", "xdg", "systemd", "kit"],
)
def test_cache_root(env: dict[str, str], root: str) -> None:
    assert launch.cache_root(env) == Path(root)


def test_what_the_user_set_stays(tmp_path: Path) -> None:
    lay_library(tmp_path / driver.NIXOS_DRIVER, "libcuda.so.1")
    env = {"HOME": "/h", "PATH": "/p", "TRITON_CACHE_DIR": "/t", "CUDA_HOME": "/cuda"}
    got = launch.environment(CLOSURE, env, tmp_path)
    assert (got["TRITON_CACHE_DIR"], got["CUDA_HOME"]) == ("/t", "/cuda")


def test_cpu_engine_asks_for_no_driver(tmp_path: Path) -> None:
    got = launch.environment(CLOSURE | {"cuda_home": None}, {"HOME": "/h"}, tmp_path)
    assert "LD_LIBRARY_PATH" not in got
    assert "CUDA_HOME" not in got


def installed(tmp_path: Path, closure: dict[str, Any]) -> Path:
    for file in LAUNCHER.glob("*.py"):
        shutil.copy(file, tmp_path)
    (tmp_path / "launch.json").write_text(json.dumps(closure))
    return tmp_path / "launch.py"


@pytest.mark.skipif(
    any((Path("/") / f / "libcuda.so.1").exists() for f in driver.PLAIN_FOLDERS),
    reason="this machine has a driver",
)
def test_host_without_driver_exits_with_preflight(tmp_path: Path) -> None:
    program = installed(tmp_path, CLOSURE)
    done = subprocess.run(
        [sys.executable, str(program), "serve"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == launch.PREFLIGHT
    assert "error: no NVIDIA driver" in done.stderr
    assert "hint: " in done.stderr
    assert done.stdout == ""


def test_launcher_becomes_the_program(tmp_path: Path) -> None:
    closure = CLOSURE | {"cuda_home": None, "program": "/bin/echo"}
    program = installed(tmp_path, closure)
    done = subprocess.run(
        [sys.executable, str(program), "serve", "a b"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "serve a b\n"
