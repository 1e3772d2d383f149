"""A rank on another node as a process here, with its log, its life and its end.

The supervisor of the head treats it as any rank. When it ends, however it does, the
node's end of the connection ends the rank; see ``glmspark.leash``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from glmspark import fingerprint
from glmspark.boot import Boot, write_json
from glmspark.containers import inner_boot, read_container
from glmspark.doctor import folders_of, remote_of
from glmspark.errors import CommandError
from glmspark.leash import BEAT_S
from glmspark.logread import clock_file, progress_file
from glmspark.paths import KitPaths, read_key
from glmspark.ranks import SCRUBBED, SCRUBBED_PREFIXES, RankSpec
from glmspark.remote import Remote, in_parallel
from glmspark.remoteerrors import RemoteError
from glmspark.schema import Kit, Runtime
from glmspark.shipped import REMOTE_COMMAND, Call

# Of the supervisor's grace, the node keeps this share for itself, to end and report.
GRACE_SHARE = 0.6
LOST = 255


def write_access(folder: Path, kit: Kit, paths: KitPaths) -> None:
    """Leave in the boot's folder how its ranks reach their nodes."""
    nodes = [node for node in kit.nodes if node.ssh != "local"]
    remotes = [remote_of(kit, node, paths) for node in nodes]
    access = {
        one.target: [str(one.known_hosts), str(one.config or "")] for one in remotes
    }
    here = {"cache": str(paths.cache), "store": str(paths.store)}
    places = {"kit": kit.name, "folders": folders_of(kit), "here": here}
    write_json(folder / "ssh.json", {"access": access, "places": places})


def read_access(folder: Path, spec: RankSpec) -> Remote:
    """How the node of ``spec`` is reached."""
    data = json.loads((folder / "ssh.json").read_text())
    known, config = data["access"][spec.host]
    return Remote(spec.node, spec.host, Path(known), Path(config) if config else None)


def order(
    boot: Boot,
    spec: RankSpec,
    places: Mapping[str, Any],
    box: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What the node is told of its rank; secrets go by standard input only.

    ``places`` says where this machine has cache and store, and what the kit says of
    them: the node has them where its own home is.
    """
    serve = spec.argv.index("serve")
    return {
        "boot": boot.name,
        "rank": spec.rank,
        "argv": list(spec.argv),
        "env": dict(spec.env),
        "secrets": {k: read_key(Path(file)) for k, file in spec.secrets.items()},
        "program": list(spec.argv[:serve]),
        "model": spec.argv[serve + 1],
        "shape": dict(spec.shape),
        "scrub_prefixes": list(SCRUBBED_PREFIXES),
        "scrub": list(SCRUBBED),
        "grace_s": GRACE_SHARE * boot.limits.stop_s,
        "places": dict(places),
        "container": _contained(boot, spec, box),
    }


def _contained(
    boot: Boot, spec: RankSpec, box: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """How the rank is contained, with the boot that it reads inside."""
    if box is None:
        return None
    inner = inner_boot(boot, replace(spec, secrets={}))
    ranks = [one.to_json() for one in inner.ranks]
    return {**box, "boot_json": {**asdict(inner), "ranks": ranks}}


def relay(folder: Path, boot: Boot, spec: RankSpec) -> int:
    """Run the rank on its node, its output here; the exit status to end with."""
    from glmspark.rankexec import fingerprint_file

    remote = read_access(folder, spec)
    places = json.loads((folder / "ssh.json").read_text())["places"]
    box = read_container(folder, spec.rank)
    call = Call.of("glmspark.leash:hold", {"rank": order(boot, spec, places, box)})
    call = Call(call.function, {**call.arguments, "marker": call.marker}, call.marker)
    # A connection of its own: ending the shared one must not end a rank.
    options = remote.options(ControlMaster="no", ControlPath="none")
    wire = subprocess.Popen(
        ["ssh", "-T", *options, "--", remote.target, REMOTE_COMMAND],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert wire.stdin is not None and wire.stdout is not None  # noqa: S101 - both are pipes
    wire.stdin.write(call.stdin([sys.executable]).encode())
    wire.stdin.flush()
    signal.signal(signal.SIGTERM, lambda *_: wire.stdin and wire.stdin.close())
    threading.Thread(target=_beat, args=(wire,), daemon=True).start()

    def state(stated: fingerprint.Fingerprint) -> None:
        fingerprint.write(fingerprint_file(folder, spec.rank), stated)

    def hear(word: str, value: bytes) -> None:
        if word == "progress":
            progress_file(folder, spec.rank).write_bytes(value.strip())
        else:
            ahead = json.dumps(round(float(value) - time.time(), 3))
            clock_file(folder, spec.rank).write_text(ahead)

    answer = _follow(wire.stdout, call.marker, state, hear)
    return _status(answer, spec, wire.wait())


def _beat(wire: subprocess.Popen[bytes]) -> None:
    """Keep the lease: a byte every few seconds, until the connection ends."""
    pause = threading.Event()
    while wire.stdin is not None and not pause.wait(BEAT_S):
        try:
            wire.stdin.write(b"\n")
            wire.stdin.flush()
        except (OSError, ValueError):  # ended, or closed by us
            return


def _follow(
    lines: Any,
    marker: str,
    state: Callable[[fingerprint.Fingerprint], None],
    hear: Callable[[str, bytes], None],
) -> Mapping[str, Any] | None:
    """Copy the rank's output to ours; its last answer, None if there was none."""
    mark, answer_next = marker.encode(), False
    answer: Mapping[str, Any] | None = None
    for line in lines:
        if answer_next:
            answer = json.loads(line)
            answer_next = False
        elif line.startswith((mark + b"clock ", mark + b"progress ")):
            word, _, value = line.removeprefix(mark).partition(b" ")
            with suppress(OSError):
                hear(word.decode(), value)
        elif line.startswith(mark + b"fingerprint "):
            state(json.loads(line.removeprefix(mark + b"fingerprint ")))
        elif line.startswith(mark):
            answer_next = True
        elif line != b"\n":
            with suppress(OSError):  # a full disk here must not end a rank elsewhere
                os.write(sys.stdout.fileno(), line)
    return answer


def _status(answer: Mapping[str, Any] | None, spec: RankSpec, code: int) -> int:
    """The exit status of this process, after saying what went wrong."""
    if answer is None:
        said = f"lost the connection to {spec.node} ({spec.host}), ssh status {code}"
        sys.stderr.write(f"ConnectionError: {said}\n")
        return LOST
    if "error" in answer:
        sys.stderr.write(f"RuntimeError: on {spec.node}: {answer['error']}\n")
        return 1
    if answer["result"]["why"]:
        sys.stderr.write(f"RuntimeError: on {spec.node}: {answer['result']['why']}\n")
    status = int(answer["result"]["status"] or 0)
    return status if status >= 0 else 128 - status


def end_remote(kit: Kit, paths: KitPaths, boots: Sequence[str]) -> None:
    """See on every other node that no process of ``boots`` is left.

    Raises:
        CommandError: names each node that could not be reached, or not be cleared.
    """
    nodes = [node for node in kit.nodes if node.ssh != "local"]
    tool = kit.image.tool if kit.runtime is Runtime.OCI else ""
    arguments = {"boots": list(boots), "tool": tool}

    def one(remote: Remote) -> int:
        return int(remote.call("glmspark.leash:end_boots", arguments))

    remotes = [remote_of(kit, node, paths) for node in nodes]
    wrong = []
    for remote, left in zip(remotes, in_parallel(one, remotes), strict=True):
        if isinstance(left, RemoteError):
            wrong.append(f"{remote.name} could not be asked: {left}")
        elif left:
            wrong.append(f"{remote.name} has {left} processes that cannot be ended")
    if wrong:
        raise CommandError(
            "not every node is known to be free of ranks: " + "; ".join(wrong),
            hint="bring the node back, then: glmspark stop",
            node=wrong[0].partition(" ")[0],
        )
