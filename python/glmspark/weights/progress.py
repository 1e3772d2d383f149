"""Progress of long work: bars on a terminal, plain lines elsewhere, JSON over ssh."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_PLAIN_EVERY_S = 5.0
_JSON_EVERY_S = 0.5


def human_bytes(count: float) -> str:
    """``count`` bytes in the largest binary unit below it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    raise AssertionError


def human_time(seconds: float) -> str:
    """``seconds`` as h:mm:ss."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


class Progress:
    """Counts bytes of a job and of its files; this one says nothing.

    Every method may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.title = ""
        self.total = 0
        self.done = 0
        self.started = time.monotonic()
        self.skipped = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def begin(self, title: str, total_bytes: int) -> None:
        """The job is ``title`` and has ``total_bytes`` to do."""
        self.title, self.total, self.done, self.skipped = title, total_bytes, 0, 0
        self.started = time.monotonic()

    def add_total(self, count: int) -> None:
        """The job turned out to have ``count`` bytes more."""
        with self._lock:
            self.total += count

    def open_file(self, name: str, size: int, done: int = 0) -> None:  # noqa: ARG002
        """A file of ``size`` bytes is being worked on, of which ``done`` were there."""
        with self._lock:
            self.done += done
            self.skipped += done

    def advance(self, name: str, count: int) -> None:  # noqa: ARG002
        """``count`` more bytes of ``name``; negative if they have to come again."""
        with self._lock:
            self.done += count

    def close_file(self, name: str) -> None:
        """``name`` is done with."""

    def note(self, text: str) -> None:
        """Tell the user ``text``, one line."""

    def close(self) -> None:
        """The job has ended."""

    def rate(self) -> float:
        """Bytes a second since the job began, without those that were there before."""
        elapsed = max(time.monotonic() - self.started, 1e-3)
        return (self.done - self.skipped) / elapsed

    def line(self) -> str:
        """The state in one line."""
        rate = self.rate()
        left = human_time((self.total - self.done) / rate) if rate > 0 else "unknown"
        return (
            f"{self.title}: {human_bytes(self.done)} of {human_bytes(self.total)}, "
            f"{human_bytes(rate)}/s, {left} left"
        )


class PlainProgress(Progress):
    """A line on stderr every five seconds."""

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        super().__init__()
        self._say = say or (lambda text: print(text, file=sys.stderr))  # noqa: T201
        self._next = time.monotonic() + _PLAIN_EVERY_S

    def advance(self, name: str, count: int) -> None:
        """As in :class:`Progress`."""
        super().advance(name, count)
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _PLAIN_EVERY_S
            self._say(self.line())

    def note(self, text: str) -> None:
        """As in :class:`Progress`."""
        self._say(text)


class TerminalProgress(Progress):
    """Bars on stderr: one for the job, one for each file that is being worked on."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._bars: RichProgress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._job: TaskID | None = None
        self._files: dict[str, TaskID] = {}

    def begin(self, title: str, total_bytes: int) -> None:
        """As in :class:`Progress`."""
        super().begin(title, total_bytes)
        self._job = self._bars.add_task(title, total=total_bytes)
        self._bars.start()

    def add_total(self, count: int) -> None:
        """As in :class:`Progress`."""
        super().add_total(count)
        if self._job is not None:
            self._bars.update(self._job, total=self.total)

    def open_file(self, name: str, size: int, done: int = 0) -> None:
        """As in :class:`Progress`."""
        super().open_file(name, size, done)
        self._files[name] = self._bars.add_task(
            f"  {name[-40:]}", total=size, completed=done
        )
        if self._job is not None:
            self._bars.advance(self._job, done)

    def advance(self, name: str, count: int) -> None:
        """As in :class:`Progress`."""
        super().advance(name, count)
        for task in (self._job, self._files.get(name)):
            if task is not None:
                self._bars.advance(task, count)

    def close_file(self, name: str) -> None:
        """As in :class:`Progress`."""
        task = self._files.pop(name, None)
        if task is not None:
            self._bars.remove_task(task)

    def note(self, text: str) -> None:
        """As in :class:`Progress`."""
        self._bars.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """As in :class:`Progress`."""
        self._bars.stop()


class JsonProgress(Progress):
    """Framed JSON lines on stdout, which the head reads over ssh."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0
        self._out = threading.Lock()

    def emit(self, kind: str, **fields: object) -> None:
        """One line ``{"glmspark": kind, ...}``; the mark tells it from shell noise."""
        with self._out:
            sys.stdout.write(json.dumps({"glmspark": kind} | fields) + "\n")
            sys.stdout.flush()

    def begin(self, title: str, total_bytes: int) -> None:
        """As in :class:`Progress`."""
        super().begin(title, total_bytes)
        self.emit("begin", title=title, total=total_bytes)

    def _tell(self) -> None:
        now = time.monotonic()
        if now >= self._next or self.done >= self.total:
            self._next = now + _JSON_EVERY_S
            self.emit("bytes", done=self.done, skipped=self.skipped)

    def open_file(self, name: str, size: int, done: int = 0) -> None:
        """As in :class:`Progress`."""
        super().open_file(name, size, done)
        if done:
            self._tell()

    def advance(self, name: str, count: int) -> None:
        """As in :class:`Progress`."""
        super().advance(name, count)
        self._tell()

    def note(self, text: str) -> None:
        """As in :class:`Progress`."""
        self.emit("note", text=text)


def for_terminal(*, quiet: bool = False) -> Progress:
    """Bars if stderr is a terminal, lines if not, nothing if ``quiet``."""
    if quiet:
        return Progress()
    return TerminalProgress() if sys.stderr.isatty() else PlainProgress()
