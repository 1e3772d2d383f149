"""Launch the ranks of one node, watch them, and end them all when one ends."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from glmspark import fingerprint, processes
from glmspark.boot import Boot, Failure, State, kernel_boot, scratch_folder
from glmspark.causes import first_cause, hint_for
from glmspark.errors import ExitCode
from glmspark.fabricfacts import growth, read_counters
from glmspark.facts import Roots
from glmspark.linkwatch import LinkWatch, MemoryWatch, device_of
from glmspark.logread import read_progress
from glmspark.probing import Prober, how_it_ended, with_trial_hint
from glmspark.processes import Identity, Marked
from glmspark.rankexec import fingerprint_file, shared_marker
from glmspark.watch import Observation, Phase, Watch

PR_SET_CHILD_SUBREAPER = 36
TICK_S = 0.2
SCAN_S = 1.0
KILL_S = 10.0
# What is left when the main processes of all ranks have ended gets this long.
ORPHAN_S = 0.5
LOG_BYTES = 64 << 20


def log_file(folder: Path, rank: int) -> Path:
    """The log of a rank of the boot in ``folder``."""
    return folder / f"rank-{rank}.log"


class Supervisor:
    """One boot on one node, from launch to the proof that nothing is left."""

    def __init__(self, folder: Path, state_file: Path) -> None:
        self.folder = folder
        self.state_file = state_file
        self.boot = Boot.read(folder)
        self.children: dict[int, subprocess.Popen[bytes]] = {}
        self.exited: dict[int, str] = {}
        self.engines: dict[Identity, Marked] = {}
        self.progress = 0
        self.members: list[Marked] = []
        self.scanned_s = 0.0
        self.kills = processes.oom_kills()
        self.counters = read_counters(Roots())
        self.broken: dict[int, str] = {}
        self.memory = MemoryWatch()
        self.links = {
            spec.rank: LinkWatch(device_of(spec.env))
            for spec in self.boot.ranks
            if spec.host == "local"
        }
        self.stop_asked = False
        self.scratch = scratch_folder(self.boot.name)
        self.scratch.mkdir(mode=0o700)
        me = processes.identity(os.getpid())
        assert me is not None  # noqa: S101 - this process runs
        self.state = State(
            boot=self.boot.name,
            kit=self.boot.kit,
            digest=self.boot.digest,
            kernel_boot=kernel_boot(),
            supervisor=me,
            phase=Phase.LAUNCH.value,
            since=time.time(),
            url=self.boot.api.url,
            name=self.boot.api.name,
            nodes={spec.rank: spec.node for spec in self.boot.ranks},
        )

    def run(self) -> int:
        """Watch the boot to its end; the exit code is the failure's, or 0."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._ask_stop)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.state.write(self.state_file)
        limits = self.boot.limits
        numbers = tuple(spec.rank for spec in self.boot.ranks)
        watch = Watch.begin(numbers, limits, time.monotonic())
        failure: Failure | None = None
        try:
            for spec in self.boot.ranks:
                self._launch(spec.rank)
            watch = self._watch(watch)
            failure = self._explain(watch.failure)
        except OSError as error:  # a full disk, a folder that has gone
            said = f"the supervisor cannot go on: {error}"
            failure = Failure(said, hint_for(str(error)), ExitCode.COMMAND)
        except Exception as error:
            failure = Failure(f"the supervisor failed: {error!r}", "", ExitCode.BUG)
            raise
        finally:
            with suppress(OSError):  # whatever the disk says, the ranks are ended
                self._say(phase=Phase.ENDING.value, failure=failure)
            self.end_all()
            phase = Phase.FAILED if failure else Phase.STOPPED
            with suppress(OSError):
                self._say(phase=phase.value, failure=failure)
        return failure.exit_code if failure else 0

    def _watch(self, watch: Watch) -> Watch:
        """Follow the boot until it has ended or is asked to."""
        prober = Prober(self.boot, self.folder)
        prober.start()
        while not watch.phase.is_final:
            before = watch.phase
            watch = watch.step(self._observe(prober, before))
            if watch.phase is not before and not watch.phase.is_final:
                self._enter(watch.phase, prober, watch.started_s)
            time.sleep(TICK_S)
        return watch

    def _ask_stop(self, _number: int, _frame: object) -> None:
        self.stop_asked = True

    def _say(self, **changes: object) -> None:
        self.state = replace(self.state, since=time.time(), **changes)  # type: ignore[arg-type]
        self.state.write(self.state_file)

    def _enter(self, phase: Phase, prober: Prober, started_s: float) -> None:
        if phase is Phase.CANARY:
            prober.wants_canary.set()
        if phase is Phase.SERVING:
            self._say(phase=phase.value, ready_s=time.monotonic() - started_s)
        else:
            shared = any(
                shared_marker(self.folder, s.rank).exists() for s in self.boot.ranks
            )
            self._say(phase=phase.value, private_shm=not shared)

    def _launch(self, rank: int) -> None:
        env = {
            **os.environ,
            processes.MARKER: self.boot.name,
            "GLMSPARK_RANK": str(rank),
            "GLMSPARK_PARENT": str(os.getpid()),
            processes.HOME: str(self.state_file.parent),
            "GLMSPARK_SCRATCH": str(self.scratch / f"r{rank}"),
        }
        argv = [sys.executable, "-m", "glmspark", "rank"]
        argv += ["--boot", str(self.folder), "--rank", str(rank)]
        with log_file(self.folder, rank).open("ab") as log:
            child = subprocess.Popen(
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.children[rank] = child
        who = processes.identity(child.pid)
        if who is not None:
            self._say(ranks={**self.state.ranks, rank: who})

    def _reap(self) -> None:
        """Collect every ended child, adopted orphans included."""
        pids = {child.pid: rank for rank, child in self.children.items()}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in pids:
                rank = pids[pid]
                self.children[rank].returncode = status
                self.exited[rank] = how_it_ended(status, self.kills)

    def _scan(self, now_s: float) -> None:
        """Look at the processes of the boot again, once in a while."""
        if now_s - self.scanned_s < SCAN_S:
            return
        self.scanned_s = now_s
        self.members = processes.marked(self.boot.name)
        for one in self.members:
            if one.is_engine:
                self.engines[one.who] = one
        logs = sum(
            log_file(self.folder, s.rank).stat().st_size for s in self.boot.ranks
        )
        elsewhere = sum(read_progress(self.folder, s.rank) for s in self.boot.ranks)
        here = processes.progress(self.members)
        self.progress = max(self.progress, logs + here + elsewhere)
        broken = {rank: one.broken(now_s) for rank, one in self.links.items()}
        self.broken = {rank: what for rank, what in broken.items() if what}
        if self.links and (short := self.memory.short()):
            self.broken.setdefault(min(self.links), short)
        self._rotate()

    def _rotate(self) -> None:
        """Keep a log below a bound: copy it aside, then cut it.

        The ranks write to it directly (append mode), so that they do not depend on
        this process; lines written between copy and cut are lost.
        """
        for spec in self.boot.ranks:
            log = log_file(self.folder, spec.rank)
            if log.stat().st_size > LOG_BYTES:
                shutil.copyfile(log, log.with_suffix(".log.1"))
                os.truncate(log, 0)

    def _lost(self) -> dict[int, str]:
        """What ranks have lost: the fabric's device, or an engine process."""
        return self.broken | {
            one.rank: f"its process {one.engine_title} (pid {who.pid})"
            for who, one in self.engines.items()
            if one.rank is not None and not who.is_alive
        }

    def _fingerprints(self) -> Mapping[int, fingerprint.Fingerprint]:
        stated = {
            spec.rank: fingerprint.read(fingerprint_file(self.folder, spec.rank))
            for spec in self.boot.ranks
        }
        return {rank: one for rank, one in stated.items() if one is not None}

    def _observe(self, prober: Prober, phase: Phase) -> Observation:
        now_s = time.monotonic()
        self._reap()
        self._scan(now_s)
        return Observation(
            now_s=now_s,
            exited=dict(self.exited),
            lost=self._lost(),
            fingerprints=self._fingerprints() if phase is Phase.LAUNCH else {},
            healthy=prober.healthy,
            canary=prober.canary,
            progress=self.progress,
            stop=self.stop_asked,
        )

    def _explain(self, failure: Failure | None) -> Failure | None:
        """The failure with the first cause that the logs show, and its remedy."""
        if failure is None:
            return None
        failure = with_trial_hint(failure, self.folder)
        if grown := growth(self.counters, read_counters(Roots())):
            said = f"{failure.message}; RDMA errors here: {', '.join(grown[:6])}"
            failure = replace(failure, message=said)
        order = [failure.rank] if failure.rank is not None else []
        order += [s.rank for s in self.boot.ranks if s.rank not in order]
        for rank in order:
            text = log_file(self.folder, rank).read_text(errors="replace")
            cause = first_cause(text)
            if cause:
                hint = failure.hint or hint_for(cause)
                said = f"{failure.message}; first cause (rank {rank}): {cause}"
                return replace(failure, message=said, hint=hint)
        return failure

    def end_all(self) -> None:
        """End every process of the boot: ask, wait, kill, and see that none is left."""
        for child in self.children.values():
            who = processes.identity(child.pid)
            if who is not None and child.returncode is None:
                processes.send(who, signal.SIGTERM)
        deadline_s = time.monotonic() + self.boot.limits.stop_s
        while len(self.exited) < len(self.children) and time.monotonic() < deadline_s:
            self._reap()
            time.sleep(0.05)
        self._wait_gone(ORPHAN_S)
        left = processes.marked(self.boot.name)
        segments = set()
        if not self.state.private_shm:
            segments = processes.shared_segments(one.who.pid for one in left)
        deadline_s = time.monotonic() + KILL_S
        while left and time.monotonic() < deadline_s:
            for one in left:
                processes.send(one.who, signal.SIGKILL)
            self._wait_gone(1.0)
            left = processes.marked(self.boot.name)
        for path in segments:
            with suppress(OSError):
                path.unlink()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _wait_gone(self, limit_s: float) -> None:
        deadline_s = time.monotonic() + limit_s
        while time.monotonic() < deadline_s:
            self._reap()
            if not processes.marked(self.boot.name):
                return
            time.sleep(0.1)
