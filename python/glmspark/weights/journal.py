"""The journal: what each blob's stat was when its bytes were last hashed.

One JSON line per event, appended; the last line for a blob counts. A line that a crash
tore, or that is missing, costs one hash of that blob and nothing else.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

# Rewritten when it holds this many times more lines than blobs.
_SLACK = 4
_MIN_LINES = 4096


@dataclass(frozen=True)
class Record:
    """The stat of a blob at the moment when its bytes were known to be right."""

    blob: str
    size: int
    mtime_ns: int
    ino: int

    @classmethod
    def of(cls, blob: str, stat: os.stat_result) -> Record:
        """The record of ``blob`` as ``stat`` sees it."""
        return cls(blob, stat.st_size, stat.st_mtime_ns, stat.st_ino)


def _parse(lines: Iterable[bytes], records: dict[str, Record]) -> None:
    """Let ``lines`` have their say on ``records``."""
    for line in lines:
        try:
            data = json.loads(line)
            blob = data["blob"]
            if data.get("gone"):
                records.pop(blob, None)
            else:
                record = Record(blob, data["size"], data["mtime_ns"], data["ino"])
                records[blob] = record
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # a torn line: its blob is hashed again


class Journal:
    """The journal file of one store; every method is safe beside other processes.

    ``adopt`` is given each file that is created, to set its owner.
    """

    def __init__(self, path: Path, adopt: Callable[[int], None]) -> None:
        self._path = path
        self._adopt = adopt
        self._lock = threading.Lock()
        self._ino = 0
        self._offset = 0
        self._records: dict[str, Record] = {}

    def records(self) -> dict[str, Record]:
        """Blob -> record; what was appended since the last call is read."""
        with self._lock:
            try:
                with self._path.open("rb") as file:
                    self._read_on(file)
            except FileNotFoundError:
                self._ino, self._offset, self._records = 0, 0, {}
            return self._records

    def _read_on(self, file: BinaryIO) -> None:
        stat = os.fstat(file.fileno())
        if stat.st_ino != self._ino or stat.st_size < self._offset:
            self._ino, self._offset, self._records = stat.st_ino, 0, {}
        if stat.st_size == self._offset:
            return
        file.seek(self._offset)
        data = file.read()
        whole = data.rfind(b"\n") + 1  # a line that is being written is for next time
        _parse(data[:whole].splitlines(), self._records)
        self._offset += whole

    def add(self, record: Record) -> None:
        """Append ``record``."""
        self._append(json.dumps(asdict(record)))

    def remove(self, blob: str) -> None:
        """Note that nothing is known of ``blob`` any more."""
        self._append(json.dumps({"blob": blob, "gone": True}))

    def _append(self, line: str) -> None:
        fd = self._locked()
        try:
            # The leading newline ends a line that a crash may have torn.
            os.write(fd, f"\n{line}\n".encode())
        finally:
            os.close(fd)

    def _locked(self) -> int:
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            fd = os.open(self._path, flags, 0o644)
            fcntl.flock(fd, fcntl.LOCK_EX)
            self._adopt(fd)
            try:
                if os.fstat(fd).st_ino == self._path.stat().st_ino:
                    return fd
            except FileNotFoundError:
                pass
            os.close(fd)  # it was compacted meanwhile: take the new one

    def compact(self) -> None:
        """Drop outdated lines, if there are many of them."""
        if not self._path.exists():
            return
        fd = self._locked()
        try:
            count = self._path.read_bytes().count(b"{")
            records = self.records()
            if count < max(_MIN_LINES, _SLACK * len(records)):
                return
            text = "".join(json.dumps(asdict(r)) + "\n" for r in records.values())
            fresh = self._path.with_suffix(".new")
            with fresh.open("w", encoding="utf-8") as file:
                self._adopt(file.fileno())
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
        finally:
            os.close(fd)
