"""What a kit does now: the supervisor's word against what is really there."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from glmspark import health, processes
from glmspark.boot import Api, State, kernel_boot
from glmspark.ending import boot_names
from glmspark.paths import KitPaths
from glmspark.schema import Kit


@dataclass(frozen=True)
class RankStatus:
    """One rank: its node, its processes, and their memory in bytes (PSS)."""

    rank: int
    node: str
    pids: tuple[int, ...]
    pss_bytes: int


@dataclass(frozen=True)
class Status:
    """A kit's phase in one word, and what there is to know about it.

    ``phase`` is a phase of the supervisor, or "stale" (state of an earlier boot of the
    machine), "orphaned" (ranks without supervisor), "stopped".
    """

    kit: str
    phase: str
    url: str
    model: str
    boot: str
    uptime_s: float
    healthy: bool
    ranks: tuple[RankStatus, ...]
    failure: str
    hint: str

    @property
    def serves(self) -> bool:
        """Whether clients get answers."""
        return self.phase == "serving" and self.healthy

    def to_json(self) -> dict[str, Any]:
        """The status as plain data."""
        return {
            "kit": self.kit,
            "phase": self.phase,
            "serves": self.serves,
            "url": self.url,
            "model": self.model,
            "boot": self.boot,
            "uptime_s": round(self.uptime_s, 1),
            "ranks": [
                {
                    "rank": one.rank,
                    "node": one.node,
                    "pids": list(one.pids),
                    "pss_bytes": one.pss_bytes,
                }
                for one in self.ranks
            ],
            "failure": self.failure,
            "hint": self.hint,
        }


def judge_phase(state: State | None, *, current: bool, same: bool, left: int) -> str:
    """The phase in one word, from the state and what is really there (pure).

    ``current``: its supervisor lives. ``same``: the machine has not rebooted since.
    ``left``: processes of the kit that are alive.
    """
    if state is not None and current:
        return state.phase
    if left:
        return "orphaned"
    if state is None or state.is_final:
        return state.phase if state is not None else "stopped"
    return "orphaned" if same else "stale"


_HINTS = {
    "orphaned": "glmspark stop ends what is left; then start again",
    "stale": "the machine has rebooted since; glmspark start",
    "stopped": "glmspark start",
}


def read_status(kit: Kit, paths: KitPaths, state: State | None, api: Api) -> Status:
    """The status of ``kit`` on this node; looks at processes and asks the API."""
    boots = boot_names(paths)
    members = [one for one in processes.marked() if one.boot in boots]
    current = state is not None and state.is_current
    same = state is not None and state.kernel_boot == kernel_boot()
    phase = judge_phase(state, current=current, same=same, left=len(members))
    failure = state.failure if state else None
    return Status(
        kit=kit.name,
        phase=phase,
        url=state.url if state else "",
        model=state.name if state else "",
        boot=state.boot if state else "",
        uptime_s=time.time() - state.since if state and current else 0.0,
        healthy=phase == "serving" and health.is_healthy(api) is True,
        ranks=tuple(_ranks(state, members)),
        failure=failure.message if failure else "",
        hint=(failure.hint if failure else "") or _HINTS.get(phase, ""),
    )


def _ranks(state: State | None, members: list[processes.Marked]) -> list[RankStatus]:
    found = []
    for rank in sorted({one.rank for one in members if one.rank is not None}):
        pids = tuple(sorted(one.who.pid for one in members if one.rank == rank))
        node = state.nodes.get(rank, "") if state else ""
        pss = sum(processes.pss_bytes(pid) for pid in pids)
        found.append(RankStatus(rank, node, pids, pss))
    return found
