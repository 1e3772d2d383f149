"""A head with a filled store and a node with none, and `weights share` between them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from glmspark.weights import importer
from glmspark.weights.manifest import Manifest
from glmspark.weights.store import Store

from tests.cluster.weights.hosts import (
    HEAD,
    RAILS,
    Hosts,
    inside,
)
from tests.unit.weights.conftest import (
    ROOT,
    blob,
    manifest_of,
    write_tree,
)

# For a shell: the checkout may lie at a path with blanks.
PYTHON_PATH, PYTHON = shlex.quote(str(ROOT / "python")), shlex.quote(sys.executable)

MIB = 1 << 20
FILES = {f"shard-{i}.safetensors": blob(i, MIB + i) for i in range(4)}
FILES |= {"config.json": b"{}", "sub/tokenizer.json": blob(9, 5000)}


class Cluster:
    """A head with a filled store, and a node with none."""

    def __init__(self, pair: Hosts, tmp: Path, files: dict[str, bytes]) -> None:
        self.pair = pair
        self.tmp = tmp
        self.files = files
        self.head = Store.open(tmp / "head", create=True)
        self.node_root = tmp / "node" / "store"
        self.manifest: Manifest = manifest_of(files)
        source = write_tree(tmp / "source", files)
        importer.import_from(self.head, source, [self.manifest], chosen=True)
        program = f"env PYTHONPATH={PYTHON_PATH} {PYTHON} -m glmspark"
        self.remote = ("--remote-program", program)

    @property
    def node(self) -> Store:
        return Store.open(self.node_root)

    def argv(self, *more: str, rails: int = 1, ssh: str = "") -> list[str]:
        addresses = ",".join(node for _, node in RAILS[:rails])
        words = [sys.executable, "-m", "glmspark", "weights", "share"]
        words += ["--to", f"spark-2=root@{RAILS[0][1]},{addresses}", "--json"]
        words += ["--ssh", ssh or shlex.join(self.pair.ssh), *self.remote]
        words += ["--store", str(self.head.root)]
        words += ["--remote-store", str(self.node_root), *more]
        return inside(HEAD, words)

    def env(self) -> dict[str, str]:
        keep = {k: os.environ[k] for k in ("PATH", "LANG") if k in os.environ}
        return keep | {"PYTHONPATH": str(ROOT / "python"), "HOME": str(self.tmp)}

    def share(self, *more: str, **how: Any) -> tuple[int, Any, str]:
        done = subprocess.run(
            self.argv(*more, **how),
            env=self.env(),
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        return done.returncode, json.loads(done.stdout or "null"), done.stderr

    def ok(self, *more: str, **how: Any) -> Any:
        code, data, err = self.share(*more, **how)
        assert code == 0, err
        return data["nodes"][0]

    def start(self, *more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv(*more),
            env=self.env(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def processes(word: str) -> list[int]:
    """The ids of processes whose command line has ``word``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def listeners(namespace: str) -> set[str]:
    done = subprocess.run(
        inside(namespace, ["ss", "-Hltn"]), capture_output=True, text=True, check=True
    )
    return {line.split()[3] for line in done.stdout.splitlines()}
