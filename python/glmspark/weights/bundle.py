"""Bundles: a disk that carries weights to machines without a network."""

from __future__ import annotations

import errno
import json
import os
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from glmspark.errors import CommandError, ConfigError, IntegrityError, PreflightError
from glmspark.weights import hashing, locks, part
from glmspark.weights import manifest as manifests
from glmspark.weights.fetch import check_space, settle_touched
from glmspark.weights.files import fsync_dir
from glmspark.weights.hashing import Digest
from glmspark.weights.manifest import FileEntry, Manifest
from glmspark.weights.part import Part
from glmspark.weights.progress import Progress, human_bytes
from glmspark.weights.store import Store

MARKER = "glmspark-bundle.json"
_COPIERS = 4


@dataclass(frozen=True)
class BundleResult:
    """How many blobs moved, their bytes, and how many were there before."""

    moved: int
    moved_bytes: int
    already: int
    manifests: tuple[str, ...]


def _blob_in(bundle: Path, sha256: str) -> Path:
    return bundle / "blobs" / "sha256" / sha256[:2] / sha256


def _unique(chosen: list[Manifest]) -> dict[str, FileEntry]:
    return {entry.sha256: entry for m in chosen for entry in m.files}


def _is_right(path: Path, entry: FileEntry) -> bool:
    try:
        if path.stat().st_size != entry.size:
            return False
    except FileNotFoundError:
        return False
    return hashing.hash_file(path).sha256 == entry.sha256


def _export_one(store: Store, bundle: Path, entry: FileEntry, out: Progress) -> int:
    """Bytes written for one blob, 0 if it is there and right; hashed as it is read."""
    target = _blob_in(bundle, entry.sha256)
    out.open_file(entry.path, entry.size)
    try:
        if _is_right(target, entry):
            out.advance(entry.path, entry.size)
            return 0
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(".part")
        digest = Digest()
        with store.blob_path(entry.sha256).open("rb") as source, fresh.open("wb") as to:
            while chunk := source.read(hashing.CHUNK_BYTES):
                digest.update(chunk)
                to.write(chunk)
                out.advance(entry.path, len(chunk))
            to.flush()
            os.fsync(to.fileno())
            os.posix_fadvise(to.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if digest.result().sha256 != entry.sha256:
            fresh.unlink()
            raise IntegrityError(
                f"the store's blob {entry.sha256} ({entry.path}) is damaged",
                hint="glmspark weights verify --deep, then glmspark weights fetch",
            )
        fresh.replace(target)
        fsync_dir(target.parent)
    finally:
        out.close_file(entry.path)
    return entry.size


def _check_room(bundle: Path, entries: list[FileEntry]) -> None:
    need = sum(e.size for e in entries if not _blob_in(bundle, e.sha256).exists())
    free = shutil.disk_usage(bundle).free
    if need > free:
        raise PreflightError(
            f"the bundle needs {human_bytes(need)} more at {bundle}, and "
            f"{human_bytes(free)} are free there; nothing was written",
            hint="take a larger disk",
        )


def export(
    store: Store,
    bundle: Path,
    chosen: list[Manifest],
    progress: Progress | None = None,
) -> BundleResult:
    """Write the blobs and manifests of ``chosen`` to the folder ``bundle``.

    Every blob is hashed as it is read. Run again after an interruption, it writes what
    is not there yet. ``sha256sum -c SHA256SUMS`` checks a bundle without this tool.
    """
    progress = progress or Progress()
    inside = bundle.resolve()
    if inside == store.root.resolve() or store.root.resolve() in inside.parents:
        raise ConfigError(
            f"{bundle} lies in the store {store.root} itself", hint="name another disk"
        )
    with locks.using(store):
        chosen = [store.register(manifest) for manifest in chosen]
        for manifest in chosen:
            if missing := store.missing(manifest):
                raise IntegrityError(
                    f"{manifest.ref} lacks {len(missing)} files in {store.root}",
                    hint="glmspark weights fetch",
                )
        entries = sorted(_unique(chosen).values(), key=lambda e: -e.size)
        try:
            return _write_bundle(store, bundle, chosen, entries, progress)
        except OSError as error:
            raise _gone(error, bundle) from error


def _write_bundle(
    store: Store,
    bundle: Path,
    chosen: list[Manifest],
    entries: list[FileEntry],
    progress: Progress,
) -> BundleResult:
    bundle.mkdir(parents=True, exist_ok=True)
    _check_room(bundle, entries)
    (bundle / MARKER).unlink(missing_ok=True)  # incomplete from here to the end
    progress.begin("export", sum(entry.size for entry in entries))
    written = hashing.parallel(
        lambda entry: _export_one(store, bundle, entry, progress), entries, _COPIERS
    )
    (bundle / "manifests").mkdir(exist_ok=True)
    for manifest in chosen:
        target = bundle / "manifests" / f"{manifest.slug}.json"
        target.write_text(manifest.dumps(), encoding="utf-8")
    sums = [f"{e.sha256}  {_blob_in(Path(), e.sha256)}\n" for e in entries]
    (bundle / "SHA256SUMS").write_text("".join(sorted(sums)))
    names = [manifest.slug for manifest in chosen]
    os.sync()
    (bundle / MARKER).write_text(json.dumps({"format": 1, "manifests": names}) + "\n")
    os.sync()
    moved = [size for size in written if size]
    return BundleResult(len(moved), sum(moved), len(entries) - len(moved), tuple(names))


def _gone(error: OSError, bundle: Path) -> CommandError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CommandError(
            f"the disk of {bundle} is full", hint="take a larger disk, run again"
        )
    return CommandError(
        f"the bundle {bundle} cannot be used any further: {error.strerror} "
        f"({error.filename or 'while copying'}); the store is as it was before",
        hint="attach the disk again and run the same command",
    )


def _open_bundle(bundle: Path) -> list[Manifest]:
    marker = bundle / MARKER
    try:
        names = json.loads(marker.read_bytes())["manifests"]
    except FileNotFoundError:
        raise ConfigError(
            f"{bundle} holds no finished bundle: {MARKER} is not there",
            hint=f"glmspark weights export {bundle} (again), on the machine with them",
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{marker} is damaged: {error}") from error
    return [manifests.load(bundle / "manifests" / f"{name}.json") for name in names]


def _stage(grown: Part, bundle: Path, out: Progress) -> None:
    """Copy the rest of a blob into its part, and check its hash."""
    entry = grown.entry
    start = grown.resume()
    out.open_file(entry.path, entry.size, start)
    grown.on_bytes = lambda count: out.advance(entry.path, count)
    path = _blob_in(bundle, entry.sha256)
    try:
        with path.open("rb") as source:
            source.seek(start)
            while chunk := source.read(hashing.CHUNK_BYTES):
                grown.write(chunk)
            os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        grown.check(f"the bundle's {path.name}")
    finally:
        out.close_file(entry.path)


def apply(store: Store, bundle: Path, progress: Progress | None = None) -> BundleResult:
    """Bring in a bundle, verified while it is read; all of it or nothing.

    Blobs wait as parts until the last one is right. A disk that is pulled out half
    way leaves blobs, manifests and views as they were; the parts make the next try
    short.
    """
    progress = progress or Progress()
    chosen = _open_bundle(bundle)
    for manifest in chosen:
        settle_touched(store, manifest, progress)
    with locks.using(store), ExitStack() as claims:
        missing = {e.sha256: e for m in chosen for e in store.missing(m)}
        check_space(store, list(missing.values()), "applying the bundle")
        progress.begin("apply", sum(entry.size for entry in missing.values()))
        parts = []
        for entry in sorted(missing.values(), key=lambda e: e.sha256):
            wait = f"{entry.path}: another process brings it, waiting"

            def say(text: str = wait) -> None:
                progress.note(text)

            grown = claims.enter_context(part.claimed(store, entry, say))
            if grown is not None:
                parts.append(grown)
        try:
            hashing.parallel(lambda p: _stage(p, bundle, progress), parts, _COPIERS)
        except OSError as error:
            raise _gone(error, bundle) from error
        for grown in parts:
            grown.enter(grown.digest.result())
        for manifest in chosen:
            store.register(manifest)
    already = len(_unique(chosen)) - len(parts)
    moved = sum(grown.entry.size for grown in parts)
    return BundleResult(len(parts), moved, already, tuple(m.slug for m in chosen))
