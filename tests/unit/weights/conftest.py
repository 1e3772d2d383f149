"""A local Hub, a command in a process of its own, and small checkpoints."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from glmspark.weights import manifest as manifests
from glmspark.weights import view
from glmspark.weights.manifest import FileEntry, Manifest, make_manifest
from glmspark.weights.store import Store

from tests.unit.weights import fakehub

ROOT = Path(__file__).resolve().parents[3]
REV = "0123456789abcdef0123456789abcdef01234567"
REPO = "kit/model"
SHARD = "model-00001-of-00003.safetensors"
NOBODY = 65534
FAST = ("--stall", "1", "--attempts", "2")


def blob(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)  # noqa: S311 - data, not a secret


def checkpoint(shards: int = 3, size: int = 300_000) -> dict[str, bytes]:
    files = {
        f"model-{i:05}-of-{shards:05}.safetensors": blob(i, size + i)
        for i in range(1, shards + 1)
    }
    files["config.json"] = b'{"model_type": "glm5_flash"}'
    files["sub/tokenizer.json"] = blob(99, 5000)
    return files


def manifest_of(
    files: dict[str, bytes], repo: str = REPO, revision: str = REV, **more: Any
) -> Manifest:
    entries = [FileEntry(p, len(d), fakehub.sha256(d)) for p, d in files.items()]
    return make_manifest(repo, revision, entries, **more)


def write_tree(root: Path, files: dict[str, bytes]) -> Path:
    for path, data in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return root


def contents(root: Path) -> dict[str, bytes]:
    """path -> bytes of every file below ``root``, links followed."""
    return {
        str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()
    }


@dataclass
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Kit:
    """``glmspark weights`` in its own process, with a HOME that must stay empty."""

    def __init__(self, tmp: Path) -> None:
        self.tmp = tmp
        self.store = tmp / "store"
        self.home = tmp / "home"
        self.home.mkdir()
        keep = ("PATH", "LANG")
        self.env = {k: v for k, v in os.environ.items() if k in keep}
        self.env |= {
            "HOME": str(self.home),
            "PYTHONPATH": str(ROOT / "python"),
            "GLMSPARK_WEIGHTS_STORE": str(self.store),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def argv(self, *words: str | Path) -> list[str]:
        return [sys.executable, "-m", "glmspark", "weights", *map(str, words)]

    def run(self, *words: str | Path, **env: str) -> Ran:
        done = subprocess.run(
            self.argv(*words),
            env=self.env | env,
            cwd=self.tmp,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def ok(self, *words: str | Path, **env: str) -> Ran:
        ran = self.run(*words, **env)
        assert ran.code == 0, ran.err
        return ran

    def start(self, *words: str | Path, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv(*words),
            env=self.env | env,
            cwd=self.tmp,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def lock(self, manifest: Manifest) -> Path:
        path = self.tmp / f"{manifest.slug}.lock.json"
        path.write_text(manifest.dumps())
        return path


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


@pytest.fixture
def hub(kit: Kit) -> Iterator[fakehub.Hub]:
    with fakehub.running(fakehub.Hub()) as running:
        running.add(REPO, REV, checkpoint())
        kit.env["HF_ENDPOINT"] = running.url
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


@pytest.fixture
def filled(tmp_path: Path, store: Store) -> tuple[Store, Manifest, dict[str, bytes]]:
    """A store that holds a small checkpoint, its manifest and its files."""
    from glmspark.weights import importer

    files = checkpoint()
    source = write_tree(tmp_path / "source", files)
    manifest = manifest_of(files)
    report = importer.import_from(store, source, [manifest], chosen=True)
    assert report.imported == len(files)
    return store, store.resolve(manifest), files


Wait = Callable[[Callable[[], bool]], None]


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    """Return once ``condition`` holds; fail with ``what`` if it does not in time."""
    import time

    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


def flip(path: Path, *, keep_stat: bool = False) -> None:
    """Flip one bit; with ``keep_stat`` so that no stat tells."""
    before = path.stat()
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    if keep_stat:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    path.chmod(0o444)


def locked(kit: Kit, hub: fakehub.Hub, repo: str = REPO) -> Path:
    """The lock that ``weights lock`` would write (test_lock_... runs the command)."""
    revision = hub.refs[repo, "main"]
    entries = []
    for path, data in hub.repos[repo, revision].items():
        large = len(data) >= fakehub.LFS_FROM
        hashes = {"sha256": fakehub.sha256(data)} if large else {}
        hashes = hashes or {"git_oid": fakehub.git_oid(data)}
        entries.append(manifests.FileEntry(path, len(data), **hashes))
    return kit.lock(manifests.make_manifest(repo, revision, entries))


def view_of(kit: Kit, lock: Path) -> dict[str, bytes]:
    made = view.link(Store.open(kit.store), manifests.load(lock))
    return contents(made.folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 80 MiB; needs root."""
    mount = tmp_path / "small"
    mount.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=80m", "none", str(mount)]
    if subprocess.run(argv, capture_output=True, check=False).returncode:
        pytest.skip("needs root and mount(2) for a tmpfs of limited size")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def at_once(work: Callable[[int], object], count: int) -> list[object]:
    """``work`` in ``count`` threads that begin together; the first error is raised."""
    barrier = threading.Barrier(count)

    def one(number: int) -> object:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))
