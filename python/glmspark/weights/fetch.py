"""Fetch: take the missing blobs of a manifest from the Hub, and nothing else."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from glmspark.errors import GlmSparkError, PreflightError
from glmspark.weights import hashing, hub, locks, part, verify
from glmspark.weights import trouble as troubles
from glmspark.weights.hub import Source
from glmspark.weights.manifest import FileEntry, Manifest
from glmspark.weights.part import Part
from glmspark.weights.progress import Progress, human_bytes
from glmspark.weights.stall import min_bytes
from glmspark.weights.store import BlobState, Store
from glmspark.weights.transfer import transfer

# Room that stays free: a file system filled to the last block slows down, and the
# store's small files have to go somewhere.
_SPARE_BYTES = 64 << 20


@dataclass(frozen=True)
class FetchOptions:
    """``workers`` files at once; ``attempts`` failures in a row without progress."""

    workers: int = 4
    attempts: int = 5
    stall_s: int = 30
    allow_xet: bool = True


@dataclass(frozen=True)
class FetchResult:
    """What a fetch did: blobs that came, their bytes, and the resolved manifest."""

    manifest: Manifest
    fetched: int
    fetched_bytes: int
    resumed_bytes: int
    already: int


class _StoppedError(Exception):
    """Another file of this fetch has failed for good."""


def have_bytes(store: Store, entry: FileEntry) -> int:
    """The bytes of ``entry`` that a part already holds."""
    try:
        return min(store.part_path(entry.key).stat().st_size, entry.size)
    except FileNotFoundError:
        return 0


def check_space(store: Store, entries: list[FileEntry], title: str) -> int:
    """The bytes that still have to be written; PreflightError if they do not fit.

    Counted from missing bytes, on the file system that holds the store.
    """
    need = sum(entry.size - have_bytes(store, entry) for entry in entries)
    stat = os.statvfs(store.root)
    free = stat.f_bavail * stat.f_frsize
    if entries and need + _SPARE_BYTES > free:
        raise PreflightError(
            f"{title} needs {human_bytes(need)} more at {store.root}, and "
            f"{human_bytes(free)} are free there; nothing was written",
            hint=f"free {human_bytes(need + _SPARE_BYTES - free)}, or use --store",
        )
    return need


def settle_touched(store: Store, manifest: Manifest, progress: Progress) -> None:
    """Hash blobs of ``manifest`` whose stat changed: right ones need no transfer."""
    shas = {e.sha256 for e in store.resolve(manifest).files if e.sha256}
    if any(store.state(sha) is BlobState.TOUCHED for sha in shas):
        progress.note("some blobs changed since they were hashed: hashing them again")
        for damage in verify.verify(store, [manifest]).damaged:
            files = ", ".join(damage.files)
            where = f"moved to {damage.moved_to}" if damage.moved_to else "not moved"
            progress.note(f"damaged: {files}: {damage.reason}; {where}")


class _Fetcher:
    def __init__(
        self, store: Store, manifest: Manifest, options: FetchOptions, out: Progress
    ) -> None:
        self.store = store
        self.options = options
        self.out = out
        self.sources = [Source(manifest.repo, manifest.revision)]
        self.sources += [Source(m.repo, m.revision) for m in manifest.mirrors]
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.fetched = 0
        self.fetched_bytes = 0
        self.resumed_bytes = 0

    def one(self, entry: FileEntry) -> None:
        """Bring in one blob, or raise what the user has to know."""
        try:
            self._one(entry)
        except BaseException:
            self.stop.set()
            raise

    def _one(self, entry: FileEntry) -> None:
        if self.stop.is_set():
            raise _StoppedError
        wait = f"{entry.path}: another process fetches it, waiting"
        with part.claimed(self.store, entry, lambda: self.out.note(wait)) as grown:
            if grown is None:
                self.out.open_file(entry.path, entry.size, entry.size)
                return
            start = grown.resume()
            self.out.open_file(entry.path, entry.size, start)
            grown.on_bytes = lambda count: self._on_bytes(entry, count)
            try:
                self._from_sources(grown)
            finally:
                self.out.close_file(entry.path)
            with self.lock:
                self.fetched += 1
                self.fetched_bytes += entry.size - start
                self.resumed_bytes += start

    def _on_bytes(self, entry: FileEntry, count: int) -> None:
        self.out.advance(entry.path, count)
        if self.stop.is_set():
            raise _StoppedError

    def _from_sources(self, grown: Part) -> None:
        if grown.entry.pinned:
            raise PreflightError(
                f"{grown.entry.path} was pinned by hand and is missing; no Hub has it",
                hint=f"glmspark weights pin MANIFEST {grown.entry.path}=FILE",
            )
        first: GlmSparkError | None = None
        for source in self.sources:
            if first is not None:
                self.out.note(f"{first}; trying the mirror {source}")
            try:
                self._from_source(grown, source)
                return
            except _ElsewhereError as error:
                first = first or error.cause
        assert first is not None  # noqa: S101 - there is at least one source
        raise first

    def _from_source(self, grown: Part, source: Source) -> None:
        failures = 0
        what = f"{grown.entry.path} of {source}"
        while True:
            before = grown.tell()
            try:
                transfer(
                    grown,
                    source,
                    stall_s=self.options.stall_s,
                    allow_xet=self.options.allow_xet,
                )
                grown.enter(grown.check(str(source)))
                return
            except troubles.transfer_errors() as error:
                trouble = troubles.explain(error, what, source)
                if trouble.restart:
                    grown.restart()
                # A trickle is no progress, else it would be tried for ever.
                moved = grown.tell() - before
                is_alive = moved >= min_bytes(self.options.stall_s)
                failures = 1 if is_alive else failures + 1
                if not trouble.retry or failures >= self.options.attempts:
                    if trouble.elsewhere:
                        raise _ElsewhereError(trouble.error) from error
                    raise trouble.error from error
                wait = troubles.backoff_s(failures, trouble.wait_s)
                self.out.note(f"{trouble.error}; again in {wait:.0f} s")
                if self.stop.wait(wait):
                    raise _StoppedError from None


class _ElsewhereError(Exception):
    def __init__(self, cause: GlmSparkError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def fetch(
    store: Store,
    manifest: Manifest,
    options: FetchOptions | None = None,
    progress: Progress | None = None,
) -> FetchResult:
    """Bring every missing blob of ``manifest`` into ``store`` and register it.

    A complete store is answered without network. Disk space is checked first
    (PreflightError). The first file that cannot be had ends the run with its reason;
    what has arrived is kept, to the byte.
    """
    options = options or FetchOptions()
    progress = progress or Progress()
    settle_touched(store, manifest, progress)
    with locks.using(store):
        manifest = store.register(manifest)
        missing = store.missing(manifest)
        check_space(store, missing, f"fetching {manifest.ref}")
        already = len({entry.key for entry in manifest.files}) - len(missing)
        if not missing:
            return FetchResult(manifest, 0, 0, 0, already)
        worker = _Fetcher(store, manifest, options, progress)
        total = sum(entry.size for entry in missing)
        progress.begin(f"fetch {manifest.repo}", total)
        with _hub_session(store.root, options, progress):
            # Small files first: a wrong token or revision shows at once.
            small_first = sorted(missing, key=lambda entry: entry.size)
            _run(worker, small_first, options.workers)
        resolved = store.register(manifest)
    return FetchResult(
        resolved, worker.fetched, worker.fetched_bytes, worker.resumed_bytes, already
    )


@contextmanager
def _hub_session(
    root: Path, options: FetchOptions, progress: Progress
) -> Iterator[None]:
    hub.prepare(root, stall_s=options.stall_s, allow_xet=options.allow_xet)
    if options.allow_xet and hub.has_xet():
        limit = human_bytes(hub.XET_BUFFER_BYTES)
        progress.note(f"xet is here and will be used; its buffers end at {limit}")
    with hub.narrated(progress):
        yield


def _run(worker: _Fetcher, entries: list[FileEntry], workers: int) -> None:
    def one(entry: FileEntry) -> BaseException | None:
        try:
            worker.one(entry)
        except _StoppedError:
            return None
        except (GlmSparkError, OSError) as error:
            return error
        return None

    results = hashing.parallel(one, entries, workers, on_error=worker.stop.set)
    error = next((result for result in results if result is not None), None)
    if error is not None:
        raise error
