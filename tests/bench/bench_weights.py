"""Benchmark of ``glmspark weights``: JSON on stdout, ratios within one run.

    bench_weights.py [--repeats 5] [--gib 4] [--scratch DIR] [--only PART]

Needs root (network namespaces, tmpfs), rsync, openssh-server and openssl. Figures are
medians over the repeats; every ratio compares neighbours of the same repeat.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python")]

from glmspark.weights import hashing  # noqa: E402
from glmspark.weights.manifest import FileEntry, Manifest, make_manifest  # noqa: E402
from glmspark.weights.store import Store  # noqa: E402

from tests.bench import weights_baselines as base  # noqa: E402
from tests.bench.weights_bench import BLOBS, CONNECTIONS, MIB, REV, Bench  # noqa: E402
from tests.cluster.weights import hosts  # noqa: E402
from tests.cluster.weights.hosts import Hosts  # noqa: E402


def share_on_tmpfs(bench: Bench, pair: Hosts, head: Path) -> dict[str, Any]:
    """share, rsync and the bare loop, one after the other, all on tmpfs."""
    node = bench.memory / "node"

    def one() -> dict[str, float]:
        share = bench.share(pair, head, node)
        shutil.rmtree(node)
        rsync = base.rsync(pair, bench.source, node)
        bare = base.bare_loop(bench.source, node, CONNECTIONS)
        shutil.rmtree(node)
        return {
            "share_gb_s": bench.total / share / 1e9,
            "rsync_gb_s": bench.total / rsync / 1e9,
            "bare_loop_gb_s": bench.total / bare / 1e9,
            "share_over_rsync": rsync / share,
            "share_over_bare_loop": bare / share,
        }

    return bench.median(one)


def share_on_disk(bench: Bench, pair: Hosts, head: Path) -> dict[str, Any]:
    """share into a store on disk, beside that disk's write rate (data + fsync)."""
    node = bench.disk / "node"

    def one() -> dict[str, float]:
        share = bench.share(pair, head, node)
        shutil.rmtree(node)
        write = base.disk_write(bench.disk, bench.total)
        return {
            "share_gb_s": bench.total / share / 1e9,
            "disk_write_gb_s": bench.total / write / 1e9,
            "share_over_disk_write": write / share,
        }

    return bench.median(one)


def verify_deep(bench: Bench, root: Path, where: str) -> dict[str, Any]:
    """``verify --deep`` beside cores x openssl and beside reading the disk."""
    store = Store.open(root)
    paths = [store.blob_path(blob) for blob in store.blobs()]

    def one() -> dict[str, float]:
        read = base.disk_read(paths) if where == "disk" else 0.0
        base.drop_cache(paths)
        seconds, report = bench.command("verify", "--deep", "--store", root)
        assert report["hashed_bytes"] == bench.total
        sample = bench.source / "model-00000.safetensors"
        all_cores = hashing.cpu_count() * base.openssl(sample)
        at_once = base.openssl_parallel(sample, hashing.cpu_count())
        rate = bench.total / seconds
        bound = min(all_cores, bench.total / read) if read else all_cores
        return {
            "verify_gb_s": rate / 1e9,
            "cores_x_openssl_gb_s": all_cores / 1e9,
            "openssl_on_all_cores_gb_s": at_once / 1e9,
            "disk_read_gb_s": bench.total / read / 1e9 if read else 0.0,
            "verify_over_bound": rate / bound,
            "verify_over_openssl_on_all_cores": rate / at_once,
        }

    return bench.median(one)


def import_cache(bench: Bench, manifest: Manifest) -> dict[str, Any]:
    """``import`` of a folder on the same file system: time beyond hashing, blocks."""
    source = bench.disk / "source"
    if not source.is_dir():
        shutil.copytree(bench.source, source)
    lock = bench.disk / "bench.lock.json"
    lock.write_text(manifest.dumps())
    paths = sorted(source.iterdir())
    root = bench.disk / "imported"

    def one() -> dict[str, float]:
        shutil.rmtree(root, ignore_errors=True)
        base.drop_cache(paths)
        started = time.perf_counter()
        hashing.parallel(hashing.hash_file, paths)
        hash_only = time.perf_counter() - started
        base.drop_cache(paths)
        seconds, report = bench.command("import", source, lock, "--store", root)
        # Other programs write to this file system too: count the store's own files,
        # those whose inode is not the source's.
        stats = [path.lstat() for path in root.rglob("*")]
        blocks = sum(stat.st_blocks for stat in stats if stat.st_nlink == 1)
        assert report["imported"] == BLOBS
        return {
            "import_s": seconds,
            "hash_only_s": hash_only,
            "beyond_hashing_s": seconds - hash_only,
            "blocks_of_its_own_mib": blocks * 512 / MIB,
            "copied": report["copied"],
        }

    return bench.median(one)


def list_start(bench: Bench) -> dict[str, Any]:
    """``list`` on a store with 1,000 files in one manifest."""
    root = bench.disk / "thousand"
    store = Store.open(root, create=True)
    files = []
    for number in range(1000):
        data = b"file %d" % number
        path = bench.disk / "one-file"
        path.write_bytes(data)
        hashes = hashing.hash_file(path)
        store.mkdir(store.blob_path(hashes.sha256).parent)
        path.rename(store.blob_path(hashes.sha256))
        store.know(hashes)
        files.append(FileEntry(f"f{number}", len(data), hashes.sha256))
    store.register(make_manifest("bench/thousand", REV, files))
    bench.repeats, before = max(bench.repeats, 5), bench.repeats
    argv = [sys.executable, "-m", "glmspark", "weights", "list", "--json"]

    def one() -> dict[str, float]:
        started = time.perf_counter()
        subprocess.run(
            [*argv, "--store", root],
            env=bench.env,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return {"list_s": time.perf_counter() - started}

    result = bench.median(one)
    bench.repeats = before
    bench.command("list", "--store", root)
    return result


def other_peaks(bench: Bench, root: Path) -> None:
    """Run what is not timed, for its peak memory: fetch, export, apply, link, gc."""
    from tests.unit.weights import fakehub

    hub = fakehub.Hub()
    size = min(bench.total // 8, 512 * MIB)
    files = {f"f{i}": bytes([i]) * size for i in range(2)}
    hub.add("bench/fetched", REV, files)
    with fakehub.running(hub):
        bench.env["HF_ENDPOINT"] = hub.url
        lock = bench.disk / "fetched.lock.json"
        bench.command("lock", f"bench/fetched@{REV}", "-o", lock)
        bench.command("fetch", lock, "--store", bench.disk / "fetched")
    bundle = bench.disk / "bundle"
    bench.command("export", bundle, "--store", root)
    bench.command("apply", bundle, "--store", bench.disk / "applied")
    bench.command("link", "--store", root)
    bench.command("gc", "--dry-run", "--store", root)


def run(bench: Bench, only: str) -> dict[str, Any]:
    """Every part, or the one named."""
    bench.warm()
    bench.make_data()
    manifest = bench.manifest()
    lock = bench.memory / "bench.lock.json"
    lock.write_text(manifest.dumps())
    head = bench.memory / "head"  # hard links: the source's bytes are there once
    bench.command("import", bench.source, lock, "--store", head)
    results: dict[str, Any] = {}

    def part(name: str, measure: Callable[[], dict[str, Any]]) -> None:
        if only in name:
            results[name] = measure() | {"load_after": os.getloadavg()[0]}
            sys.stderr.write(f"{name}: {results[name]}\n")

    with hosts.two_hosts(bench.disk / "hosts") as pair:
        part("share_tmpfs", lambda: share_on_tmpfs(bench, pair, head))
    part("verify_tmpfs", lambda: verify_deep(bench, head, "tmpfs"))
    part("import_disk", lambda: import_cache(bench, manifest))
    part("list_1000", lambda: list_start(bench))
    with hosts.two_hosts(bench.disk / "hosts-again") as pair:
        part("share_disk", lambda: share_on_disk(bench, pair, head))
    imported = bench.disk / "imported"
    if imported.is_dir():
        part("verify_disk", lambda: verify_deep(bench, imported, "disk"))
    if not only:
        other_peaks(bench, head)
    results["peak_mib"] = {n: round(k / 1024, 1) for n, k in bench.peaks.items()}
    return results


def main() -> None:
    """Run, print the JSON, leave nothing behind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--scratch", type=Path, default=None)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    # A `timeout` ends it by SIGTERM: namespaces and mounts have to go then as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if reason := hosts.why_not():
        sys.exit(f"cannot measure: {reason}")
    total = int(args.gib * 1024) * MIB
    scratch = Path(tempfile.mkdtemp(prefix="bench-weights-", dir=args.scratch))
    bench = Bench(scratch, total, args.repeats)
    bench.memory.mkdir()
    size = f"size={int(2.2 * total)}"
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "none", bench.memory], check=True
    )
    conditions = {
        "cores": hashing.cpu_count(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "bytes": total,
        "blobs": BLOBS,
        "connections": CONNECTIONS,
        "load_before": os.getloadavg()[0],
    }
    try:
        results = run(bench, args.only)
    finally:
        subprocess.run(["umount", bench.memory], check=True)
        shutil.rmtree(scratch)
    sys.stdout.write(
        json.dumps({"conditions": conditions, "results": results}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
