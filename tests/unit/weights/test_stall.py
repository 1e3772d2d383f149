"""Stalls: a byte now and then keeps every single read in time, for ever."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from glmspark.errors import PreflightError
from glmspark.weights import puller, stall
from glmspark.weights.puller import PullJob, Rail
from glmspark.weights.stall import SocketWatch, Trickle
from glmspark.weights.store import Store

from tests.unit.weights.conftest import blob, manifest_of

DATA = blob(3, 3 << 20)


@contextmanager
def serving(pause_s: float) -> Iterator[int]:
    """A head that sends DATA: at once, or a byte every ``pause_s`` seconds."""
    over = threading.Event()

    def talk(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            sock.recv(4096)
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(DATA))
            if not pause_s:
                sock.sendall(DATA)
            for byte in DATA if pause_s else b"":
                sock.sendall(bytes([byte]))
                if over.wait(pause_s):
                    return

    def accept() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                threading.Thread(target=talk, args=(listener.accept()[0],)).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            thread.join()


def job(*ports: int) -> PullJob:
    rails = tuple(Rail("127.0.0.1", port) for port in ports)
    return PullJob("token", rails, (manifest_of({"big": DATA}),), 1, link=False)


@pytest.mark.cases(57)
def test_a_link_that_trickles_is_given_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puller, "_STALL_S", 0.4)
    started = time.monotonic()
    with serving(0.05) as port, pytest.raises(PreflightError, match="ended or stalled"):
        puller.pull(store, job(port))
    assert time.monotonic() - started < 20  # for ever without the watch
    assert store.blobs() == []


def test_its_files_go_over_the_other_link(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puller, "_STALL_S", 0.4)
    with serving(0.05) as slow, serving(0) as fast:
        result = puller.pull(store, job(slow, fast))
    assert result.received == 1


def test_the_watch_leaves_a_socket_that_nobody_waits_on() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, SocketWatch(0.1) as watch:
        with watch.waiting(ours):
            pass
        time.sleep(0.4)
        theirs.send(b"x")
        assert ours.recv(1) == b"x"
        with watch.waiting(ours):
            assert ours.recv(1) == b""  # cut: nothing came


def test_a_span_with_too_few_bytes_is_a_trickle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(stall.time, "monotonic", lambda: now[0])
    trickle = Trickle(10)
    now[0] = 9.0
    trickle.feel(1)
    now[0] = 10.0
    trickle.feel(stall.min_bytes(10))  # enough, all at the end of the span
    now[0] = 20.0
    with pytest.raises(TimeoutError, match="7 bytes in 10 seconds"):
        trickle.feel(7)
