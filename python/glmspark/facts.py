"""What a node looks like: read from /sys, /proc and the engine's folders, no guesses.

Whatever cannot be read is named in ``unread``: "could not look" is a fact of its own
and never passes for "nothing there". The roots are parameters, so tests feed trees.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from glmspark import processes
from glmspark.fingerprint import engine_versions, site_packages
from glmspark.paths import KitPaths


@dataclass(frozen=True)
class Roots:
    """Where the kernel's trees are mounted."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")


@dataclass(frozen=True)
class Listener:
    """A TCP socket that listens: address, port, and the process, where readable."""

    host: str
    port: int
    pid: int | None = None
    program: str = ""


@dataclass(frozen=True)
class Stray:
    """A process of some boot of this tool that is alive."""

    pid: int
    boot: str
    rank: int | None
    title: str


@dataclass(frozen=True)
class Facts:
    """Everything that the checks of a node look at; sizes in bytes."""

    hostname: str
    kernel: str
    machine: str
    kernel_boot: str
    page_bytes: int
    uid: int
    cores: int
    memory: dict[str, int]
    memlock_bytes: int
    listeners: tuple[Listener, ...]
    strays: tuple[Stray, ...]
    free_disk: dict[str, int]
    engine: dict[str, str]
    gpus: tuple[str, ...]
    unread: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """The facts as plain data."""
        return asdict(self)


def read_memory(roots: Roots) -> dict[str, int]:
    """The sizes that decide, from /proc/meminfo, in bytes."""
    wanted = ("MemTotal", "MemAvailable", "MemFree", "SwapFree", "CmaTotal", "CmaFree")
    sizes = {}
    for line in (roots.proc / "meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in wanted:
            sizes[name] = int(rest.split()[0]) * 1024
    return sizes


def _address(text: str) -> tuple[str, int]:
    """Host and port of a hexadecimal address of /proc/net/tcp or tcp6."""
    host, _, port = text.partition(":")
    # The kernel prints 32-bit words in host byte order, which is little-endian here.
    raw = b"".join(bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8))
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, raw), int(port, 16)


def _owners(roots: Roots, inodes: set[str]) -> dict[str, int]:
    """Which process holds each of the socket ``inodes``, as far as readable."""
    found: dict[str, int] = {}
    for entry in os.scandir(roots.proc):
        if not entry.name.isdigit() or len(found) == len(inodes):
            continue
        with suppress(OSError):
            for fd in os.scandir(f"{entry.path}/fd"):
                with suppress(OSError):
                    link = str(Path(fd.path).readlink())
                    inode = link.removeprefix("socket:[").removesuffix("]")
                    if inode in inodes:
                        found[inode] = int(entry.name)
    return found


def read_listeners(roots: Roots) -> tuple[Listener, ...]:
    """Every listening TCP socket of this network namespace."""
    rows: list[tuple[str, int, str]] = []
    for name in ("tcp", "tcp6"):
        file = roots.proc / "net" / name
        if not file.exists():
            continue
        for line in file.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":  # TCP_LISTEN
                rows.append((*_address(fields[1]), fields[9]))
    owners = _owners(roots, {inode for _, _, inode in rows})
    return tuple(
        Listener(
            host,
            port,
            owners.get(inode),
            processes.command_line(owners[inode])[:120] if inode in owners else "",
        )
        for host, port, inode in sorted(set(rows))
    )


def _free_bytes(path: Path) -> int:
    """Free bytes for this user on the file system that will hold ``path``."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def read_gpus(roots: Roots) -> tuple[str, ...]:
    """The names of the NVIDIA GPUs that the driver has bound."""
    names = []
    for info in sorted(roots.proc.glob("driver/nvidia/gpus/*/information")):
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("Model:"):
                names.append(line.partition(":")[2].strip())
    return tuple(names)


def _strays() -> tuple[Stray, ...]:
    return tuple(
        Stray(one.who.pid, one.boot, one.rank, one.title[:120])
        for one in processes.marked()
    )


def probe(paths: KitPaths, program: Sequence[str], roots: Roots | None = None) -> Facts:
    """The facts of this node, seen from this process; takes no lock, needs no root."""
    roots = roots or Roots()
    unread: list[str] = []
    facts: dict[str, Any] = {
        "memory": lambda: read_memory(roots),
        "listeners": lambda: read_listeners(roots),
        "strays": _strays,
        "gpus": lambda: read_gpus(roots),
        "engine": lambda: engine_versions(site_packages(program)) if program else {},
        "free_disk": lambda: {
            "state": _free_bytes(paths.state),
            "cache": _free_bytes(paths.cache),
        },
    }
    empty: dict[str, Any] = {"memory": {}, "engine": {}, "free_disk": {}}
    for name, read in facts.items():
        try:
            facts[name] = read()
        except (OSError, ValueError, IndexError) as error:
            facts[name] = empty.get(name, ())
            unread.append(f"{name}: {error}")
    uname = os.uname()
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    boot_id = roots.proc / "sys/kernel/random/boot_id"
    return Facts(
        hostname=uname.nodename,
        kernel=uname.release,
        machine=uname.machine,
        kernel_boot=boot_id.read_text().strip() if boot_id.exists() else "",
        page_bytes=os.sysconf("SC_PAGE_SIZE"),
        uid=os.getuid(),
        cores=len(os.sched_getaffinity(0)),
        memlock_bytes=limit,
        unread=tuple(unread),
        **facts,
    )
