"""Where this host's NVIDIA driver libraries are, and a folder of links to just those.

A Nix-built program must not see the host's whole library folder: its glibc is not
ours. On NixOS /run/opengl-driver/lib holds the driver alone. Elsewhere (DGX OS, or a
container that CDI filled) the libraries are found through the linker cache, and links
to them are laid into a folder that is named after what it holds.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

NIXOS_DRIVER = "run/opengl-driver/lib"
LINKER_CACHE = "etc/ld.so.cache"
# Folders that are searched when there is no linker cache (a minimal container).
PLAIN_FOLDERS = (
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib64",
    "usr/lib",
)
# libcuda and what it opens by name: PTX and NVVM compilers, GPU compiler, management.
COMPANIONS = (
    "libcuda.so*",
    "libcudadebugger.so*",
    "libnvidia-gpucomp.so*",
    "libnvidia-ml.so*",
    "libnvidia-nvvm*.so*",
    "libnvidia-ptxjitcompiler.so*",
    "libnvidia-tileiras.so*",
)
# glibc: elf/cache.c, struct file_entry_new and cache_file_new
_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20sII5I")
_ENTRY = struct.Struct("<iIIIQ")


class NoDriverError(Exception):
    """libcuda.so.1 is nowhere; the text says where it was looked for."""


@dataclass(frozen=True)
class Driver:
    """The folder to put on the library path, and the libcuda.so.1 that it leads to."""

    folder: Path
    libcuda: Path


def cached_libraries(cache: bytes) -> dict[str, str]:
    """Library name -> path, of a glibc linker cache; the first entry of a name wins."""
    start = cache.find(_MAGIC)
    if start < 0:
        return {}
    data = cache[start:]
    count = _HEADER.unpack_from(data)[1]
    found: dict[str, str] = {}
    for i in range(count):
        _, key, value, _, _ = _ENTRY.unpack_from(data, _HEADER.size + i * _ENTRY.size)
        name, path = (data[at : data.index(b"\0", at)].decode() for at in (key, value))
        found.setdefault(name, path)
    return found


def _matching(libraries: Iterable[tuple[str, Path]]) -> dict[str, Path]:
    return {
        name: path
        for name, path in libraries
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in COMPANIONS)
        and path.exists()
    }


def find_libraries(root: Path) -> dict[str, Path]:
    """Driver library name -> file, on a host whose root is ``root`` (not NixOS)."""
    cache = root / LINKER_CACHE
    if cache.exists():
        listed = cached_libraries(cache.read_bytes())
        found = _matching((n, root / p.lstrip("/")) for n, p in listed.items())
        if "libcuda.so.1" in found:
            # The cache lists names that programs link; a companion of the very
            # driver version lies beside libcuda and may be missing from it.
            beside = found["libcuda.so.1"].parent
            return _matching((f.name, f) for f in sorted(beside.iterdir())) | found
    for folder in (root / f for f in PLAIN_FOLDERS):
        if (folder / "libcuda.so.1").exists():
            return _matching((f.name, f) for f in sorted(folder.iterdir()))
    return {}


def link_libraries(libraries: dict[str, Path], base: Path) -> Path:
    """A folder below ``base`` with one link a library; made once a set of targets."""
    targets = sorted((name, str(path.resolve())) for name, path in libraries.items())
    if "libcuda.so" not in libraries:  # what `-lcuda` of a run-time compile looks for
        targets.append(("libcuda.so", str(libraries["libcuda.so.1"].resolve())))
    digest = hashlib.sha256(repr(targets).encode()).hexdigest()[:32]
    folder = base / digest
    if not folder.exists():
        fresh = base / f".{digest}.{os.getpid()}"
        fresh.mkdir(parents=True)
        for name, target in targets:
            (fresh / name).symlink_to(target)
        try:
            fresh.rename(folder)
        except OSError:  # another rank of this host was faster: its folder is the same
            for link in fresh.iterdir():
                link.unlink()
            fresh.rmdir()
    return folder


def find_driver(base: Path, root: Path = Path("/")) -> Driver:
    """This host's driver; links are laid below ``base`` where they are needed.

    Raises :class:`NoDriverError` where there is no libcuda.so.1.
    """
    nixos = root / NIXOS_DRIVER
    if (nixos / "libcuda.so.1").exists():
        return Driver(nixos, (nixos / "libcuda.so.1").resolve())
    libraries = find_libraries(root)
    if "libcuda.so.1" not in libraries:
        looked = ", ".join(
            f"/{p}" for p in (NIXOS_DRIVER, LINKER_CACHE, *PLAIN_FOLDERS)
        )
        raise NoDriverError(f"no NVIDIA driver: libcuda.so.1 is not in {looked}")
    folder = link_libraries(libraries, base)
    return Driver(folder, libraries["libcuda.so.1"].resolve())
