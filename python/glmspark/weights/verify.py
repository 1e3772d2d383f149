"""Verify: is every blob still what its name says, by stat or by every byte."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glmspark.errors import ConfigError
from glmspark.weights import hashing, locks
from glmspark.weights.manifest import Manifest
from glmspark.weights.progress import Progress
from glmspark.weights.store import BlobState, Store


@dataclass(frozen=True)
class Damage:
    """A blob that is not what its name says: where it went, and whom it served.

    ``moved_to`` is None where another process had moved it before.
    """

    blob: str
    moved_to: Path | None
    files: tuple[str, ...]
    reason: str


@dataclass
class Report:
    """What ``verify`` saw; complete and undamaged means ``is_ok``."""

    deep: bool
    checked: int = 0
    hashed: int = 0
    hashed_bytes: int = 0
    damaged: list[Damage] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def is_ok(self) -> bool:
        """Whether every file of the manifests is there and right."""
        return not self.damaged and not self.missing

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        damaged = [
            {
                "blob": d.blob,
                "moved_to": str(d.moved_to) if d.moved_to else None,
                "files": list(d.files),
                "reason": d.reason,
            }
            for d in self.damaged
        ]
        return {
            "ok": self.is_ok,
            "deep": self.deep,
            "checked": self.checked,
            "hashed": self.hashed,
            "hashed_bytes": self.hashed_bytes,
            "damaged": damaged,
            "missing": self.missing,
        }


def served_files(manifests: list[Manifest]) -> dict[str, list[str]]:
    """Per blob, the files it serves, as ``repo@revision: path``."""
    served: dict[str, list[str]] = {}
    for manifest in manifests:
        label = f"{manifest.repo}@{manifest.revision[:12]}"
        for entry in manifest.files:
            served.setdefault(entry.key, []).append(f"{label}: {entry.path}")
    return served


@dataclass(frozen=True)
class _Seen:
    """A blob as it was read: its inode, the bytes read, why it is bad or empty."""

    ino: int
    count: int = 0
    reason: str = ""


def _check_one(store: Store, blob: str, progress: Progress) -> _Seen | None:
    """What was seen of a blob, None where it is gone; the journal learns of right ones.

    A blob that this user may not read is reported and left where it is.
    """
    try:
        fd = os.open(store.blob_path(blob), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None  # another verify was first to find it damaged
    except OSError as error:
        is_ours = not isinstance(error, PermissionError)
        ino = store.blob_path(blob).lstat().st_ino if is_ours else 0
        return _Seen(ino, 0, f"cannot be opened: {error.strerror}")
    stat = os.fstat(fd)
    progress.open_file(blob[:16], stat.st_size)
    try:
        hashes = hashing.hash_fd(
            fd, advance=lambda count: progress.advance(blob[:16], count)
        )
    except OSError as error:  # EIO from a dying disk: as damaged as a flipped bit
        return _Seen(stat.st_ino, 0, f"cannot be read: {error.strerror}")
    finally:
        os.close(fd)
        progress.close_file(blob[:16])
    if hashes.sha256 != blob:
        return _Seen(stat.st_ino, hashes.size, f"hashes to {hashes.sha256}")
    store.know(hashes, stat)
    return _Seen(stat.st_ino, hashes.size)


def verify(
    store: Store,
    manifests: list[Manifest] | None = None,
    *,
    deep: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Check the blobs of ``manifests`` (of the whole store if None).

    Fast: a blob whose size, mtime and inode are those that were hashed is right; only
    the others are read. Deep: all are read, on all cores. A bad blob is moved to
    ``quarantine/`` and reported with the files that it served. ConfigError where no
    manifest says what there should be.
    """
    progress = progress or Progress()
    with locks.using(store):
        chosen = manifests
        if chosen is None:
            chosen = list(store.manifests().values())
        if not chosen:
            raise ConfigError(
                f"there is nothing to verify: {store.root} has no manifest",
                hint="glmspark weights fetch, or name a manifest",
            )
        chosen = [store.resolve(manifest) for manifest in chosen]
        served = served_files(chosen)
        there = set(store.blobs())
        wanted = there if manifests is None else there & served.keys()
        report = Report(deep, checked=len(wanted))
        report.missing = sorted(
            file for key in served.keys() - there for file in served[key]
        )
        to_read = sorted(
            b for b in wanted if deep or store.state(b) is not BlobState.PRESENT
        )
        _read_all(store, to_read, served, report, progress)
        store.journal.compact()
    return report


def _read_all(
    store: Store,
    blobs: list[str],
    served: dict[str, list[str]],
    report: Report,
    progress: Progress,
) -> None:
    # Largest first, so that the last thread does not end alone on a large one.
    sizes = {blob: _size(store.blob_path(blob)) for blob in blobs}
    blobs = sorted(blobs, key=lambda blob: -sizes[blob])
    progress.begin("verify", sum(sizes.values()))
    results = hashing.parallel(lambda blob: _check_one(store, blob, progress), blobs)
    for blob, seen in zip(blobs, results, strict=True):
        files = tuple(served.get(blob, ()))
        if seen is None:
            report.missing += files
            continue
        report.hashed += 1
        report.hashed_bytes += seen.count
        if seen.reason:
            moved = store.quarantine(blob, seen.ino)
            report.damaged.append(Damage(blob, moved, files, seen.reason))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
