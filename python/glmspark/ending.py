"""End what is provably ours, and see that nothing of it is left."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from glmspark import processes
from glmspark.backends import Backend
from glmspark.boot import State, boot_folders, read_state, scratch_folder
from glmspark.console import Narrator
from glmspark.errors import CommandError
from glmspark.facts import Facts, Roots, read_listeners
from glmspark.paths import KitPaths

# The supervisor needs this long beyond the grace of its ranks to kill and to prove.
SUPERVISOR_END_S = 15.0
# Memory counts as given back when it grows by less than a step within a tick.
MEMORY_TICK_S = 0.5
MEMORY_STEP = 64 << 20
MEMORY_S = 60.0


def boot_names(paths: KitPaths) -> set[str]:
    """The kit's own boots that are known on this node, by files or by processes."""
    names = {folder.name for folder in boot_folders(paths.boots)}
    state = read_state(paths.state_file)
    home = str(paths.state)
    names |= {one.boot for one in processes.marked() if one.home == home}
    return names | ({state.boot} if state else set())


def end_kit(paths: KitPaths, backend: Backend, grace_s: float) -> bool:
    """End supervisor and ranks; whether there was anything to end.

    Raises:
        CommandError: a process could not be ended.
    """
    state, boots = read_state(paths.state_file), boot_names(paths)
    current = state is not None and state.is_current
    if state is not None and current:
        backend.stop(state)
        _await_gone(state, grace_s + SUPERVISOR_END_S)
    left = [one for one in processes.marked() if one.boot in boots]
    kill(left, boots)
    for boot in boots:
        shutil.rmtree(scratch_folder(boot), ignore_errors=True)
    state = read_state(paths.state_file)
    if state is not None and not state.is_final:
        with suppress(OSError):  # a full disk must not keep a stop from succeeding
            replace(state, phase="stopped", since=time.time()).write(paths.state_file)
    return bool(left) or current


def _await_gone(state: State, limit_s: float) -> None:
    deadline_s = time.monotonic() + limit_s
    while state.supervisor.is_alive and time.monotonic() < deadline_s:
        time.sleep(0.05)
    if state.supervisor.is_alive:
        processes.send(state.supervisor, signal.SIGKILL)


def kill(left: list[processes.Marked], boots: set[str], limit_s: float = 10.0) -> None:
    """End the processes ``left`` and whatever else carries a mark of ``boots``.

    Raises:
        CommandError: some are alive after ``limit_s``.
    """
    deadline_s = time.monotonic() + limit_s
    while left:
        if time.monotonic() > deadline_s:
            pids = ",".join(str(one.who.pid) for one in left)
            raise CommandError(
                f"processes of this kit cannot be ended: pid {pids}",
                hint=f"ps -fp {pids}",
            )
        for one in left:
            processes.send(one.who, signal.SIGKILL)
        time.sleep(0.05)
        left = [one for one in processes.marked() if one.boot in boots]


def without_ours(facts: Facts, boots: set[str]) -> Facts:
    """``facts`` as they will be once the kit's own ranks have ended."""
    ours = {stray.pid for stray in facts.strays if stray.boot in boots}
    memory = dict(facts.memory)
    if "MemAvailable" in memory:
        memory["MemAvailable"] += sum(processes.pss_bytes(pid) for pid in ours)
    return replace(
        facts,
        memory=memory,
        strays=tuple(stray for stray in facts.strays if stray.pid not in ours),
        listeners=tuple(one for one in facts.listeners if one.pid not in ours),
    )


def note_taken(port: int, narrator: Narrator) -> None:
    """Say who holds a port of the kit now that none of its ranks is alive."""
    for one in read_listeners(Roots()):
        if one.port == port:
            owner = f"pid {one.pid} ({one.program})" if one.pid else "somebody"
            narrator.note(f"port {port} is held by {owner}, none of this kit's ranks")
            return


def await_memory(
    read: Callable[[], int], pause: Callable[[float], None], limit_s: float = MEMORY_S
) -> float:
    """Wait until available memory has stopped growing; the seconds that it took.

    The driver gives a GPU's memory back some time after its process has gone; a start
    into the falling rest of an old rank fails or wedges the host. ``read`` gives the
    available bytes, ``pause`` sleeps.
    """
    passed_s, before = 0.0, read()
    while passed_s < limit_s:
        pause(MEMORY_TICK_S)
        passed_s += MEMORY_TICK_S
        now = read()
        if now - before < MEMORY_STEP:
            return passed_s
        before = now
    return passed_s
