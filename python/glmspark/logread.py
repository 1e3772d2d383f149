"""The ranks' logs as one, in the order of time: stamps, clocks, tails."""

from __future__ import annotations

import calendar
import heapq
import json
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from glmspark.errors import ConfigError

# vLLM's logger puts "INFO 11-30 22:57:00 " before its lines, with or without a process.
_STAMP = re.compile(
    r"^(?:\([^)]*pid=\d+\)\s*)?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+"
    r"(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b"
)
_SPAN = re.compile(r"^(\d+(?:\.\d+)?)\s*(s|m|min|h|d)$")
_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
WEEK_S = 7 * 86400.0
_FORMS = ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d")


@dataclass(frozen=True, order=True)
class Entry:
    """A line: when it was written by the head's clock, by which rank, what it says."""

    when_s: float
    rank: int
    number: int
    text: str

    def shown(self) -> str:
        """The line for people."""
        return f"[{self.rank}] {self.text}"


def boot_time(name: str) -> float:
    """When a boot began, by its name; in this machine's time zone."""
    return time.mktime(time.strptime(name.partition("-")[0], "%Y%m%dT%H%M%S"))


def stamp(line: str, began_s: float) -> float | None:
    """The time that ``line`` carries; None where it carries none.

    The year is not in it: it is the first time that is no more than a week before the
    boot (a node's clock may be behind).
    """
    found = _STAMP.match(line)
    if found is None:
        return None
    month, day, hour, minute, second = (int(part) for part in found.groups())
    began = time.localtime(began_s).tm_year
    for year in (began - 1, began, began + 1):
        try:
            calendar.weekday(year, month, day)
            when_s = time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
        except (ValueError, OverflowError):
            continue
        if when_s > began_s - WEEK_S:
            return when_s
    return None


def parse_since(text: str, now_s: float) -> float:
    """The time that ``text`` names: a span back from now, a time of today, or a date.

    Raises:
        ConfigError: it is none of them.
    """
    if span := _SPAN.match(text.strip()):
        return now_s - float(span[1]) * _UNITS[span[2]]
    today = time.strftime("%Y-%m-%d ", time.localtime(now_s))
    for candidate in (text.strip(), today + text.strip()):
        for form in _FORMS:
            try:
                return time.mktime(time.strptime(candidate, form))
            except ValueError:
                continue
    raise ConfigError(
        f"--since {text} is no time",
        hint="--since 10m, --since 2h, --since 14:30, --since '2026-11-30 22:57'",
    )


def merge(logs: Iterable[Iterable[Entry]]) -> Iterator[Entry]:
    """The entries of all logs in time order; those of one log keep their order."""
    yield from heapq.merge(*logs, key=lambda one: (one.when_s, one.rank, one.number))


def clock_file(folder: Path, rank: int) -> Path:
    """Where it stands how far the clock of a rank's node is ahead of the head's."""
    return folder / f"rank-{rank}.clock"


def read_clock(folder: Path, rank: int) -> float:
    """How far the clock of a rank's node is ahead, in seconds; 0 if not known."""
    try:
        return float(json.loads(clock_file(folder, rank).read_text()))
    except (OSError, ValueError):
        return 0.0


def progress_file(folder: Path, rank: int) -> Path:
    """Where it stands how far a rank of another node has got."""
    return folder / f"rank-{rank}.progress"


def read_progress(folder: Path, rank: int) -> int:
    """How far a rank of another node has got; 0 if it has not said."""
    try:
        return int(progress_file(folder, rank).read_text())
    except (OSError, ValueError):
        return 0


class Tail:
    """Reads a rank's log as it grows; a log that was cut short is read from its start.

    A line without a time has that of the line before it, and is never older.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.rank = int(file.stem.removeprefix("rank-"))
        self._ahead_s = read_clock(file.parent, self.rank)
        self._began_s = boot_time(file.parent.name)
        self._when_s = self._began_s
        self._number = 0
        self._offset = 0
        self._rest = b""

    def _entry(self, line: bytes) -> Entry:
        text = line.decode(errors="replace")
        seen = stamp(text, self._began_s)
        if seen is not None:
            self._when_s = max(self._when_s, seen - self._ahead_s)
        self._number += 1
        return Entry(self._when_s, self.rank, self._number, text)

    def fresh(self) -> list[Entry]:
        """The whole lines that have come since the last call."""
        with self._file.open("rb") as file:
            if file.seek(0, 2) < self._offset:
                self._offset, self._rest = 0, b""
            file.seek(self._offset)
            data = self._rest + file.read()
            self._offset = file.tell()
        *lines, self._rest = data.split(b"\n")
        return [self._entry(line) for line in lines]
