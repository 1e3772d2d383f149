"""Decide what becomes of a boot from what is seen of it (pure; the clock is given)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from glmspark.boot import Failure, Limits
from glmspark.errors import ExitCode
from glmspark.fingerprint import Fingerprint, differences

# An engine that answers /health with an error for this long is not coming back: the
# API server has lost its engine core. Longer than one slow probe.
UNHEALTHY_S = 3.0
# An API that does not answer at all may be busy; after this long it is frozen.
SILENT_S = 120.0


class Phase(StrEnum):
    """Where a boot stands."""

    LAUNCH = "launch"
    LOAD = "load"
    CANARY = "canary"
    SERVING = "serving"
    ENDING = "ending"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        """Whether nothing follows."""
        return self in {Phase.STOPPED, Phase.FAILED}


@dataclass(frozen=True)
class Observation:
    """What is seen at one moment.

    ``exited`` and ``lost`` say, by rank, how its main process ended or which of its
    engine processes has vanished. ``healthy`` is None while the API does not answer at
    all. ``canary`` is None until the completion is back, then "" or what is wrong with
    it. ``progress`` is any counter that grows while the ranks get on.
    """

    now_s: float
    exited: Mapping[int, str] = field(default_factory=dict)
    lost: Mapping[int, str] = field(default_factory=dict)
    fingerprints: Mapping[int, Fingerprint] = field(default_factory=dict)
    healthy: bool | None = None
    canary: str | None = None
    progress: int = 0
    stop: bool = False


@dataclass(frozen=True)
class Watch:
    """The state of a boot; :meth:`step` gives the next one."""

    ranks: tuple[int, ...]
    limits: Limits
    started_s: float
    phase: Phase = Phase.LAUNCH
    phase_s: float = 0.0
    progress: int = 0
    progress_s: float = 0.0
    well_s: float = 0.0
    failure: Failure | None = None

    @staticmethod
    def begin(ranks: tuple[int, ...], limits: Limits, now_s: float) -> Watch:
        """The state right before the ranks are launched."""
        return Watch(
            ranks, limits, now_s, phase_s=now_s, progress_s=now_s, well_s=now_s
        )

    def step(self, seen: Observation) -> Watch:
        """The state after ``seen``; a final state stays as it is."""
        if self.phase.is_final:
            return self
        if seen.stop:
            return self._to(Phase.STOPPED, seen)
        dead = self._dead(seen)
        if dead:
            return self._fail(seen, dead)
        now = self
        if seen.progress > self.progress:
            now = replace(self, progress=seen.progress, progress_s=seen.now_s)
        if seen.healthy:
            now = replace(now, well_s=seen.now_s)
        decide = {
            Phase.LAUNCH: now._launch,
            Phase.LOAD: now._load,
            Phase.CANARY: now._canary,
        }.get(self.phase, now._serving)
        return decide(seen)

    def _to(self, phase: Phase, seen: Observation) -> Watch:
        return replace(
            self,
            phase=phase,
            phase_s=seen.now_s,
            progress_s=seen.now_s,
            well_s=seen.now_s,
        )

    def _fail(self, seen: Observation, failure: Failure) -> Watch:
        return replace(self._to(Phase.FAILED, seen), failure=failure)

    def _dead(self, seen: Observation) -> Failure | None:
        """The failure if a rank has ended; exit status 0 is one like any other."""
        while_ = {
            Phase.SERVING: "while serving",
            Phase.CANARY: "at the first completion",
        }.get(self.phase, "while starting")
        for rank, how in seen.exited.items():
            code = self._code(how)
            return Failure(f"rank {rank} ended {while_}: {how}", "", code, rank)
        for rank, what in seen.lost.items():
            message = f"rank {rank} lost {what} {while_}"
            return Failure(message, "", ExitCode.COMMAND, rank)
        return None

    def _code(self, how: str) -> ExitCode:
        """The exit code for a rank's end: its own while it was not yet the engine."""
        if self.phase is Phase.LAUNCH:
            for code in (ExitCode.CONFIG, ExitCode.INTEGRITY):
                if how == f"exit status {code.value}":
                    return code
        return ExitCode.COMMAND

    def _launch(self, seen: Observation) -> Watch:
        if set(self.ranks) <= set(seen.fingerprints):
            unlike = differences(seen.fingerprints)
            if unlike:
                message = "the ranks do not run the same thing: " + "; ".join(unlike)
                hint = "make model, engine and plugins the same on every node"
                return self._fail(seen, Failure(message, hint, ExitCode.INTEGRITY))
            return self._to(Phase.LOAD, seen)
        if seen.now_s - self.phase_s > self.limits.launch_s:
            missing = sorted(set(self.ranks) - set(seen.fingerprints))
            message = (
                f"rank {missing[0]} has not said what it runs "
                f"after {self.limits.launch_s:.0f} s"
            )
            return self._fail(
                seen, Failure(message, "", ExitCode.NOT_READY, missing[0])
            )
        return self

    def _load(self, seen: Observation) -> Watch:
        if seen.healthy:
            return self._to(Phase.CANARY, seen)
        stalled_s = seen.now_s - self.progress_s
        if stalled_s > self.limits.stall_s:
            message = f"no progress on any rank for {stalled_s:.0f} s while loading"
            return self._late(seen, message, "timeouts.stall_s")
        if seen.now_s - self.phase_s > self.limits.ready_s:
            message = f"the API is not healthy after {self.limits.ready_s:.0f} s"
            return self._late(seen, message, "timeouts.ready_s")
        return self

    def _canary(self, seen: Observation) -> Watch:
        if seen.canary == "":
            return self._to(Phase.SERVING, seen)
        if seen.canary is not None:
            message = f"the first completion failed: {seen.canary}"
            return self._fail(seen, Failure(message, "", ExitCode.INTEGRITY))
        if seen.now_s - self.phase_s > self.limits.canary_s:
            message = f"no first completion after {self.limits.canary_s:.0f} s"
            return self._late(seen, message, "timeouts.canary_s")
        return self

    def _serving(self, seen: Observation) -> Watch:
        unwell_s = seen.now_s - self.well_s
        message = ""
        if seen.healthy is False and unwell_s > UNHEALTHY_S:
            message = "the API reports a dead engine (/health is not 200)"
        if seen.healthy is None and unwell_s > SILENT_S:
            message = f"the API has not answered /health for {unwell_s:.0f} s"
        if message:
            return self._fail(seen, Failure(message, "", ExitCode.COMMAND))
        return self

    def _late(self, seen: Observation, message: str, setting: str) -> Watch:
        hint = f"read the logs; a slow machine may need a larger {setting}"
        return self._fail(seen, Failure(message, hint, ExitCode.NOT_READY))
