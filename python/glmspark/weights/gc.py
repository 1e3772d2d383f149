"""What the store holds, what still needs it, and how the rest is removed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glmspark.errors import ConfigError, PreflightError
from glmspark.weights import lease, locks
from glmspark.weights.files import is_left_over
from glmspark.weights.manifest import Manifest
from glmspark.weights.store import BlobState, Store


@dataclass
class Garbage:
    """What ``gc`` would remove, and why each thing is not needed."""

    blobs: list[tuple[str, int]] = field(default_factory=list)
    parts: list[tuple[Path, int]] = field(default_factory=list)
    views: list[Path] = field(default_factory=list)
    links: list[Path] = field(default_factory=list)
    leases: list[Path] = field(default_factory=list)
    quarantined: list[tuple[Path, int]] = field(default_factory=list)

    @property
    def freed_bytes(self) -> int:
        """The bytes that go; a hard-linked blob's stay while its source has them."""
        sizes = [size for _, size in self.blobs]
        sizes += [size for _, size in self.parts + self.quarantined]
        return sum(sizes)

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data, paths as strings."""
        return {
            "freed_bytes": self.freed_bytes,
            "blobs": [{"blob": blob, "size": size} for blob, size in self.blobs],
            "parts": [str(path) for path, _ in self.parts],
            "views": [str(path) for path in self.views],
            "git_links": len(self.links),
            "dead_leases": [str(path) for path in self.leases],
            "quarantined": [str(path) for path, _ in self.quarantined],
        }


def _linked_blobs(folder: Path) -> set[str]:
    names: set[str] = set()
    for base, folders, files in os.walk(folder):
        for name in folders + files:
            path = Path(base) / name
            if path.is_symlink():
                names.add(path.readlink().name)
    return names


def plan(
    store: Store, manifests: dict[str, Manifest], *, quarantine: bool = False
) -> Garbage:
    """What is needed by no manifest and no running rank; nothing is touched.

    Quarantined blobs are evidence and stay, unless ``quarantine`` asks for them.
    """
    garbage = Garbage()
    held = lease.held_views(store)
    gen = store.root / "views" / ".gen"
    names = [path for path in (store.root / "views").iterdir() if path.is_symlink()]
    # A link that starts with a dot is what a killed `link` left: it names nothing.
    current = {path.readlink().name for path in names if path.name[0] != "."}
    garbage.links = [path for path in names if path.name[0] == "."]
    needed = {e.sha256 for m in manifests.values() for e in m.files if e.sha256}
    wanted = {e.key for m in manifests.values() for e in m.files}
    for folder in sorted(gen.iterdir()):
        if folder.name in held:
            needed |= _linked_blobs(folder)
        elif folder.name not in current:
            garbage.views.append(folder)
    for blob in store.blobs():
        if blob not in needed:
            garbage.blobs.append((blob, store.blob_path(blob).stat().st_size))
    for path in sorted((store.root / "partial").iterdir()):
        key = path.name.split(".")[0]
        # One of a blob that is there is what a killed import left.
        if key not in wanted or store.state(key) is BlobState.PRESENT:
            garbage.parts.append((path, path.stat().st_size))
    gone = {blob for blob, _ in garbage.blobs}
    for link in sorted((store.root / "git").glob("*/*")):
        blob = link.readlink().name
        if blob in gone or is_left_over(link) or not store.blob_path(blob).exists():
            garbage.links.append(link)
    for folder in (store.root, store.root / "manifests"):
        garbage.links += [path for path in folder.iterdir() if is_left_over(path)]
    garbage.leases = [path for path, _, alive in lease.leases(store) if not alive]
    if quarantine:
        garbage.quarantined = [
            (path, path.stat().st_size)
            for path in sorted((store.root / "quarantine").iterdir())
        ]
    return garbage


def _unlink_unheld(path: Path) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if locks.try_lock(fd):
            path.unlink()
    finally:
        os.close(fd)


def _remove(store: Store, garbage: Garbage, on_step: Callable[[], None]) -> None:
    # Names before bytes: a kill in between leaves blobs that the next gc takes.
    for folder in garbage.views:
        shutil.rmtree(folder)
        on_step()
    for link in [*garbage.links, *garbage.leases]:
        link.unlink()
        on_step()
    for blob, _ in garbage.blobs:
        store.blob_path(blob).unlink()
        store.journal.remove(blob)
        on_step()
    for path, _ in garbage.parts:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            _unlink_unheld(path)
        on_step()
    for path, _ in garbage.quarantined:
        path.unlink()
    store.journal.compact()


def collect(
    store: Store,
    *,
    dry_run: bool = False,
    quarantine: bool = False,
    on_step: Callable[[], None] = lambda: None,
) -> Garbage:
    """Remove what nothing needs, or with ``dry_run`` only say it.

    Refuses (CommandError) while another command adds to the store, and refuses
    (ConfigError) if a manifest cannot be read: then nothing is known to be unneeded.
    """
    if dry_run:
        return plan(store, store.manifests(), quarantine=quarantine)
    with locks.alone(store):
        garbage = plan(store, store.manifests(), quarantine=quarantine)
        _remove(store, garbage, on_step)
    return garbage


def forget(store: Store, slug: str) -> None:
    """Let ``gc`` have what only the manifest ``slug`` needs; its view's name goes.

    PreflightError while a running process holds one of its views.
    """
    path = store.manifest_path(slug)
    if not path.is_file():
        raise ConfigError(
            f"no manifest {slug} is in {store.root}", hint="glmspark weights list"
        )
    with locks.alone(store):
        if any(name.startswith(f"{slug}-") for name in lease.held_views(store)):
            raise PreflightError(
                f"a running rank uses {slug}", hint="glmspark stop, then again"
            )
        (store.root / "views" / slug).unlink(missing_ok=True)
        path.unlink()


def inventory(store: Store) -> list[dict[str, Any]]:
    """One row for each manifest: its size, what is missing, its view, who holds it."""
    held = lease.held_views(store)
    rows = []
    for slug, manifest in store.manifests().items():
        missing = store.missing(manifest)
        path = store.root / "views" / slug
        view = path.resolve() if path.is_symlink() else None
        rows.append(
            {
                "name": slug,
                "repo": manifest.repo,
                "revision": manifest.revision,
                "files": len(manifest.files),
                "bytes": manifest.total_bytes,
                "missing_files": len(missing),
                "missing_bytes": sum(entry.size for entry in missing),
                "pinned": [e.path for e in manifest.files if e.pinned],
                "view": str(path) if view else None,
                "in_use": any(name.startswith(f"{slug}-") for name in held),
                "digest": manifest.digest(),
            }
        )
    return rows
