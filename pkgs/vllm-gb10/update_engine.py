"""Write the engine's wheel locks anew: ``nix run .#update-engine -- [--check] FOLDER``.

A lock is a JSON list of name, version, file, sha256 and size, one wheel a line, without
any address: builds find a file by its name. ``uv`` resolves, the index that pip is
configured with gives the files. A file whose bytes changed under the same name is
refused (exit 7): that is a broken mirror or an attack, never an update.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

VLLM = "0.32.0"
# Without the bound uv takes cuda-python 12, whose files collide with cuda-bindings 13.
GB10_INPUT = f"vllm=={VLLM}\n"
GB10_CONSTRAINT = "cuda-python>=13\n"
INTEGRITY = 7
_WHEEL = re.compile(r"(.+?)-(.+?)-([^-]+)-([^-]+)-([^-]+)\.whl")


@dataclass(frozen=True)
class Wheel:
    """One locked wheel; ``size`` in bytes."""

    name: str
    version: str
    file: str
    sha256: str
    size: int


class UpdateError(Exception):
    """The lock cannot be made; the text says which project and why."""


def rank_wheel(file: str, tag: str, machine: str) -> tuple[int, int] | None:
    """How well a wheel fits ``tag`` on ``machine``; lower is better, None: not."""
    parts = _WHEEL.fullmatch(file)
    if not parts:
        return None
    pythons, abis, platforms = (parts[i].split(".") for i in (3, 4, 5))
    minor = int(tag[3:])
    old = [int(p[3:]) for p in pythons if re.fullmatch(r"(cp|py)3\d+", p)]
    fits_python = tag in pythons or "py3" in pythons or any(v <= minor for v in old)
    if "any" in platforms:
        return (3, 0) if fits_python else None
    if not any(
        p.startswith(("manylinux", "linux")) and p.endswith(machine) for p in platforms
    ):
        return None
    if tag in pythons and tag in abis:
        return (0, 0)
    if "abi3" in abis and fits_python:
        return (1, -max(old))
    return (2, 0) if "none" in abis and fits_python else None


def pick_wheel(
    files: Iterable[Mapping[str, Any]], tag: str, machine: str
) -> Mapping[str, Any]:
    """The best fitting file of an index page's list; UpdateError where none fits."""
    ranked = [
        (rank_wheel(f["filename"], tag, machine), f["filename"], f) for f in files
    ]
    fitting = sorted(
        (r, name, i) for i, (r, name, _) in enumerate(ranked) if r is not None
    )
    if not fitting:
        names = ", ".join(name for _, name, _ in ranked) or "no file at all"
        raise UpdateError(f"no wheel for {tag} on {machine} among {names}")
    return ranked[fitting[0][2]][2]


def changed_bytes(old: Sequence[Wheel], new: Sequence[Wheel]) -> list[str]:
    """A line for each file whose hash is not the locked one although its name is."""
    before = {w.file: w.sha256 for w in old}
    return [
        f"{w.file}: locked {before[w.file]}, index has {w.sha256}"
        for w in new
        if before.get(w.file, w.sha256) != w.sha256
    ]


def version_changes(old: Sequence[Wheel], new: Sequence[Wheel]) -> list[str]:
    """``name old -> new`` for what is added, gone or of another version."""
    was = {w.name: w.version for w in old}
    now = {w.name: w.version for w in new}
    return [
        f"{name} {was.get(name, 'none')} -> {now.get(name, 'none')}"
        for name in sorted(was | now)
        if was.get(name) != now.get(name)
    ]


def read_requirements(text: str) -> list[tuple[str, str, frozenset[str]]]:
    """(name, version, sha256s) of uv's output or of a list of pins without hashes."""
    rows = []
    for line in text.replace("\\\n", " ").splitlines():
        pin = re.match(r"([A-Za-z0-9._-]+)(\[[^]]*\])?==([^ ;]+)", line)
        if pin:
            hashes = frozenset(re.findall(r"sha256:([0-9a-f]{64})", line))
            rows.append((pin[1], pin[3], hashes))
    return rows


def resolve_gb10(python: str) -> str:
    """Pinned and hashed requirements of vLLM for aarch64 and this Python."""
    constraint = Path(os.environ.get("TMPDIR", "/tmp")) / f"glmspark-{os.getpid()}.txt"  # noqa: S108
    constraint.write_text(GB10_CONSTRAINT)
    try:
        done = subprocess.run(
            [
                *("uv", "pip", "compile", "-", "--quiet", "--no-header"),
                *("--python-version", python, "--only-binary", ":all:"),
                *("--python-platform", "aarch64-manylinux_2_39"),
                *("--constraint", str(constraint), "--generate-hashes"),
            ],
            input=GB10_INPUT,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        constraint.unlink()
    if done.returncode:
        raise UpdateError(f"uv could not resolve vllm {VLLM}: {done.stderr.strip()}")
    return done.stdout


def index_files(index: str, project: str) -> list[dict[str, Any]]:
    """The files of a project on an index (PEP 691)."""
    url = f"{index.rstrip('/')}/{urllib.parse.quote(project)}/"
    vendor = "pypi"  # PEP 691's media type; only the JSON form has sizes
    accept = {"Accept": f"application/vnd.{vendor}.simple.v1+json"}
    with urllib.request.urlopen(urllib.request.Request(url, headers=accept)) as answer:  # noqa: S310
        files: list[dict[str, Any]] = json.load(answer)["files"]
    return files


def local_files(project: str) -> list[dict[str, Any]]:
    """The project's wheels in pip's wheel folders ($PIP_FIND_LINKS), with hashes."""
    import hashlib

    folders = [Path(f) for f in os.environ.get("PIP_FIND_LINKS", "").split()]
    return [
        {
            "filename": f.name,
            "hashes": {"sha256": hashlib.sha256(f.read_bytes()).hexdigest()},
            "size": f.stat().st_size,
        }
        for folder in folders
        for f in sorted(folder.glob(f"{project.replace('-', '_')}-*.whl"))
    ]


def pip_index() -> str:
    """The index that pip is configured with."""
    from pip._internal.models.index import PyPI

    return os.environ.get("PIP_INDEX_URL") or str(PyPI.simple_url)


def lock_wheels(requirements: str, tag: str, machine: str) -> list[Wheel]:
    """One wheel for each pin of ``requirements``."""
    index = pip_index()
    wheels = []
    for name, version, hashes in read_requirements(requirements):
        files = local_files(name) + index_files(index, name)
        wanted = [
            f
            for f in files
            if f["filename"].split("-")[1:2] == [version]
            and (not hashes or f["hashes"]["sha256"] in hashes)
        ]
        file = pick_wheel(wanted, tag, machine)
        row = (file["filename"], file["hashes"]["sha256"], int(file["size"]))
        wheels.append(Wheel(name, version, *row))
    return wheels


def read_lock(path: Path) -> list[Wheel]:
    """The lock at ``path``; empty where there is none."""
    if not path.exists():
        return []
    return [Wheel(**row) for row in json.loads(path.read_text())]


def lock_text(wheels: Sequence[Wheel]) -> str:
    """The lock's text, one wheel a line so that a change is a small diff."""
    rows = ",\n".join(f" {json.dumps(asdict(w))}" for w in wheels)
    return f"[\n{rows}\n]\n"


def update_lock(path: Path, wheels: Sequence[Wheel], *, check: bool) -> int:
    """Write the lock, or with ``check`` only compare; the exit status."""
    old = read_lock(path)
    broken = changed_bytes(old, wheels)
    if broken:
        sys.stderr.write(f"error: {path.name}: bytes changed under the same name\n")
        sys.stderr.writelines(f"  {line}\n" for line in broken)
        sys.stderr.write("hint: do not build; compare the file with another mirror\n")
        return INTEGRITY
    changes = version_changes(old, wheels)
    gigabytes = sum(w.size for w in wheels) / 1e9
    sys.stderr.write(f"{path.name}: {len(wheels)} wheels, {gigabytes:.2f} GB\n")
    sys.stderr.writelines(f"  {line}\n" for line in changes)
    if not check and lock_text(wheels) != (path.read_text() if old else ""):
        path.write_text(lock_text(wheels))
    return 0


def main() -> int:
    """Write or compare the locks of FOLDER as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="pkgs/vllm-gb10 of a checkout")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument(
        "--only", choices=["cp312", "cp313", "loopback"], action="append", default=[]
    )
    args = parser.parse_args()
    folder: Path = args.folder
    status = 0
    for tag in ("cp312", "cp313"):
        if not args.only or tag in args.only:
            pins = resolve_gb10(f"3.{tag[3:]}")
            wheels = lock_wheels(pins, tag, "aarch64")
            path = folder / f"wheels-{tag}-aarch64.json"
            status = max(status, update_lock(path, wheels, check=args.check))
    if not args.only or "loopback" in args.only:
        pins = (folder / "loopback-requirements.txt").read_text()
        wheels = lock_wheels(pins, "cp311", "x86_64")
        path = folder / "wheels-loopback-cp311-x86_64.json"
        status = max(status, update_lock(path, wheels, check=args.check))
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UpdateError as error:
        sys.exit(f"error: {error}")
