"""Import: take what an existing cache or folder already holds, without copying it."""

from __future__ import annotations

import fcntl
import os
import stat as stat_bits
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glmspark.errors import ConfigError
from glmspark.weights import hashing, locks, part
from glmspark.weights import manifest as manifests
from glmspark.weights.fetch import check_space, settle_touched
from glmspark.weights.hashing import Hashes
from glmspark.weights.manifest import FileEntry, Manifest
from glmspark.weights.part import Part
from glmspark.weights.progress import Progress
from glmspark.weights.store import Store

# ioctl(2) FICLONE: share the extents of another file (xfs, btrfs).
_FICLONE = 0x40049409


@dataclass(frozen=True)
class Candidate:
    """A file of the source: ``path`` as found, ``real`` where its bytes are."""

    path: Path
    real: Path
    stat: os.stat_result


@dataclass
class ImportReport:
    """What came in and how, and what did not and why."""

    reflinked: int = 0
    hard_linked: int = 0
    copied: int = 0
    imported_bytes: int = 0
    hashed_bytes: int = 0
    unusable: list[tuple[str, str]] = field(default_factory=list)
    manifests: list[Manifest] = field(default_factory=list)

    @property
    def imported(self) -> int:
        """The number of blobs that came in."""
        return self.reflinked + self.hard_linked + self.copied

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "imported": self.imported,
            "reflinked": self.reflinked,
            "hard_linked": self.hard_linked,
            "copied": self.copied,
            "imported_bytes": self.imported_bytes,
            "unusable": [{"path": p, "reason": r} for p, r in self.unusable],
            "manifests": [m.slug for m in self.manifests],
        }


def _scan(root: Path, report: ImportReport) -> list[Candidate]:
    """Every regular file below ``root``, once for each inode, links resolved.

    Newer Hub clients keep blobs above the model's folder: what a link resolves to
    counts, wherever it is.
    """
    found: dict[tuple[int, int], Candidate] = {}

    def unreadable(error: OSError) -> None:
        report.unusable.append((str(error.filename), f"{error.strerror}"))

    for base, _folders, names in os.walk(root, onerror=unreadable):
        for name in sorted(names):
            path = Path(base) / name
            if name.endswith(".incomplete"):
                report.unusable.append((str(path), "an unfinished download"))
                continue
            try:
                stat = path.stat()
            except OSError as error:
                what = "a broken link" if path.is_symlink() else str(error.strerror)
                report.unusable.append((str(path), what))
                continue
            if stat_bits.S_ISREG(stat.st_mode):
                key = (stat.st_dev, stat.st_ino)
                found.setdefault(key, Candidate(path, path.resolve(), stat))
    return list(found.values())


def _bundle_manifests(root: Path) -> list[Manifest]:
    folder = root / "manifests"
    if not (root / "blobs" / "sha256").is_dir() or not folder.is_dir():
        return []
    return [manifests.load(path) for path in sorted(folder.glob("[!.]*.json"))]


class _Importer:
    def __init__(self, store: Store, wanted: list[FileEntry], out: Progress) -> None:
        self.store = store
        self.out = out
        self.by_size: dict[int, list[FileEntry]] = {}
        for entry in wanted:
            self.by_size.setdefault(entry.size, []).append(entry)
        self.git_sizes = {entry.size for entry in wanted if not entry.sha256}
        self.by_name: dict[str, FileEntry] = {}
        for entry in wanted:
            self.by_name.setdefault(Path(entry.path).name, entry)

    def wants_git(self, size: int) -> bool:
        """Whether git's id of a file of ``size`` bytes is of use."""
        return size <= hashing.GIT_MAX_BYTES or size in self.git_sizes

    def hash_one(self, item: Candidate) -> tuple[Candidate, Hashes | None, str]:
        """The candidate with its hashes, or with the reason why it has none."""
        name = item.path.name
        self.out.open_file(name, item.stat.st_size)
        try:
            hashes = hashing.hash_file(
                item.real,
                want_git=self.wants_git(item.stat.st_size),
                advance=lambda n: self.out.advance(name, n),
            )
        except OSError as error:
            return item, None, f"cannot be read: {error.strerror}"
        finally:
            self.out.close_file(name)
        return item, hashes, ""

    def entry_for(self, hashes: Hashes) -> FileEntry | None:
        """The wanted entry that has exactly these bytes."""
        for entry in self.by_size.get(hashes.size, ()):
            if hashes.sha256 == entry.sha256:
                return entry
            if not entry.sha256 and hashes.git_oid == entry.git_oid:
                return entry
        return None


def _reflink(item: Candidate, grown: Part) -> bool:
    source = os.open(item.real, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.ftruncate(grown.fd, 0)
        fcntl.ioctl(grown.fd, _FICLONE, source)
    except OSError:
        return False
    finally:
        os.close(source)
    return True


def _same(stat: os.stat_result, other: os.stat_result) -> bool:
    def seen(s: os.stat_result) -> tuple[int, ...]:
        return (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns)

    return seen(stat) == seen(other)


def _hard_link(store: Store, item: Candidate, grown: Part, hashes: Hashes) -> bool:
    link = grown.path.with_suffix(".link")
    link.unlink(missing_ok=True)
    try:
        link.hardlink_to(item.real)
    except OSError:  # another file system, or protected_hardlinks and not ours
        return False
    fd = os.open(link, os.O_RDONLY | os.O_CLOEXEC)
    try:
        store.enter(link, fd, hashes, private=False)
    finally:
        os.close(fd)
    grown.path.unlink()
    return True


def _copy(item: Candidate, grown: Part) -> None:
    grown.restart()
    with item.real.open("rb") as file:
        while chunk := file.read(hashing.CHUNK_BYTES):
            grown.write(chunk)
    grown.enter(grown.check(str(item.path)))


def _bring_in(
    store: Store,
    item: Candidate,
    entry: FileEntry,
    hashes: Hashes,
    report: ImportReport,
) -> None:
    with part.claimed(store, entry, lambda: None) as grown:
        if grown is None:
            return
        if not _same(item.real.stat(), item.stat):
            report.unusable.append((str(item.path), "changed while it was read"))
            return
        if _reflink(item, grown):
            store.enter(grown.path, grown.fd, hashes, private=True)
            report.reflinked += 1
        elif _hard_link(store, item, grown, hashes):
            report.hard_linked += 1
        else:
            _copy(item, grown)
            report.copied += 1
        report.imported_bytes += hashes.size


def _reason(importer: _Importer, item: Candidate) -> str:
    """Why a file that looks wanted is not; empty if it does not look wanted."""
    entry = importer.by_name.get(item.path.name)
    if entry is None or entry.size == item.stat.st_size:
        return ""
    short = "truncated" if item.stat.st_size < entry.size else "another file"
    return f"{short}: {item.stat.st_size} bytes, {entry.path} has {entry.size}"


def import_from(
    store: Store,
    source: Path,
    wanted: list[Manifest],
    *,
    chosen: bool = False,
    progress: Progress | None = None,
) -> ImportReport:
    """Bring in the blobs of ``wanted`` that the files below ``source`` hold.

    Only files whose size fits are read, and only right hashes come in: by reflink,
    else hard link, else copy. The source is never written. ``chosen`` says that the
    user named the manifests: they are registered even if nothing was found.
    """
    progress = progress or Progress()
    if not source.is_dir():
        raise ConfigError(f"{source} is not a folder", hint="name an existing one")
    report = ImportReport()
    all_wanted = [store.resolve(m) for m in wanted + _bundle_manifests(source)]
    for manifest in all_wanted:
        settle_touched(store, manifest, progress)
    with locks.using(store):
        for manifest in all_wanted if chosen else ():
            store.register(manifest)
        missing = {e.key: e for m in all_wanted for e in store.missing(m)}
        importer = _Importer(store, list(missing.values()), progress)
        fitting: list[Candidate] = []
        for item in _scan(source, report):
            if item.stat.st_size in importer.by_size:
                fitting.append(item)
            elif reason := _reason(importer, item):
                report.unusable.append((str(item.path), reason))
        _take(store, importer, fitting, report)
        for manifest in all_wanted:
            after = {entry.key for entry in store.missing(manifest)}
            came = any(e.key not in after and e.key in missing for e in manifest.files)
            if came or chosen:
                report.manifests.append(store.register(manifest))
    return report


def _take(
    store: Store,
    importer: _Importer,
    fitting: list[Candidate],
    report: ImportReport,
) -> None:
    fitting.sort(key=lambda item: -item.stat.st_size)
    total = sum(item.stat.st_size for item in fitting)
    importer.out.begin("import", total)
    report.hashed_bytes = total
    is_near = any(item.stat.st_dev == store.root.stat().st_dev for item in fitting)
    if fitting and not is_near:  # all of it will be copied
        entries = {e.key: e for i in fitting for e in importer.by_size[i.stat.st_size]}
        check_space(store, list(entries.values()), "importing by copy")
    for item, hashes, reason in hashing.parallel(importer.hash_one, fitting):
        entry = importer.entry_for(hashes) if hashes else None
        if hashes is not None and entry is not None:
            _bring_in(store, item, entry, hashes, report)
        elif hashes is not None and item.path.name not in importer.by_name:
            continue  # another model's file that happens to be as long
        else:
            report.unusable.append((str(item.path), reason or "wrong hash: damaged"))
