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
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from glmspark import fingerprint, imageside, processes, viewlease
from glmspark.fabricfacts import growth, read_counters
from glmspark.facts import Roots
from glmspark.hostfacts import find_tools
from glmspark.linkwatch import LinkWatch, MemoryWatch, device_of
from glmspark.nodeside import node_paths
from glmspark.scene import die_with_parent, private_shm

# The head sends a byte every BEAT_S; after SILENCE_S without one it counts as gone.
BEAT_S = 2.0
SILENCE_S = 20.0
KILL_S = 10.0
TICK_S = 0.2
SCAN_S = 1.0
# Seldom: a line that the rank has not ended yet is cut in two by it.
PROGRESS_S = 10.0
SECRET_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL


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


def announce(marker: str, stated: fingerprint.Fingerprint) -> None:
    """Tell the head what the rank runs, and this node's time."""
    sys.stdout.write(f"\n{marker}clock {time.time()}\n")
    sys.stdout.write(f"\n{marker}fingerprint {json.dumps(stated)}\n")
    sys.stdout.flush()


def _say_progress(
    marker: str, mine: Sequence[processes.Marked], said_s: float
) -> float:
    """Tell the head how far the rank is, now and then; when it was told last."""
    if time.monotonic() - said_s < PROGRESS_S:
        return said_s
    sys.stdout.write(f"\n{marker}progress {processes.progress(mine)}\n")
    sys.stdout.flush()
    return time.monotonic()


def _take(rank: Mapping[str, Any]) -> fingerprint.Fingerprint:
    plugins = rank["env"].get("VLLM_PLUGINS", "")
    return fingerprint.take(rank["program"], rank["model"], rank["shape"], plugins)


class _Stated:
    """Announces what a contained rank states, once it has."""

    def __init__(self, file: Path, marker: str) -> None:
        self._file, self._marker, self._done = file, marker, False

    def look(self) -> None:
        if not self._done and (stated := fingerprint.read(self._file)):
            announce(self._marker, stated)
            self._done = True


def _lives(
    child: subprocess.Popen[bytes],
    rank: Mapping[str, Any],
    marker: str,
    heard: _Stated | None = None,
) -> str:
    """Why it is over: the rank ended (""), lost an engine process, or the head went."""
    heard_s = scanned_s = said_s = time.monotonic()
    engines: dict[processes.Identity, str] = {}
    link, memory = LinkWatch(device_of(rank["env"])), MemoryWatch()
    while child.poll() is None:
        if select.select([0], [], [], TICK_S)[0]:
            if not os.read(0, 4096):
                return "the head closed the connection"
            heard_s = time.monotonic()
        if heard is not None:
            heard.look()
        if time.monotonic() - heard_s > SILENCE_S:
            return f"nothing was heard of the head for {SILENCE_S:.0f} s"
        if time.monotonic() - scanned_s > SCAN_S:
            scanned_s = time.monotonic()
            if broken := link.broken(scanned_s) or memory.short():
                return broken
            mine = _left(rank)
            said_s = _say_progress(marker, mine, said_s)
            engines |= {
                one.who: f"its process {one.engine_title} (pid {one.who.pid})"
                for one in mine
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
    boxes = 0
    if rank["container"] is not None:
        boxes = imageside.remove(rank["container"]["tool"], [rank["boot"]])
    return len(_left(rank)) + boxes


def localise(rank: Mapping[str, Any]) -> dict[str, Any]:
    """``rank`` with this node's own cache and weights store in place of the head's."""
    places = rank["places"]
    own = node_paths(places["kit"], places["folders"])
    moves = [
        (places["here"][name], str(getattr(own, name))) for name in ("cache", "store")
    ]

    def move(text: str) -> str:
        for there, here in moves:
            if text == there or text.startswith(there + "/"):
                return here + text.removeprefix(there)
        return text

    return {
        **rank,
        "argv": [move(word) for word in rank["argv"]],
        "env": {name: move(value) for name, value in rank["env"].items()},
        "model": move(rank["model"]),
        "store": str(own.store),
        "cache": str(own.cache),
    }


def contain(rank: Mapping[str, Any], folder: str) -> list[str]:
    """The argv that runs ``rank`` in its container, its boot left in ``folder``."""
    box = rank["container"]
    inner = dict(box["boot_json"])
    spec = {**inner["ranks"][0], "argv": rank["argv"], "env": rank["env"]}
    secrets = {}
    for name, value in rank["secrets"].items():
        secrets[name] = f"{folder}/{name}"
        with os.fdopen(os.open(secrets[name], SECRET_FILE, 0o600), "w") as file:
            file.write(value)
    inner["ranks"] = [{**spec, "secrets": secrets}]
    Path(folder, "boot.json").write_text(json.dumps(inner))
    box = {**box, "store": rank["store"], "cache": rank["cache"]}
    cell = imageside.cell_of({**rank, "container": box}, folder, [])
    return imageside.run_argv(box["tool"], box["image"], cell)


def hold(rank: Mapping[str, Any], marker: str) -> dict[str, Any]:
    """Become the guardian of one rank until it ends or the head is gone.

    Prints a line with ``marker`` and the rank's fingerprint, then the rank's own
    output; gives its wait status (negative: the signal), what could not be ended, and
    why it was ended ("": it ended by itself).

    Raises:
        IntegrityError: the model cannot be fingerprinted.
        OSError: the engine cannot be run, or the model is not there.
    """
    rank = localise(rank)
    contained = rank["container"] is not None
    if contained:
        viewlease.hold(Path(rank["model"]), inheritable=False)
    else:
        rank = viewlease.held(rank)
        announce(marker, _take(rank))
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        die_with_parent(libc)
        if not contained:  # the container has one of its own
            private_shm(libc)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _ask)
    with _scratch(rank["boot"], rank["rank"]) as scratch:
        child = subprocess.Popen(
            contain(rank, scratch) if contained else rank["argv"],
            env=_environment(rank, scratch),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509 - no thread runs here
            cwd="/",
        )
        why, kills = "it was asked to", processes.oom_kills()
        counters = read_counters(Roots())
        stated = Path(scratch, f"rank-{rank['rank']}.fingerprint.json")
        heard = _Stated(stated, marker) if contained else None
        with suppress(AskedToEndError):
            why = _lives(child, rank, marker, heard)
            if child.returncode == -signal.SIGKILL and processes.oom_kills() > kills:
                why = processes.OUT_OF_MEMORY
        left = end(child, rank)
        if grown := growth(counters, read_counters(Roots())):
            sys.stdout.write(f"RDMA errors on this node: {', '.join(grown)}\n")
    return {"status": child.returncode, "left": left, "why": why}


@contextmanager
def _scratch(boot: str, rank: int) -> Iterator[str]:
    """A folder for the rank's temporary files; short, for the sockets below it.

    By the boot's name: whoever ends the boot finds it, should this process be killed.
    """
    folder = Path("/tmp", f"glmspark-{boot}-r{rank}")  # noqa: S108 - made with mode 0700
    folder.mkdir(mode=0o700)
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(boots: Iterable[str]) -> None:
    """Remove what killed ranks of ``boots`` have left."""
    for boot in boots:
        for folder in Path("/tmp").glob(f"glmspark-{boot}-r*"):  # noqa: S108 - by name
            shutil.rmtree(folder, ignore_errors=True)


def end_boots(boots: Sequence[str], tool: str = "") -> int:
    """Kill every process of ``boots`` on this node; how many could not be ended.

    ``tool`` is the container engine that the kit asks for ("auto"), "" for none.
    """
    wanted = set(boots)
    boxes = 0
    if tool and (program := imageside.pick_tool(find_tools(os.environ), tool)):
        boxes = imageside.remove(program, boots)
    deadline_s = time.monotonic() + KILL_S
    while True:
        left = [one for one in processes.marked() if one.boot in wanted]
        if not left or time.monotonic() > deadline_s:
            _sweep(wanted if not left else ())
            return len(left) + boxes
        for one in left:
            processes.send(one.who, signal.SIGKILL)
        time.sleep(0.1)
