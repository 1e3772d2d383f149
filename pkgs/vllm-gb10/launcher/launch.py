"""Run vLLM of this closure with the host's driver and a compiler for run-time kernels.

Installed as ``bin/vllm``. ``launch.json`` beside it says what the closure holds:
``program`` to run, ``cuda_home`` (null for the CPU engine), ``cxx``, ``path`` (folders
of programs), ``arch``, and ``key`` (the hash of the closure's store path).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

sys.path.insert(0, str(Path(__file__).resolve().parent))
from driver import Driver, NoDriverError, find_driver

PREFLIGHT = 4  # the exit status of glmspark for a host that cannot run the engine
# Each compiler's cache. Kernels of another closure must never be found there (torch,
# headers and compiler differ), so all lie below a folder with the closure's key.
CACHES = {
    "CUDA_CACHE_PATH": "cuda",
    "DG_JIT_CACHE_DIR": "deep_gemm",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TILELANG_CACHE_DIR": "tilelang",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "TRITON_CACHE_DIR": "triton",
    "VLLM_CACHE_ROOT": "vllm",
}


# The engine's wheels pair nvcc 13.5 with the headers of CUDA 13.0, which torch wants.
# CCCL refuses any such pair by an #error, although both work within a major version.
NVCC_FLAGS = "-DCCCL_DISABLE_CTK_COMPATIBILITY_CHECK"


class Closure(TypedDict):
    """What launch.json holds."""

    program: str
    cuda_home: str | None
    cxx: str
    path: list[str]
    arch: str
    key: str


def cache_root(env: Mapping[str, str]) -> Path:
    """The kit's paths.cache, else systemd's cache folder, else the user's."""
    for name in ("GLMSPARK_PATHS_CACHE", "CACHE_DIRECTORY"):
        if env.get(name):
            return Path(env[name].split(":")[0])
    home = env.get("XDG_CACHE_HOME") or f"{env.get('HOME', '/tmp')}/.cache"  # noqa: S108
    return Path(home) / "glmspark"


def _joined(new: list[str], old: str | None) -> str:
    return ":".join([*new, old] if old else new)


def base_environment(closure: Closure, env: Mapping[str, str]) -> dict[str, str]:
    """``env`` with the closure's programs first and no Python of the user's in it.

    Values that the user set stay, but for PATH (put in front of) and what would mix
    another Python's packages into this one.
    """
    caches = cache_root(env) / "jit" / closure["key"]
    ours = {name: str(caches / folder) for name, folder in CACHES.items()}
    kept = {k: v for k, v in env.items() if k not in {"PYTHONPATH", "PYTHONHOME"}}
    ours |= {"CC": closure["cxx"], "CXX": closure["cxx"]}
    path = _joined(closure["path"], env.get("PATH"))
    return ours | kept | {"PYTHONNOUSERSITE": "1", "PATH": path}


def gpu_environment(
    closure: Closure, env: Mapping[str, str], driver: Driver
) -> dict[str, str]:
    """``env`` with the driver's folder and what CUDA compiles at run time need."""
    home = str(closure["cuda_home"])
    folder = str(driver.folder)
    nvcc_flags = f"{NVCC_FLAGS} {env.get('NVCC_PREPEND_FLAGS', '')}".strip()
    fixed = {
        "CUDA_HOME": home,
        "CUDA_PATH": home,
        "FLASHINFER_CUDA_ARCH_LIST": closure["arch"],
        "NVCC_CCBIN": closure["cxx"],
        "TORCH_CUDA_ARCH_LIST": closure["arch"],
        # Triton asks ldconfig otherwise, which NixOS and the image lack
        "TRITON_LIBCUDA_PATH": folder,
    }
    return fixed | {
        **env,
        "LD_LIBRARY_PATH": _joined([folder], env.get("LD_LIBRARY_PATH")),
        "NVCC_PREPEND_FLAGS": nvcc_flags,
        "LIBRARY_PATH": _joined([folder, f"{home}/lib"], env.get("LIBRARY_PATH")),
    }


def environment(
    closure: Closure, env: Mapping[str, str], root: Path = Path("/")
) -> dict[str, str]:
    """The environment of the engine.

    Raises NoDriverError where a GPU engine finds no driver.
    """
    ready = base_environment(closure, env)
    if closure["cuda_home"] is None:
        return ready
    driver = find_driver(cache_root(env) / "driver", root)
    return gpu_environment(closure, ready, driver)


def main() -> None:
    """Become the engine's program, or say why this host cannot run it."""
    file = Path(__file__).resolve().parent / "launch.json"
    closure: Closure = json.loads(file.read_text())
    try:
        env = environment(closure, os.environ)
    except NoDriverError as error:
        sys.stderr.write(
            f"error: {error}\n"
            "hint: install the NVIDIA driver (nvidia-smi must work), or start the"
            " container with --device nvidia.com/gpu=all\n"
        )
        sys.exit(PREFLIGHT)
    program = closure["program"]
    if os.environ.get("VLLM_GB10_PRINT_ENVIRONMENT") == "1":
        changed = {k: v for k, v in env.items() if os.environ.get(k) != v}
        sys.stdout.write(json.dumps(changed, indent=1, sort_keys=True) + "\n")
        sys.exit(0)
    os.execve(program, [program, *sys.argv[1:]], env)


if __name__ == "__main__":
    main()
