"""What a start must know of a host beside its fabric: memory, GPU, tools, clock.

Standard library alone; nothing is changed. The only program that is run is nvidia-smi.
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from glmspark.facts import Roots

# The usual places that the PATH of a non-interactive shell lacks.
PLACES = (
    "/usr/local/bin",
    "/usr/bin",
    "/nix/var/nix/profiles/default/bin",
    "/run/current-system/sw/bin",
)
TOOLS = ("nix", "docker", "podman", "nvidia-smi", "systemd-run", "nft")
# Services that kill the largest process before the kernel would.
KILLERS = ("earlyoom", "systemd-oomd", "nohang", "dgx-anti-oom", "dgx-oom")
SMI_S = 5.0
GPU_FIELDS = (
    "name",
    "driver_version",
    "clocks.sm",
    "clocks.max.sm",
    "power.draw",
    "enforced.power.limit",
    "utilization.gpu",
)
TIME_ERROR = 5


@dataclass(frozen=True)
class Gpu:
    """A GPU: clocks in MHz, power in watts, use in percent; 0 if it does not say."""

    name: str
    driver: str
    clock_mhz: float = 0.0
    clock_max_mhz: float = 0.0
    power_w: float = 0.0
    power_cap_w: float = 0.0
    busy_percent: float = 0.0


@dataclass(frozen=True)
class GpuUser:
    """A process that computes on the GPU."""

    pid: int
    name: str


@dataclass(frozen=True)
class Consumer:
    """A process and its resident memory."""

    pid: int
    name: str
    rss_bytes: int


@dataclass(frozen=True)
class HostFacts:
    """The facts; sizes in bytes.

    ``consumers`` are the largest processes, ``killers`` the memory guards that run,
    ``tools`` maps programs to their places, ``containers`` and ``units`` are ours.
    ``clock_synced`` is None where the kernel does not say.
    """

    swap_bytes: int = 0
    hugepage_bytes: int = 0
    consumers: tuple[Consumer, ...] = ()
    killers: tuple[str, ...] = ()
    driver: str = ""
    gpus: tuple[Gpu, ...] = ()
    gpu_users: tuple[GpuUser, ...] = ()
    tools: Mapping[str, str] = field(default_factory=dict)
    container_socket: str = ""
    containers: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    lingers: bool = False
    ip_forward: bool = False
    kernel_line: str = ""
    clock_synced: bool | None = None
    store: tuple[str, ...] = ()
    shell: str = ""
    home: str = ""
    path: str = ""
    unread: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The facts as plain data."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> HostFacts:
        """The facts that :meth:`to_json` gave."""
        parts = {
            "gpus": tuple(Gpu(**one) for one in data["gpus"]),
            "gpu_users": tuple(GpuUser(**one) for one in data["gpu_users"]),
            "consumers": tuple(Consumer(**one) for one in data["consumers"]),
        }
        lists = ("killers", "containers", "units", "store", "unread")
        parts |= {name: tuple(data[name]) for name in lists}
        return HostFacts(**{**data, **parts})


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except FileNotFoundError:
        return ""


def read_sizes(roots: Roots) -> tuple[int, int]:
    """Swap and huge pages that are set aside, in bytes."""
    sizes = {}
    for line in _text(roots.proc / "meminfo").splitlines():
        name, _, rest = line.partition(":")
        sizes[name] = int(rest.split()[0]) if rest.split() else 0
    pages = sizes.get("HugePages_Total", 0) * sizes.get("Hugepagesize", 0)
    return sizes.get("SwapTotal", 0) * 1024, pages * 1024


def read_processes(roots: Roots) -> list[Consumer]:
    """Every process with its resident memory, largest first."""
    page = os.sysconf("SC_PAGE_SIZE")
    found = []
    for entry in os.scandir(roots.proc):
        if not entry.name.isdigit():
            continue
        try:
            name = _text(Path(entry.path) / "comm")
            pages = int(_text(Path(entry.path) / "statm").split()[1])
        except (OSError, IndexError, ValueError):
            continue  # it has ended meanwhile
        found.append(Consumer(int(entry.name), name, pages * page))
    return sorted(found, key=lambda one: -one.rss_bytes)


def find_tools(environ: Mapping[str, str]) -> dict[str, str]:
    """Where each tool is: on PATH, in the usual places, or in the user's profile."""
    home = environ.get("HOME", "")
    places = [environ.get("PATH", ""), *PLACES, f"{home}/.nix-profile/bin"]
    found = {name: shutil.which(name, path=os.pathsep.join(places)) for name in TOOLS}
    return {name: place for name, place in found.items() if place}


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0  # "[N/A]": a GB10 does not report everything


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """The GPUs in nvidia-smi's csv,noheader,nounits of ``GPU_FIELDS``."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return tuple(
        Gpu(row[0], row[1], *(_float(cell) for cell in row[2:]))
        for row in rows
        if len(row) == len(GPU_FIELDS)
    )


def parse_users(text: str) -> tuple[GpuUser, ...]:
    """The processes in nvidia-smi's csv,noheader of pid,process_name."""
    rows = [line.partition(",") for line in text.splitlines()]
    return tuple(
        GpuUser(int(pid), name.strip()) for pid, _, name in rows if pid.isdigit()
    )


def _smi(program: str, query: str) -> str:
    argv = [program, query, "--format=csv,noheader,nounits"]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=SMI_S, check=False
    )
    if done.returncode != 0:
        said = (done.stdout or done.stderr).strip().splitlines()
        raise OSError(f"nvidia-smi: {said[0] if said else done.returncode}")
    return done.stdout


def read_containers(path: str) -> tuple[str, ...]:
    """Names of our containers, from the engine's socket at ``path``.

    Raises:
        OSError: the socket cannot be used by this user, or its answer not be read.
    """
    import http.client  # 30 ms that most nodes need not spend

    filters = "%7B%22label%22%3A%5B%22glmspark.kit%22%5D%7D"
    connection = http.client.HTTPConnection("localhost", timeout=1.0)
    with socket.socket(socket.AF_UNIX) as wire:
        wire.settimeout(1.0)
        wire.connect(path)
        connection.sock = wire
        try:
            connection.request("GET", f"/containers/json?all=1&filters={filters}")
            rows = json.loads(connection.getresponse().read())
            return tuple(sorted(row["Names"][0].lstrip("/") for row in rows))
        except (http.client.HTTPException, ValueError, LookupError, TypeError) as error:
            raise OSError(f"{path}: {error}") from error


def read_clock_synced() -> bool | None:
    """Whether the kernel counts its clock as synchronised; None: it does not say."""
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.create_string_buffer(512))  # modes = 0: reads only
    return None if state < 0 else state != TIME_ERROR


def read_units(uid: int) -> tuple[str, ...]:
    """Names of our systemd units, the user's transient ones and the system's."""
    folders = (
        Path(f"/run/user/{uid}/systemd/transient"),
        Path("/etc/systemd/system"),
        Path("/run/systemd/system"),
    )
    found = {one.name for folder in folders for one in folder.glob("glmspark*.service")}
    return tuple(sorted(found))


def read_store(store: Path) -> tuple[str, ...]:
    """Names of the manifests and views in the weights store."""
    return tuple(
        f"{kind}/{one.name}"
        for kind in ("manifests", "views")
        for one in sorted((store / kind).glob("*"))
    )


def read_host(roots: Roots, store: Path, environ: Mapping[str, str]) -> HostFacts:
    """The facts of this host; what cannot be read is named in ``unread``."""
    unread: list[str] = []

    def attempt(what: str, read: Callable[[], Any], empty: Any) -> Any:
        try:
            return read()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            unread.append(f"{what}: {error}")
            return empty

    tools, account = find_tools(environ), pwd.getpwuid(os.getuid())
    running = attempt("processes", lambda: read_processes(roots), [])
    swap, pages = attempt("memory", lambda: read_sizes(roots), (0, 0))
    version = _text(roots.proc / "driver/nvidia/version").split()
    digits = [word for word in version if word[0].isdigit() and "." in word]
    gpus, users, smi = (), (), tools.get("nvidia-smi", "")
    if smi:
        query = f"--query-gpu={','.join(GPU_FIELDS)}"
        gpus = attempt("GPU", lambda: parse_gpus(_smi(smi, query)), ())
        apps = "--query-compute-apps=pid,process_name"
        users = attempt("GPU users", lambda: parse_users(_smi(smi, apps)), ())
    engine = next((p for p in ("/run/docker.sock",) if Path(p).exists()), "")
    ours = attempt("containers", lambda: read_containers(engine), ()) if engine else ()
    return HostFacts(
        swap_bytes=swap,
        hugepage_bytes=pages,
        consumers=tuple(running[:8]),
        killers=tuple(sorted({p.name for p in running} & {k[:15] for k in KILLERS})),
        driver=digits[0] if digits else "",
        gpus=gpus,
        gpu_users=users,
        tools=tools,
        container_socket=engine,
        containers=ours,
        units=read_units(os.getuid()),
        lingers=Path("/var/lib/systemd/linger", account.pw_name).exists(),
        ip_forward=_text(roots.proc / "sys/net/ipv4/ip_forward") == "1",
        kernel_line=_text(roots.proc / "cmdline"),
        clock_synced=attempt("clock", read_clock_synced, None),
        store=attempt("store", lambda: read_store(store), ()),
        shell=account.pw_shell,
        home=account.pw_dir,
        path=environ.get("PATH", ""),
        unread=tuple(unread),
    )
