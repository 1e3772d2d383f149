"""Facts of a host: memory, GPU, containers, paths; what cannot be read is said."""

from __future__ import annotations

import errno
import http.server
import os
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from glmspark import hostfacts, reach
from glmspark.facts import Roots
from glmspark.hostfacts import (
    Gpu,
    GpuUser,
    HostFacts,
    parse_gpus,
    parse_users,
    read_containers,
    read_host,
    read_processes,
    read_sizes,
)

SMI = """#!/bin/sh
case "$1" in
--query-gpu=*) echo "NVIDIA GB10, 580.95.05, 804, 3003, 19.20, [N/A], 96";;
--query-compute-apps=*) echo "4711, /usr/bin/python3"; echo "4712, VLLM::Worker";;
esac
"""


def program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    """A /proc of a host with swap, huge pages and two processes."""
    proc = tmp_path / "proc"
    processes = ((11, "earlyoom", 100), (12, "python3", 9000))
    for pid, name, pages in processes:
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "comm").write_text(f"{name}\n")
        (proc / str(pid) / "statm").write_text(f"99999 {pages} 5 1 0 1 0\n")
    (proc / "13").mkdir()  # a process that is just ending
    (proc / "meminfo").write_text(
        "MemTotal: 127000000 kB\nSwapTotal: 16777212 kB\n"
        "HugePages_Total: 512\nHugepagesize: 2048 kB\n"
    )
    (proc / "cmdline").write_text("ro kho=off\n")
    (proc / "sys/net/ipv4").mkdir(parents=True)
    (proc / "sys/net/ipv4/ip_forward").write_text("1\n")
    (proc / "driver/nvidia").mkdir(parents=True)
    (proc / "driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release\n"
    )
    return Roots(proc, tmp_path / "sys")


def read(roots: Roots, path: Path) -> HostFacts:
    environ = {"PATH": str(path), "HOME": "/nowhere"}
    return read_host(roots, path / "store", environ)


@pytest.mark.cases(85, 87)
def test_a_host_with_a_gpu_and_a_guard(roots: Roots, tmp_path: Path) -> None:
    program(tmp_path / "bin", "nvidia-smi", SMI)
    views = tmp_path / "bin/store/views/model@1"
    views.mkdir(parents=True)
    facts = read(roots, tmp_path / "bin")
    assert read_sizes(roots) == (16777212 * 1024, 1 << 30)
    assert facts.killers == ("earlyoom",)
    assert [one.name for one in facts.consumers] == ["python3", "earlyoom"]
    assert facts.gpus == (Gpu("NVIDIA GB10", "580.95.05", 804, 3003, 19.2, 0.0, 96),)
    assert [one.pid for one in facts.gpu_users] == [4711, 4712]
    assert (facts.driver, facts.ip_forward) == ("580.95.05", True)
    assert facts.store == ("views/model@1",)
    assert "kho=off" in facts.kernel_line
    assert HostFacts.from_json(facts.to_json()) == facts
    assert not [what for what in facts.unread if not what.startswith("containers")]


def test_a_driver_that_does_not_answer_is_unread_not_no_gpu(
    roots: Roots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = "#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n"
    program(tmp_path / "bin", "nvidia-smi", broken)
    facts = read(roots, tmp_path / "bin")
    assert facts.gpus == ()
    assert "GPU: nvidia-smi: NVIDIA-SMI has failed" in facts.unread
    monkeypatch.setattr(hostfacts, "SMI_S", 0.2)
    program(tmp_path / "bin", "nvidia-smi", "#!/bin/sh\nexec sleep 5\n")
    facts = read(roots, tmp_path / "bin")
    assert any("timed out" in what for what in facts.unread)


def test_a_bare_host_has_nothing_and_everything_was_read(
    roots: Roots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostfacts, "PLACES", ())
    facts = read(roots, tmp_path / "empty")
    assert (facts.gpus, dict(facts.tools), facts.store) == ((), {}, ())


def test_smi_output_that_is_odd() -> None:
    assert parse_gpus("garbage\n\n") == ()
    assert parse_users("No running processes found\n77, a, b\n") == (
        GpuUser(77, "a, b"),
    )


def test_processes_that_end_meanwhile_are_left_out(roots: Roots) -> None:
    assert [one.pid for one in read_processes(roots)] == [12, 11]


class Engine(http.server.BaseHTTPRequestHandler):
    """A container engine with one answer."""

    body = b'[{"Names": ["/glmspark-spark-0"]}]'

    def do_GET(self) -> None:
        assert "glmspark.kit" in self.path
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass

    def address_string(self) -> str:
        return ""


@contextmanager
def engine(path: Path, body: bytes) -> Iterator[None]:
    handler = type("Answer", (Engine,), {"body": body})
    server = socketserver.UnixStreamServer(str(path), handler)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        server.server_close()


@pytest.mark.cases(127)
def test_containers_are_read_and_a_refusal_is_no_empty_list(tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    with engine(path, Engine.body):
        assert read_containers(str(path)) == ("glmspark-spark-0",)
    path.unlink()
    with (
        engine(path, b'{"message": "no"}'),
        pytest.raises(OSError, match="docker"),
    ):
        read_containers(str(path))
    with pytest.raises(OSError, match="refused"):
        read_containers(str(path))


@pytest.mark.cases(19)
def test_a_full_size_ping_of_this_host_comes_back() -> None:
    try:
        assert reach.ping("127.0.0.1", "127.0.0.1", 1472)
    except PermissionError:
        pytest.skip("needs root, or net.ipv4.ping_group_range with this user's group")
    path = reach.look_at("127.0.0.1", (), {1: "lo"})
    assert (path.netdev, path.answers, path.full_size) == ("lo", True, True)


def test_a_ping_that_is_too_big_or_not_allowed_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> bool:
        raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))

    monkeypatch.setattr(reach, "ping", fail)
    path = reach.look_at("127.0.0.1", (), {})
    assert (path.answers, path.why) == (False, "Message too long")


def test_ways_of_tcp(free_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert reach.tcp_way("127.0.0.1", "127.0.0.1", port) == "open"
    assert reach.tcp_way("127.0.0.1", "127.0.0.1", free_port) == "refused"
    # Documentation's own network leads nowhere, or there is no route to it.
    assert reach.tcp_way("203.0.113.1", "127.0.0.1", 9, 0.2) not in {"open", "refused"}


def test_the_checksum_is_the_internets() -> None:
    # The example of RFC 1071, section 3.
    assert reach.checksum(bytes.fromhex("0001f203f4f5f6f7")) == 0xFFFF - 0xDDF2
