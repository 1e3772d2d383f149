"""Pull: the node's side of a share; several connections, hashed as they arrive."""

from __future__ import annotations

import http.client
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from glmspark.errors import CommandError, GlmSparkError, IntegrityError, PreflightError
from glmspark.weights import hashing, locks, part
from glmspark.weights import manifest as manifests
from glmspark.weights.fetch import check_space, settle_touched
from glmspark.weights.manifest import FileEntry, Manifest
from glmspark.weights.part import Part
from glmspark.weights.progress import Progress
from glmspark.weights.stall import SocketWatch
from glmspark.weights.store import Store

# A link that stands still this long is given up; its files go over the others.
_STALL_S = 30.0
_FAILURES_PER_RAIL = 3


@dataclass(frozen=True)
class Rail:
    """One link to the head: its address and port there, and this node's address."""

    host: str
    port: int
    source: str = ""


@dataclass(frozen=True)
class PullJob:
    """What the head tells the node over ssh; the token never stands in argv."""

    token: str = field(repr=False)
    rails: tuple[Rail, ...]
    manifests: tuple[Manifest, ...]
    connections: int = 4
    link: bool = True

    def to_json(self) -> dict[str, Any]:
        """The job as plain data, token included: for the ssh channel only."""
        return {
            "token": self.token,
            "rails": [[rail.host, rail.port, rail.source] for rail in self.rails],
            "manifests": [manifest.to_json() for manifest in self.manifests],
            "connections": self.connections,
            "link": self.link,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> PullJob:
        """The job that ``to_json`` gave."""
        return cls(
            token=data["token"],
            rails=tuple(Rail(*rail) for rail in data["rails"]),
            manifests=tuple(manifests.from_json(m) for m in data["manifests"]),
            connections=data["connections"],
            link=data["link"],
        )


@dataclass
class PullResult:
    """What came, over which links, and what was there before."""

    received: int = 0
    received_bytes: int = 0
    resumed_bytes: int = 0
    already: int = 0
    by_rail: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The result as plain data."""
        return dict(vars(self))


class _StoppedError(Exception):
    """Another connection failed for good."""


class _Pull:
    def __init__(
        self, store: Store, job: PullJob, entries: list[FileEntry], out: Progress
    ) -> None:
        self.store = store
        self.job = job
        self.out = out
        self.result = PullResult()
        self.watch = SocketWatch(_STALL_S)
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.queue: queue.SimpleQueue[FileEntry] = queue.SimpleQueue()
        self.left = len(entries)
        self.rail_errors: dict[Rail, str] = {}
        self.failures: dict[Rail, int] = dict.fromkeys(job.rails, 0)
        for entry in sorted(entries, key=lambda entry: -entry.size):
            self.queue.put(entry)

    def work(self, rail: Rail) -> None:
        """Pull blobs over ``rail`` until none is left or the rail is given up."""
        connection = http.client.HTTPConnection(
            rail.host,
            rail.port,
            timeout=_STALL_S,
            source_address=(rail.source, 0) if rail.source else None,
        )
        try:
            while self.left and not self.stop.is_set():
                if rail in self.rail_errors:
                    return
                try:
                    entry = self.queue.get(timeout=0.2)
                except queue.Empty:
                    continue  # another rail may give its file back
                self._try(entry, rail, connection)
        except BaseException:
            self.stop.set()
            raise
        finally:
            connection.close()

    def _try(
        self, entry: FileEntry, rail: Rail, connection: http.client.HTTPConnection
    ) -> None:
        try:
            self._one(entry, rail, connection)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self.queue.put(entry)
            self._rail_failed(rail, f"{type(error).__name__}: {error}")
        else:
            with self.lock:
                self.left -= 1

    def _rail_failed(self, rail: Rail, reason: str) -> None:
        with self.lock:
            self.failures[rail] += 1
            if self.failures[rail] < _FAILURES_PER_RAIL or rail in self.rail_errors:
                return
            self.rail_errors[rail] = reason
        self.out.note(
            f"the link {rail.source or 'any'} -> {rail.host}:{rail.port} is given up: "
            f"{reason}"
        )

    def _one(
        self, entry: FileEntry, rail: Rail, connection: http.client.HTTPConnection
    ) -> None:
        wait = f"{entry.path}: another process brings it, waiting"
        with part.claimed(self.store, entry, lambda: self.out.note(wait)) as grown:
            if grown is None:
                self.out.open_file(entry.path, entry.size, entry.size)
                return
            start = grown.resume()
            self.out.open_file(entry.path, entry.size, start)
            try:
                self._receive(grown, connection, self._counter(entry, rail))
                grown.enter(_checked(grown))
            except BaseException:
                self.out.advance(entry.path, -grown.tell())
                raise
            finally:
                self.out.close_file(entry.path)
            with self.lock:
                self.failures[rail] = 0
                self.result.received += 1
                self.result.resumed_bytes += start

    def _counter(self, entry: FileEntry, rail: Rail) -> Callable[[int], None]:
        name = rail.source or rail.host

        def count(size: int) -> None:
            self.out.advance(entry.path, size)
            with self.lock:
                self.result.received_bytes += size
                by_rail = self.result.by_rail
                by_rail[name] = by_rail.get(name, 0) + size
            if self.stop.is_set():
                raise _StoppedError

        return count

    def _receive(
        self,
        grown: Part,
        connection: http.client.HTTPConnection,
        count: Callable[[int], None],
    ) -> None:
        start, size = grown.tell(), grown.entry.size
        if start == size:
            return
        headers = {"Authorization": f"Bearer {self.job.token}"}
        if start:
            headers["Range"] = f"bytes={start}-"
        connection.request("GET", f"/blob/{grown.entry.sha256}", headers=headers)
        sock = connection.sock
        with self.watch.waiting(sock):
            response = connection.getresponse()
        if response.status == 200 and start:
            grown.restart()  # ranges are not known there: all of it comes again
        elif response.status != (206 if start else 200):
            raise CommandError(
                f"the head answered {response.status} for {grown.entry.path}",
                hint="run the share again; its token is good for one run",
            )
        grown.on_bytes = count
        buffer = memoryview(bytearray(hashing.CHUNK_BYTES))
        while grown.tell() < size:
            with self.watch.waiting(sock):
                got = response.readinto(buffer)
            if not got:
                raise ConnectionResetError("the connection ended or stalled")
            grown.write(buffer[:got])


def _checked(grown: Part) -> hashing.Hashes:
    try:
        return grown.check("the head")
    except IntegrityError as error:
        raise IntegrityError(
            str(error),
            hint="on the head: glmspark weights verify --deep, then weights fetch",
        ) from error


def pull(store: Store, job: PullJob, progress: Progress | None = None) -> PullResult:
    """Take from the head what this node lacks of the job's manifests.

    A blob that is here under any name is not sent. Each is hashed while it arrives and
    gets its name only when right. CommandError if no link is left.
    """
    progress = progress or Progress()
    for manifest in job.manifests:
        settle_touched(store, manifest, progress)
    with locks.using(store):
        chosen = [store.register(manifest) for manifest in job.manifests]
        missing = {e.sha256: e for m in chosen for e in store.missing(m)}
        check_space(store, list(missing.values()), "receiving the weights")
        total = sum(entry.size for entry in missing.values())
        progress.begin("receive", total)
        work = _Pull(store, job, list(missing.values()), progress)
        unique = {entry.sha256 for manifest in chosen for entry in manifest.files}
        work.result.already = len(unique) - len(missing)
        if missing:
            _run(work)
    return work.result


def _run(work: _Pull) -> None:
    lanes = [rail for rail in work.job.rails for _ in range(work.job.connections)]

    def lane(rail: Rail) -> BaseException | None:
        try:
            work.work(rail)
        except (GlmSparkError, _StoppedError) as error:
            return error
        return None

    with work.watch:
        found = hashing.parallel(lane, lanes, len(lanes), on_error=work.stop.set)
    errors = [e for e in found if e is not None and not isinstance(e, _StoppedError)]
    if errors:
        raise errors[0]
    if work.left:
        links = "; ".join(
            f"{rail.source or 'any address'} -> {rail.host}:{rail.port}: {reason}"
            for rail, reason in work.rail_errors.items()
        )
        raise PreflightError(
            f"the head's blob server cannot be reached over any link: {links}",
            hint="check fabric addresses and firewall on both ends, then share again",
        )
