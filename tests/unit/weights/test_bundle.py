"""Export and apply: the disk for machines without a network."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from glmspark.errors import CommandError, ConfigError, IntegrityError, PreflightError
from glmspark.weights import bundle, importer, view
from glmspark.weights.manifest import Manifest
from glmspark.weights.store import Store

from tests.unit.weights.conftest import (
    SHARD,
    Kit,
    blob,
    contents,
    manifest_of,
    wait_for,
    write_tree,
)
from tests.unit.weights.fakehub import sha256

Filled = tuple[Store, Manifest, dict[str, bytes]]


# -- bundles -------------------------------------------------------------------


@pytest.fixture
def exported(filled: Filled, tmp_path: Path) -> tuple[Path, Manifest, dict[str, bytes]]:
    store, manifest, files = filled
    disk = tmp_path / "disk"
    bundle.export(store, disk, [manifest])
    return disk, manifest, files


Exported = tuple[Path, Manifest, dict[str, bytes]]


def test_a_bundle_carries_everything_to_a_machine_without_network(
    exported: Exported, tmp_path: Path
) -> None:
    disk, manifest, files = exported
    fresh = Store.open(tmp_path / "fresh", create=True)
    done = bundle.apply(fresh, disk)
    assert (done.moved, done.already) == (len(files), 0)
    assert contents(view.link(fresh, manifest).folder) == files
    assert bundle.apply(fresh, disk).moved == 0


def test_a_bundle_can_be_checked_without_this_tool(exported: Exported) -> None:
    disk, _, files = exported
    argv = ["sha256sum", "--quiet", "-c", "SHA256SUMS"]
    done = subprocess.run(argv, cwd=disk, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len((disk / "SHA256SUMS").read_text().splitlines()) == len(files)


def test_a_bundle_is_an_import_source_too(exported: Exported, tmp_path: Path) -> None:
    disk, manifest, files = exported
    fresh = Store.open(tmp_path / "fresh", create=True)
    assert importer.import_from(fresh, disk, []).imported == len(files)
    assert manifest.slug in fresh.manifests()


def test_a_second_export_writes_only_what_is_not_there(
    filled: Filled, exported: Exported
) -> None:
    store, manifest, files = filled
    disk = exported[0]
    name = sha256(files[SHARD])
    (disk / "blobs" / "sha256" / name[:2] / name).write_bytes(b"went bad")
    done = bundle.export(store, disk, [manifest])
    assert (done.moved, done.already) == (1, len(files) - 1)


def test_an_unfinished_export_is_not_applied(exported: Exported, store: Store) -> None:
    disk = exported[0]
    (disk / bundle.MARKER).unlink()
    with pytest.raises(ConfigError, match="no finished bundle"):
        bundle.apply(store, disk)


def test_an_export_of_a_damaged_blob_fails(filled: Filled, tmp_path: Path) -> None:
    store, manifest, files = filled
    path = store.blob_path(sha256(files[SHARD]))
    stat = path.stat()
    path.chmod(0o644)
    path.write_bytes(b"x" * stat.st_size)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(IntegrityError, match=SHARD):
        bundle.export(store, tmp_path / "disk", [manifest])
    assert not (tmp_path / "disk" / bundle.MARKER).exists()


def outside_parts(store: Store) -> dict[str, bytes]:
    found = contents(store.root)
    return {p: d for p, d in found.items() if not p.startswith(("partial/", "store."))}


@pytest.mark.parametrize("harm", ["flip", "gone", "short"])
def test_a_bad_bundle_leaves_the_store_as_it_was(
    exported: Exported, tmp_path: Path, harm: str
) -> None:
    disk, manifest, files = exported
    fresh = Store.open(tmp_path / "fresh", create=True)
    before = outside_parts(fresh)
    name = sha256(files[SHARD])
    path = disk / "blobs" / "sha256" / name[:2] / name
    data = path.read_bytes()
    path.chmod(0o644)
    if harm == "flip":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif harm == "short":
        path.write_bytes(data[:1000])
    else:
        path.unlink()
    with pytest.raises((IntegrityError, CommandError)):
        bundle.apply(fresh, disk)
    assert outside_parts(fresh) == before
    path.write_bytes(data)
    bundle.apply(fresh, disk)
    assert contents(view.link(fresh, manifest).folder) == files


@pytest.mark.parametrize("harm", ["pulled out", "kill -9"])
def test_an_apply_that_ends_half_way_leaves_the_store_as_it_was(
    kit: Kit, tmp_path: Path, harm: str
) -> None:
    files = {f"shard-{i}.safetensors": blob(i, 16 << 20) for i in range(6)}
    source = write_tree(tmp_path / "source", files)
    manifest, disk = manifest_of(files), tmp_path / "disk"
    origin = Store.open(tmp_path / "origin", create=True)
    importer.import_from(origin, source, [manifest])
    bundle.export(origin, disk, [manifest])
    fresh = Store.open(kit.store, create=True)
    before = outside_parts(fresh)
    process = kit.start("apply", disk)
    parts = fresh.root / "partial"
    wait_for(
        lambda: any(p.stat().st_size for p in list(parts.iterdir())), "bytes arrive"
    )
    process.send_signal(signal.SIGSTOP)  # caught half way, however fast the disk is
    if harm == "pulled out":
        disk.rename(tmp_path / "pulled-out")
        process.send_signal(signal.SIGCONT)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 5, output
        assert "the store is as it was before" in output
        disk = tmp_path / "pulled-out"
    else:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    assert outside_parts(fresh) == before
    kit.ok("apply", disk)
    assert contents(view.link(fresh, manifest).folder) == files


def test_a_full_disk_during_export_is_said_before_it_begins(
    filled: Filled, tmp_path: Path
) -> None:
    store, manifest, _ = filled
    mount = tmp_path / "stick"
    mount.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=500k", "none", str(mount)]
    if subprocess.run(argv, capture_output=True, check=False).returncode:
        pytest.skip("needs root and mount(2) for a tmpfs of limited size")
    try:
        with pytest.raises(PreflightError, match=r"take a larger|are free there"):
            bundle.export(store, mount, [manifest])
        assert list(mount.iterdir()) == []
    finally:
        subprocess.run(["umount", str(mount)], check=True)
