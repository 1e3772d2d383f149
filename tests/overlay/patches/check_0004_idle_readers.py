from types import SimpleNamespace
from unittest import mock

import pytest
import zmq
from vllm.distributed.device_communicators import shm_broadcast
from vllm.utils.network_utils import get_open_zmq_inproc_path


@pytest.fixture
def reader():
    context = zmq.Context()
    address = get_open_zmq_inproc_path()
    writer = context.socket(zmq.PUB)
    writer.bind(address)
    made = []

    def make():
        made.append(shm_broadcast.SpinCondition(True, context, address))
        return made[-1]

    yield make
    for one in made:
        for name in (
            "local_notify_socket",
            "write_cancel_socket",
            "read_cancel_socket",
        ):
            getattr(one, name).close(0)
    writer.close(0)
    context.term()


def parks_after(condition, idle_s):
    """Whether a reader parks (polls) that has been idle for ``idle_s``."""
    polled = []
    condition.poller = SimpleNamespace(
        poll=lambda timeout: polled.append(timeout) or []
    )
    now = condition.last_read + idle_s
    with mock.patch.object(shm_broadcast.time, "monotonic", lambda: now):
        condition.wait(timeout_ms=7)
    return bool(polled)


def test_sixteen_ms_park_after_twenty(monkeypatch, reader):
    monkeypatch.setenv("GLMSPARK_SPIN_MS", "16")
    assert parks_after(reader(), 0.020)
    assert not parks_after(reader(), 0.010)


def test_parked_readers_look_again_every_50_ms(monkeypatch):
    monkeypatch.setenv("GLMSPARK_SPIN_MS", "16")
    assert shm_broadcast._idle_reader_limits() == (0.016, 50)


def test_wrong_value_is_an_error(monkeypatch, reader):
    monkeypatch.setenv("GLMSPARK_SPIN_MS", "fast")
    with pytest.raises(ValueError, match="fast"):
        reader()


def test_both_without_the_knob_it_is_a_second(monkeypatch, reader):
    monkeypatch.delenv("GLMSPARK_SPIN_MS", raising=False)
    assert not parks_after(reader(), 0.9)
    assert parks_after(reader(), 1.1)
