"""Resolve ``*.in`` into the hash-locked ``*.txt`` beside it; run it as ``make lock``.

Needs ``uv`` on PATH and an index. Each lock is resolved for every Python and machine
in :data:`TARGETS` and joined: one version per package, all hashes of its release, and
a marker where only newer Pythons need it. Pins already in a lock are kept; give
``--upgrade`` for new ones. Exit status 5 where uv fails, 7 where two targets differ.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")
TARGETS = [(python, machine) for python in PYTHONS for machine in MACHINES]
HEADER = "# Made by lock.py from {name}.in: edit that one and run `make lock`.\n"


class Lock(NamedTuple):
    """One lock to make: its name, and the uv arguments that are its own."""

    name: str
    arguments: tuple[str, ...]


LOCKS = (
    Lock("loopback", ("--override", "loopback-without.in")),
    Lock("check", ("--constraint", "loopback.txt")),
)


class Pin(NamedTuple):
    """One locked requirement: ``name==version`` and its sorted sha256 hashes."""

    requirement: str
    hashes: tuple[str, ...]


def parse(text: str) -> dict[str, Pin]:
    """The pins in a requirements file, by package name, without their markers."""
    pins = {}
    for block in re.split(r"\n(?=\S)", text):
        match = re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)", block)
        if match:
            hashes = sorted(set(re.findall(r"--hash=sha256:([0-9a-f]{64})", block)))
            pins[match[1]] = Pin(match[0], tuple(hashes))
    return pins


def join(resolved: dict[tuple[str, str], dict[str, Pin]]) -> str:
    """One requirements text for all targets; raises ValueError where they differ."""
    every: dict[str, Pin] = {}
    for pins in resolved.values():
        for name, pin in pins.items():
            if every.setdefault(name, pin) != pin:
                raise ValueError(f"{every[name].requirement} and {pin.requirement}")
    lines = []
    for name, pin in sorted(every.items()):
        needs = [target for target, pins in resolved.items() if name in pins]
        lines.append(f"{pin.requirement}{_marker(name, needs)} \\\n")
        lines.append(" \\\n".join(f"    --hash=sha256:{h}" for h in pin.hashes) + "\n")
    return "".join(lines)


def _marker(name: str, needs: list[tuple[str, str]]) -> str:
    """The marker for a package that only the targets in ``needs`` need."""
    first = min((python for python, _ in needs), key=PYTHONS.index)
    newer = PYTHONS[PYTHONS.index(first) :]
    if set(needs) != {(p, m) for p in newer for m in MACHINES}:
        raise ValueError(f"{name} is needed on {needs}: write that marker by hand")
    return "" if first == PYTHONS[0] else f' ; python_version >= "{first}"'


def _resolve(lock: Lock, target: tuple[str, str], *, upgrade: bool) -> dict[str, Pin]:
    """What uv resolves for one target, starting from the pins of the present lock."""
    python, machine = target
    draft = HERE / f".{lock.name}-{python}-{machine}.draft"
    present = HERE / f"{lock.name}.txt"
    if present.exists() and not upgrade:
        shutil.copyfile(present, draft)
    command = ["uv", "pip", "compile", f"{lock.name}.in", "--output-file", draft.name]
    command += ["--generate-hashes", "--no-header", "--no-annotate", "--quiet"]
    command += ["--python-version", python]
    command += ["--python-platform", f"{machine}-manylinux_2_28", *lock.arguments]
    try:
        subprocess.run(command, cwd=HERE, check=True, stdout=subprocess.DEVNULL)
        return parse(draft.read_text())
    finally:
        draft.unlink(missing_ok=True)


def make(lock: Lock, *, upgrade: bool) -> None:
    """Write ``lock``'s file, leaving out what loopback.txt pins already."""
    resolved = {target: _resolve(lock, target, upgrade=upgrade) for target in TARGETS}
    if lock.name != "loopback":
        taken = parse((HERE / "loopback.txt").read_text())
        for pins in resolved.values():
            for name in pins.keys() & taken.keys():
                del pins[name]
    text = HEADER.format(name=lock.name) + join(resolved)
    (HERE / f"{lock.name}.txt").write_text(text)
    sys.stderr.write(f"{lock.name}.txt: {text.count('==')} packages\n")


def main() -> int:
    """Make every lock; the exit status is in the module's first lines."""
    parser = argparse.ArgumentParser(description="make the hash-locked requirements")
    parser.add_argument("--upgrade", action="store_true", help="take new versions")
    upgrade = parser.parse_args().upgrade
    if shutil.which("uv") is None:
        sys.stderr.write("error: uv is not on PATH\nhint: pipx install uv\n")
        return 5
    try:
        for lock in LOCKS:
            make(lock, upgrade=upgrade)
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"error: uv ended with status {error.returncode}\n")
        return 5
    except ValueError as error:
        sys.stderr.write(f"error: the targets do not agree: {error}\n")
        return 7
    return 0


if __name__ == "__main__":
    sys.exit(main())
