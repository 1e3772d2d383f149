"""Run one rank on this node for a head elsewhere; it lives only while the head does.

The head's end of the ssh connection is the lease: it sends a byte every few seconds,
and when it closes or falls silent the rank is ended here, with all that it started.
Standard library alone: it is sent to the node.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from glmspark import fingerprint, processes, viewlease
from glmspark.scene import die_with_parent, private_shm

# The head sends a byte every BEAT_S; after SILENCE_S without one it counts as gone.
BEAT_S = 2.0
SILENCE_S = 20.0
KILL_S = 10.0
TICK_S = 0.2
SCAN_S = 1.0


class AskedToEndError(Exception):
    """This process was asked to end."""


def _ask(_number: int, _frame: object) -> None:
    raise AskedToEndError


def _environment(rank: Mapping[str, Any], scratch: str) -> dict[str, str]:
    """The rank's environment over this node's own, without what would steer it."""
    prefixes, names = tuple(rank["scrub_prefixes"]), set(rank["scrub"])
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(prefixes) and name not in names
    }
    marks = {processes.MARKER: rank["boot"], "GLMSPARK_RANK": str(rank["rank"])}
    return {**own, **rank["env"], **rank["secrets"], **marks, "TMPDIR": scratch}


def _left(rank: Mapping[str, Any]) -> list[processes.Marked]:
    return [one for one in processes.marked(rank["boot"]) if one.rank == rank["rank"]]


def _lives(child: subprocess.Popen[bytes], rank: Mapping[str, Any]) -> str:
    """Why it is over: the rank ended (""), lost an engine process, or the head went."""
    heard_s = scanned_s = time.monotonic()
    engines: dict[processes.Identity, str] = {}
    while child.poll() is None:
        if select.select([0], [], [], TICK_S)[0]:
            if not os.read(0, 4096):
                return "the head closed the connection"
            heard_s = time.monotonic()
        if time.monotonic() - heard_s > SILENCE_S:
            return f"nothing was heard of the head for {SILENCE_S:.0f} s"
        if time.monotonic() - scanned_s > SCAN_S:
            scanned_s = time.monotonic()
            engines |= {
                one.who: f"its process {one.engine_title} (pid {one.who.pid})"
                for one in _left(rank)
                if one.is_engine
            }
            lost = [text for who, text in engines.items() if not who.is_alive]
            if lost and child.poll() is None:
                return f"it lost {lost[0]}"
    return ""


def end(child: subprocess.Popen[bytes], rank: Mapping[str, Any]) -> int:
    """End the rank: ask, wait, kill what is left; the number that cannot be ended."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(rank["grace_s"])
        except subprocess.TimeoutExpired:
            child.kill()
    deadline_s = time.monotonic() + KILL_S
    while (left := _left(rank)) and time.monotonic() < deadline_s:
        for one in left:
            processes.send(one.who, signal.SIGKILL)
        child.poll()
        time.sleep(0.1)
    child.poll()
    return len(_left(rank))


def hold(rank: Mapping[str, Any], marker: str) -> dict[str, Any]:
    """Become the guardian of one rank until it ends or the head is gone.

    Prints a line with ``marker`` and the rank's fingerprint, then the rank's own
    output; gives its wait status (negative: the signal), what could not be ended, and
    why it was ended ("": it ended by itself).

    Raises:
        IntegrityError: the model cannot be fingerprinted.
        OSError: the engine cannot be run, or the model is not there.
    """
    rank = viewlease.held(rank)
    stated = fingerprint.take(
        rank["program"],
        rank["model"],
        rank["shape"],
        rank["env"].get("VLLM_PLUGINS", ""),
    )
    sys.stdout.write(f"\n{marker}fingerprint {json.dumps(stated)}\n")
    sys.stdout.flush()
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        die_with_parent(libc)
        private_shm(libc)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _ask)
    with tempfile.TemporaryDirectory(prefix="glmspark-", dir="/tmp") as scratch:
        child = subprocess.Popen(
            rank["argv"],
            env=_environment(rank, scratch),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509 - no thread runs here
            cwd="/",
        )
        why = "it was asked to"
        with suppress(AskedToEndError):
            why = _lives(child, rank)
        left = end(child, rank)
    return {"status": child.returncode, "left": left, "why": why}


def end_boots(boots: Sequence[str]) -> int:
    """Kill every process of ``boots`` on this node; how many could not be ended."""
    wanted = set(boots)
    deadline_s = time.monotonic() + KILL_S
    while True:
        left = [one for one in processes.marked() if one.boot in wanted]
        if not left or time.monotonic() > deadline_s:
            return len(left)
        for one in left:
            processes.send(one.who, signal.SIGKILL)
        time.sleep(0.1)
