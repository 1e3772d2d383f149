"""The weights benchmark's scratch, data, and commands that are timed."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python")]

from glmspark.weights import hashing  # noqa: E402
from glmspark.weights.manifest import FileEntry, Manifest, make_manifest  # noqa: E402

from tests.cluster.weights.hosts import HEAD, RAILS, Hosts, inside  # noqa: E402

BLOBS = 16
CONNECTIONS = 4
MIB = 1 << 20
REV = "0" * 40


class Bench:
    """Scratch folders (tmpfs and disk), the data, and the commands that are timed."""

    def __init__(self, scratch: Path, total: int, repeats: int) -> None:
        self.disk = scratch
        self.memory = scratch / "tmpfs"
        self.total = total
        self.repeats = repeats
        self.peaks: dict[str, int] = {}
        self.source = self.memory / "source"
        self.env = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG")}
        self.env |= {"PYTHONPATH": str(ROOT / "python"), "HOME": str(scratch)}

    def make_data(self) -> None:
        """``total`` bytes of noise in 16 files."""
        self.source.mkdir(parents=True)
        size = self.total // BLOBS
        noise = os.urandom(64 * MIB)
        for number in range(BLOBS):
            with (self.source / f"model-{number:05}.safetensors").open("wb") as file:
                file.write(number.to_bytes(8, "big"))
                for _ in range(size // len(noise)):
                    file.write(noise)
                file.truncate(size)

    def warm(self) -> None:
        """Use all of the tmpfs once, for nothing.

        A virtual machine gets memory from its host when it is first touched, which
        takes longer than the copy: whoever came first would pay for all.
        """
        filler = self.memory / "filler"
        with filler.open("wb") as file:
            for _ in range(int(2.1 * self.total) // (16 * MIB)):
                file.write(bytes(16 * MIB))
        filler.unlink()

    def manifest(self) -> Manifest:
        """The list of the data's files."""
        paths = sorted(self.source.iterdir())
        hashes = hashing.parallel(hashing.hash_file, paths)
        files = [
            FileEntry(path.name, h.size, h.sha256)
            for path, h in zip(paths, hashes, strict=True)
        ]
        return make_manifest("bench/model", REV, files)

    def command(self, name: str, *words: str | Path) -> tuple[float, Any]:
        """(seconds, JSON result) of one command; its peak memory is kept."""
        return self._run(name, self._argv(name, *words))

    def _argv(self, name: str, *words: str | Path) -> list[str]:
        peak = [sys.executable, str(ROOT / "tests/bench/peak.py"), str(self._peak())]
        glmspark = [sys.executable, "-m", "glmspark", "weights", name]
        return [*peak, *glmspark, *map(str, words), "--json"]

    def _peak(self, who: str = "here") -> Path:
        return self.disk / f"peak.{who}"

    def _run(self, name: str, argv: list[str]) -> tuple[float, Any]:
        started = time.perf_counter()
        done = subprocess.run(
            argv, env=self.env, check=True, stdout=subprocess.PIPE, cwd=self.disk
        )
        seconds = time.perf_counter() - started
        self._keep_peak(name, self._peak())
        return seconds, json.loads(done.stdout)

    def _keep_peak(self, name: str, file: Path) -> None:
        kib = int(file.read_text().split()[0])
        self.peaks[name] = max(self.peaks.get(name, 0), kib)

    def share(self, pair: Hosts, head: Path, node: Path) -> float:
        """Seconds of one share into an empty store."""
        shutil.rmtree(node, ignore_errors=True)
        program = (
            f"env PYTHONPATH={ROOT / 'python'} {sys.executable} "
            f"{ROOT / 'tests/bench/peak.py'} {self._peak('node')} "
            f"{sys.executable} -m glmspark"
        )
        words = ["--to", f"node=root@{RAILS[0][1]},{RAILS[0][1]}", "--no-link"]
        words += ["--ssh", " ".join(pair.ssh), "--remote-program", program]
        words += ["--connections", str(CONNECTIONS)]
        words += ["--store", str(head), "--remote-store", str(node)]
        argv = inside(HEAD, self._argv("share", *words))
        seconds, data = self._run("share", argv)
        assert data["nodes"][0]["received_bytes"] == self.total
        self._keep_peak("pull (on the node)", self._peak("node"))
        return seconds

    def median(self, one: Callable[[], dict[str, float]]) -> dict[str, Any]:
        """The medians of what ``one`` measured, with all values beside them."""
        rows = []
        for _ in range(self.repeats):
            rows.append(one())
            sys.stderr.write(f"{os.getloadavg()[0]:.1f} {rows[-1]}\n")
        out: dict[str, Any] = {
            key: round(statistics.median(row[key] for row in rows), 3)
            for key in rows[0]
        }
        return out | {"runs": [{k: round(v, 3) for k, v in r.items()} for r in rows]}
