"""Processes as /proc shows them: identity, membership, counters, and the end of them.

A process is ours only if its environment carries our boot's marker, which children
inherit and strangers do not have; a bare pid proves nothing, since pids are reused.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARKER = "GLMSPARK_BOOT"
# The state folder of the kit, so that its ranks are known without any file in it.
HOME = "GLMSPARK_HOME"
ENGINE_TITLE = "VLLM::"
OUT_OF_MEMORY = "the kernel killed it for lack of memory (dmesg says how much it had)"
PROC = Path("/proc")
_TICKS_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, order=True)
class Identity:
    """A process for certain: its pid and its start time in clock ticks since boot."""

    pid: int
    start: int

    @property
    def is_alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        stat = read_stat(self.pid)
        return stat is not None and stat.start == self.start and stat.state != "Z"


@dataclass(frozen=True)
class Stat:
    """The fields of /proc/PID/stat that are used here; times in seconds."""

    pid: int
    state: str
    parent: int
    group: int
    cpu_s: float
    start: int
    name: str


def _read(path: Path) -> bytes:
    """The bytes of ``path``; empty when the process has gone or is not ours to read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def read_stat(pid: int) -> Stat | None:
    """The counters of ``pid``; None when there is no such process."""
    raw = _read(PROC / str(pid) / "stat").decode(errors="replace")
    if not raw:
        return None
    head, _, tail = raw.rpartition(")")
    fields, name = tail.split(), head.partition("(")[2]
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_S
    parent, group, start = int(fields[1]), int(fields[2]), int(fields[19])
    return Stat(pid, fields[0], parent, group, cpu_s, start, name)


def identity(pid: int) -> Identity | None:
    """The identity of a running ``pid``; None when there is none."""
    stat = read_stat(pid)
    return Identity(pid, stat.start) if stat else None


def all_pids() -> Iterator[int]:
    """The pids of every process that is visible now."""
    for entry in os.scandir(PROC):
        if entry.name.isdigit():
            yield int(entry.name)


def environment(pid: int) -> dict[str, str]:
    """The environment that ``pid`` was started with; empty when not readable."""
    raw = _read(PROC / str(pid) / "environ").decode(errors="replace")
    pairs = (item.partition("=") for item in raw.split("\0") if "=" in item)
    return {name: value for name, _, value in pairs}


def command_line(pid: int) -> str:
    """The argv of ``pid`` joined by blanks, or its title if it set one."""
    raw = _read(PROC / str(pid) / "cmdline").decode(errors="replace")
    return raw.replace("\0", " ").strip()


@dataclass(frozen=True)
class Marked:
    """A process of a boot: who it is, which boot and rank, its title and its name.

    An engine process gives itself a title; it stands in argv, or in the 15 characters
    of the name that the kernel keeps.
    """

    who: Identity
    boot: str
    rank: int | None
    title: str
    name: str
    cpu_s: float
    home: str = ""

    @property
    def is_engine(self) -> bool:
        """Whether vLLM has titled it as one of its own processes."""
        return ENGINE_TITLE in (self.title[:6], self.name[:6])

    @property
    def engine_title(self) -> str:
        """The title of an engine process, in full where argv has it."""
        whole = self.title.startswith(ENGINE_TITLE)
        return self.title.split()[0] if whole else self.name


def marked(boot: str | None = None) -> list[Marked]:
    """The live processes that carry the marker of ``boot``, or of any boot."""
    found = []
    for pid in all_pids():
        env = environment(pid)
        name = env.get(MARKER)
        if name is None or (boot is not None and name != boot):
            continue
        stat = read_stat(pid)
        if stat is None or stat.state == "Z":
            continue
        rank = env.get("GLMSPARK_RANK", "")
        found.append(
            Marked(
                Identity(pid, stat.start),
                name,
                int(rank) if rank.isdigit() else None,
                command_line(pid),
                stat.name,
                stat.cpu_s,
                env.get(HOME, ""),
            )
        )
    return found


def io_bytes(pid: int) -> int:
    """Bytes that ``pid`` has read and written through system calls; 0 if unknown."""
    fields = _read(PROC / str(pid) / "io").split()
    return sum(int(fields[i]) for i in (1, 3)) if len(fields) > 3 else 0


def oom_kills() -> int:
    """How many processes this machine's kernel has killed for lack of memory so far."""
    for line in _read(PROC / "vmstat").splitlines():
        if line.startswith(b"oom_kill "):
            return int(line.split()[1])
    return 0


# A rank gets on when it reads or computes; this much of each counts as one step.
PROGRESS_IO_BYTES = 1 << 20
PROGRESS_CPU_S = 1.0


def progress(members: Iterable[Marked]) -> int:
    """A number that grows while ``members`` read or compute."""
    found = list(members)
    cpu_s = sum(one.cpu_s for one in found)
    io = sum(io_bytes(one.who.pid) for one in found)
    return int(cpu_s / PROGRESS_CPU_S) + io // PROGRESS_IO_BYTES


def pss_bytes(pid: int) -> int:
    """Proportional set size of ``pid`` in bytes; 0 when not readable."""
    for line in _read(PROC / str(pid) / "smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def shared_segments(pids: Iterable[int]) -> set[Path]:
    """The files below /dev/shm that the processes ``pids`` have mapped."""
    found = set()
    for pid in pids:
        for line in _read(PROC / str(pid) / "maps").splitlines():
            name = line.partition(b"/dev/shm/")[2].decode(errors="replace")
            if name and "/" not in name and not name.endswith("(deleted)"):
                found.add(Path("/dev/shm") / name)  # noqa: S108
    return found


def send(who: Identity, number: signal.Signals) -> bool:
    """Signal that very process; False when it has gone. A reused pid is not hit."""
    try:
        handle = os.pidfd_open(who.pid)
    except OSError:
        return False
    try:
        # The handle holds the process that has the pid now; compare before the signal.
        if identity(who.pid) != who:
            return False
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
            return True
        return False
    finally:
        os.close(handle)
