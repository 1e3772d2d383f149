"""Stalls: a transfer that trickles has every single read in time, and never ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

# A transfer that brings less than this is as good as stalled: at 1 KiB/s the weights
# would take five years.
_MIN_BYTES_PER_S = 1024


def min_bytes(stall_s: float) -> int:
    """What has to arrive in ``stall_s`` seconds for a transfer to count as alive."""
    return int(stall_s * _MIN_BYTES_PER_S)


class Trickle:
    """Ends a transfer that brings too little in a whole span of ``stall_s`` seconds."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._since = time.monotonic()
        self._count = 0

    def feel(self, count: int) -> None:
        """``count`` more bytes came; TimeoutError if a whole span brought too few."""
        self._count += count
        seconds = time.monotonic() - self._since
        if seconds < self._stall_s:
            return
        if self._count < min_bytes(seconds):
            raise TimeoutError(f"{self._count} bytes in {seconds:.0f} seconds")
        self._since, self._count = time.monotonic(), 0


class SocketWatch:
    """Cuts sockets that keep a read of a whole buffer waiting for ``stall_s`` seconds.

    A context: a thread watches while it lasts. The read then ends as at a lost
    connection.
    """

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._waiting: dict[socket.socket, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    @contextmanager
    def waiting(self, sock: socket.socket) -> Iterator[None]:
        """A read on ``sock`` goes on inside; one at a time for each socket."""
        self._waiting[sock] = time.monotonic()
        try:
            yield
        finally:
            self._waiting.pop(sock, None)

    def _watch(self) -> None:
        while not self._over.wait(self._stall_s / 10):
            oldest = time.monotonic() - self._stall_s
            for sock, since in list(self._waiting.items()):
                if since < oldest:
                    with suppress(OSError):
                        sock.shutdown(socket.SHUT_RDWR)
