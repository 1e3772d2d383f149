"""Whether a kit serves or starts on this machine: a build gives way to it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from glmspark import processes
from glmspark.errors import CommandError
from glmspark.facts import Roots, read_gpus
from glmspark.locks import holder
from glmspark.serving.boost import HeadState, check_may_build

_EVERY_S = 1.0


def serving_ranks() -> int:
    """Processes of ranks, of whatever kit and user, that run on this machine."""
    return sum(one.rank is not None for one in processes.marked())


def starting(states: Path) -> str:
    """Who starts a kit whose state is below ``states``; empty if nobody does.

    A start holds its kit's lock from before it looks at the nodes until it serves. The
    lock is looked at and never taken, not for a moment: a start would fail of that.
    """
    for path in sorted(states.glob("*/lock")):
        with suppress(OSError):
            who = (holder(path) or "unknown") if _is_held(path) else "stop"
            if not who.startswith("stop"):  # unknown may be a start: give way
                return f"kit {path.parent.name}: {who}"
    return ""


def _is_held(path: Path) -> bool:
    """Whether /proc/locks has an exclusive flock on the file.

    By inode alone: its device differs from stat's on some file systems.
    """
    inode = str(path.stat().st_ino)
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if "FLOCK" in words and "WRITE" in words and words[5].endswith(f":{inode}"):
            return True
    return False


@dataclass
class Guard:
    """Asked again and again while a build works; raises as soon as a kit comes.

    ``states`` holds the kits' state folders; ``ranks`` counts what runs and
    ``has_cuda`` is what the driver shows, which a test answers itself.
    """

    states: Path
    ranks: Callable[[], int] = serving_ranks
    has_cuda: bool = field(default_factory=lambda: bool(read_gpus(Roots())))
    _next_s: float = field(default=0.0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def before(self, store: Path, needed_bytes: int, *, needs_gpu: bool) -> None:
        """Raise PreflightError unless a build that needs so much disk may begin."""
        stat = os.statvfs(store)
        head = HeadState(
            socket.gethostname(),
            self.ranks(),
            self.has_cuda or not needs_gpu,
            stat.f_bavail * stat.f_frsize,
        )
        check_may_build(head, needed_bytes)
        self._give_way("the build does not begin")

    def during(self) -> None:
        """Raise CommandError if a kit serves or starts; looks once a second at most."""
        with self._lock:
            if time.monotonic() < self._next_s:
                return
            self._next_s = time.monotonic() + _EVERY_S
        ranks = self.ranks()
        if ranks:
            raise CommandError(
                f"the build gave way: {ranks} ranks run here now; what it has is kept",
                hint="run it again after glmspark stop",
            )
        self._give_way("the build gave way; what it has is kept")

    def _give_way(self, what: str) -> None:
        who = starting(self.states)
        if who:
            raise CommandError(
                f"{what}: a start is under way ({who})",
                hint="run it again after glmspark stop",
            )
