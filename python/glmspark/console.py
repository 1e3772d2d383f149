"""Words for people on stderr: plain lines, or rich ones on a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol


class Narrator(Protocol):
    """Tells what is going on; the tests' one remembers it."""

    def say(self, text: str) -> None:
        """A line that stays."""
        ...

    def note(self, text: str) -> None:
        """A line that matters less."""
        ...

    def busy(self, text: str) -> None:
        """What is being waited for; replaces the last one on a terminal."""
        ...


def wants_rich() -> bool:
    """Whether stderr is a terminal that may get colours and moving lines."""
    return (
        sys.stderr is not None
        and sys.stderr.isatty()
        and "NO_COLOR" not in os.environ
        and os.environ.get("TERM", "") not in {"", "dumb"}
    )


class PlainNarrator:
    """Lines without colour, each with the seconds since the beginning."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._last = ""

    def _write(self, text: str) -> None:
        passed_s = time.monotonic() - self._began_s
        # Nobody may be reading, or stderr be closed: words are no reason to fail.
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"{passed_s:6.1f} s  {text}\n")
            sys.stderr.flush()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._write(text)

    def note(self, text: str) -> None:
        """A line that matters less."""
        self._write(text)

    def busy(self, text: str) -> None:
        """What is being waited for, said once."""
        if text and text != self._last:
            self._write(text)
        self._last = text


class RichNarrator:
    """Coloured lines and a spinner with the seconds of the present wait."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)
        self._status = self._console.status("")
        self._text = ""
        self._since_s = time.monotonic()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(f"[green]✓[/] {_escape(text)}")

    def note(self, text: str) -> None:
        """A line that matters less."""
        self._console.print(f"[yellow]•[/] {_escape(text)}")

    def busy(self, text: str) -> None:
        """What is being waited for, as a spinner; empty ends it."""
        if text != self._text:
            self._text, self._since_s = text, time.monotonic()
        if not text:
            self._status.stop()
            return
        passed_s = time.monotonic() - self._since_s
        self._status.update(f"{_escape(text)} [dim]{passed_s:.0f} s[/]")
        self._status.start()


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


@contextmanager
def narrator() -> Iterator[Narrator]:
    """The narrator that suits stderr; its spinner ends with the block."""
    teller: Any = RichNarrator() if wants_rich() else PlainNarrator()
    try:
        yield teller
    finally:
        if isinstance(teller, RichNarrator):
            teller.busy("")


def table(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Rows on stdout: a rich table on a terminal, aligned columns elsewhere."""
    if sys.stdout.isatty() and wants_rich():
        from rich.console import Console
        from rich.table import Table

        shown = Table(*headers, box=None, pad_edge=False, header_style="bold")
        for row in rows:
            shown.add_row(*(_escape(cell) for cell in row))
        Console().print(shown)
        return
    widths = [max(len(row[i]) for row in rows) for i in range(len(headers))]
    for row in rows:
        cells = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
