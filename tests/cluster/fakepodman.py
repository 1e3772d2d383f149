"""A container engine for tests: remembers its argv, and runs the image's entry point.

Its store is a folder; over ssh it is another host's. An image is known by what its
archive says; ``naming`` is how the store calls it: by its config, or by something of
its own, as Docker's containerd store does.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shlex
import signal
import sys
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.conftest import REPOSITORY

ENTRY = ["/bin/glmspark", "rank"]


def install(folder: Path, name: str = "podman", naming: str = "config") -> Path:
    """Put the program into ``folder``/bin; gives that folder for PATH."""
    places = folder / "bin"
    places.mkdir(parents=True, exist_ok=True)
    program = places / name
    code = (
        "import sys\n"
        f"sys.path[:0] = [{str(REPOSITORY)!r}, {str(REPOSITORY / 'python')!r}]\n"
        "from tests.cluster.fakepodman import main\n"
        f"main({str(folder)!r}, {naming!r}, sys.argv[1:])\n"
    )
    line = shlex.join([sys.executable, "-P", "-c", code])
    program.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
    program.chmod(0o755)
    return places


def make_archive(path: Path, word: str = "engine") -> str:
    """A docker archive of an image with one layer; the digest of its config."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as inner:
        _add(inner, "word", word.encode())
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": "arm64",
        "config": {"Entrypoint": ENTRY, "Labels": {"org.glmspark.closure": word}},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    raw = json.dumps(config).encode()
    name = hashlib.sha256(raw).hexdigest()
    entry = {"Config": f"{name}.json", "RepoTags": ["glmspark:1"], "Layers": ["a.tar"]}
    with tarfile.open(path, "w") as outer:
        _add(outer, "a.tar", layer.getvalue())
        _add(outer, f"{name}.json", raw)
        _add(outer, "manifest.json", json.dumps([entry]).encode())
    return f"sha256:{name}"


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


class Store:
    """What one host's container engine remembers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "containers").mkdir(parents=True, exist_ok=True)

    def images(self) -> dict[str, Any]:
        file = self.folder / "images.json"
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return found

    def remember(self, argv: list[str]) -> None:
        with (self.folder / "calls").open("a") as file:
            file.write(json.dumps(argv) + "\n")

    def calls(self, verb: str) -> list[list[str]]:
        """The remembered calls of a verb."""
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [argv for line in lines if (argv := json.loads(line))[0] == verb]

    def load(self, data: bytes, naming: str) -> None:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            (entry,) = json.loads(archive.extractfile("manifest.json").read())  # type: ignore[union-attr]
            raw = archive.extractfile(entry["Config"]).read()  # type: ignore[union-attr]
        config = json.loads(raw)
        name = hashlib.sha256(raw if naming == "config" else raw + b"index").hexdigest()
        layers, settings = config["rootfs"]["diff_ids"], config["config"]
        image = {"Id": name, "RootFS": {"Layers": layers}, "Config": settings}
        images = {**self.images(), name: image}
        (self.folder / "images.json").write_text(json.dumps(images))

    def alive(self) -> dict[str, int]:
        found = {}
        for file in (self.folder / "containers").iterdir():
            pid = int(file.read_text())
            with suppress(ProcessLookupError):
                os.kill(pid, 0)
                found[file.name] = pid
        return found


def _run(store: Store, words: list[str]) -> None:
    options = [word for word in words if word.startswith("--")]
    first = next(i for i, word in enumerate(words) if not word.startswith("--"))
    options = words[:first]
    image, command = words[first], words[first + 1 :]
    if image.removeprefix("sha256:") not in store.images():
        sys.exit(f"Error: {image}: image not known")
    named = dict(
        word.removeprefix("--env=").split("=", 1)
        for word in options
        if "--env=" in word
    )
    name = next(w for w in options if w.startswith("--name=")).removeprefix("--name=")
    (store.folder / "containers" / name).write_text(str(os.getpid()))
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(store.folder),
        "PYTHONPATH": str(REPOSITORY / "python"),
        **named,
        "GLMSPARK_SCRATCH": str(store.folder / f"scratch-{name}"),
    }
    argv = [sys.executable, "-m", "glmspark", "rank", *command]
    os.execve(argv[0], argv, env)


def main(folder: str, naming: str, argv: list[str]) -> None:
    """Act as the container engine."""
    host = "worker" if "SSH_CONNECTION" in os.environ else "head"
    store = Store(Path(folder) / host)
    store.remember(argv)
    denied = Path(folder) / f"{host}-denied"
    if denied.exists():
        sys.exit("Error: permission denied while trying to connect to the socket")
    match argv:
        case ["image", "ls", *_]:
            sys.stdout.write("\n".join(store.images()) + "\n")
        case ["image", "inspect", *names]:
            images = store.images()
            sys.stdout.write(json.dumps([images[name.strip()] for name in names]))
        case ["load", *_]:
            if (Path(folder) / f"{host}-full").exists():
                sys.exit("Error: writing blob: no space left on device")
            store.load(sys.stdin.buffer.read(), naming)
        case ["run", *words]:
            _run(store, words)
        case ["ps", *_]:
            sys.stdout.write("\n".join(store.alive()) + "\n")
        case ["rm", *_, name]:
            with suppress(ProcessLookupError):
                os.kill(store.alive().get(name, 0) or 1 << 30, signal.SIGKILL)
        case _:
            sys.exit(f"Error: {argv} is not expected")
