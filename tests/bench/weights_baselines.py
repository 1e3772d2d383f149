"""What the weights benchmark compares with: rsync, a bare loop, openssl, the disk."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.cluster.weights.hosts import HEAD, NODE, RAILS, Hosts, inside

MIB = 1 << 20


def timed(argv: list[str]) -> float:
    """Seconds that ``argv`` took; it must succeed."""
    started = time.perf_counter()
    subprocess.run(argv, check=True, capture_output=True)
    return time.perf_counter() - started


def drop_cache(paths: list[Path]) -> None:
    """Evict the pages of ``paths``."""
    os.sync()
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def rsync(hosts: Hosts, source: Path, target: Path) -> float:
    """Seconds of ``rsync -a --inplace`` over ssh with aes128-gcm (one stream)."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    shell = shlex.join(hosts.ssh)
    argv = ["rsync", "-a", "--inplace", "-e", shell, f"{source}/"]
    return timed(inside(HEAD, [*argv, f"root@{RAILS[0][1]}:{target}/"]))


def bare_loop(source: Path, target: Path, connections: int) -> float:
    """Seconds of sendfile on one side, recv + sha256 + write on the other.

    No HTTP, no lock, no resume, no rename, no journal; as many connections as share.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    me = [sys.executable, __file__]
    server = subprocess.Popen(
        inside(HEAD, [*me, "serve", str(source), RAILS[0][0]]), stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    port = server.stdout.readline().decode().strip()
    argv = [*me, "receive", str(target), RAILS[0][0], port, str(connections)]
    try:
        return timed(inside(NODE, argv))
    finally:
        server.wait(10)


def _serve(source: Path, address: str) -> None:
    listener = socket.create_server((address, 0), backlog=64)
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    files = sorted(source.iterdir())
    lock = threading.Lock()

    def one(connection: socket.socket) -> None:
        with connection:
            while True:
                with lock:
                    path = files.pop() if files else None
                size = path.stat().st_size if path else 0
                connection.sendall(size.to_bytes(8, "big"))
                if path is None:
                    return
                with path.open("rb") as file:
                    connection.sendfile(file)

    listener.settimeout(10)
    threads = []
    while files:
        try:
            threads.append(threading.Thread(target=one, args=(listener.accept()[0],)))
        except TimeoutError:
            break
        threads[-1].start()
    for thread in threads:
        thread.join()


def _receive(target: Path, address: str, port: int, connections: int) -> None:
    def one(number: int) -> None:
        buffer = memoryview(bytearray(MIB))
        count = 0
        with socket.create_connection((address, port)) as sock:
            stream = sock.makefile("rb", buffering=0)
            while size := int.from_bytes(stream.read(8) or b"", "big"):
                digest = hashlib.sha256()
                count += 1
                with (target / f"{number}-{count}").open("wb", buffering=0) as file:
                    while size:
                        got = sock.recv_into(buffer, min(size, MIB))
                        digest.update(buffer[:got])
                        file.write(buffer[:got])
                        size -= got

    threads = [threading.Thread(target=one, args=(n,)) for n in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def disk_write(folder: Path, total: int) -> float:
    """Seconds to write ``total`` bytes and sync them, in 4 MiB pieces, one stream."""
    path = folder / "written"
    piece = os.urandom(4 * MIB)
    started = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(total // len(piece)):
            file.write(piece)
        os.fsync(file.fileno())
    seconds = time.perf_counter() - started
    path.unlink()
    return seconds


def disk_read(paths: list[Path]) -> float:
    """Seconds to read ``paths`` one after the other, not from the page cache."""
    drop_cache(paths)
    buffer = bytearray(4 * MIB)
    started = time.perf_counter()
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while os.readv(fd, [buffer]):
            pass
        os.close(fd)
    return time.perf_counter() - started


def openssl(path: Path) -> float:
    """Bytes a second of one ``openssl dgst -sha256`` over ``path``."""
    return path.stat().st_size / timed(["openssl", "dgst", "-sha256", str(path)])


def openssl_parallel(path: Path, streams: int) -> float:
    """Bytes a second of ``streams`` such processes at once: what the cores can do."""
    argv = ["openssl", "dgst", "-sha256", str(path)]
    started = time.perf_counter()
    running = [
        subprocess.Popen(argv, stdout=subprocess.DEVNULL) for _ in range(streams)
    ]
    for process in running:
        process.wait()
    return streams * path.stat().st_size / (time.perf_counter() - started)


if __name__ == "__main__":
    role, folder, host, *more = sys.argv[1:]
    if role == "serve":
        _serve(Path(folder), host)
    else:
        _receive(Path(folder), host, int(more[0]), int(more[1]))
