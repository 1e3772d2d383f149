"""Two hosts on this machine: network namespaces, two cables, a real sshd."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

HEAD, NODE = "gwA", "gwB"
# Two rails, as a dual-rail ConnectX link: a subnet for each.
RAILS = (("10.88.1.1", "10.88.1.2"), ("10.88.2.1", "10.88.2.2"))


def why_not() -> str:
    """Why this machine cannot have the two hosts; empty if it can."""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    for program in ("ip", "ssh", "ssh-keygen"):
        if not shutil.which(program):
            return f"needs {program} (packages iproute2, openssh-client)"
    if not shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin"):
        return "needs sshd (package openssh-server)"
    probe = subprocess.run(
        ["ip", "netns", "add", "gwProbe"], capture_output=True, check=False
    )
    if probe.returncode:
        return f"cannot make network namespaces: {probe.stderr.decode().strip()}"
    _ip("netns", "del", "gwProbe")
    return ""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _clean() -> None:
    for name in (HEAD, NODE):
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def inside(namespace: str, argv: list[str]) -> list[str]:
    """``argv`` run in ``namespace``."""
    return ["ip", "netns", "exec", namespace, *argv]


@dataclass
class Hosts:
    """The two hosts; ``ssh`` is the command by which the head reaches the node."""

    folder: Path
    ssh: tuple[str, ...]

    @property
    def config(self) -> Path:
        return self.folder / "ssh_config"


def _keys(folder: Path) -> None:
    for name in ("host_key", "user_key", "stranger_key"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name]
        subprocess.run(argv, check=True)
    (folder / "authorized_keys").write_text((folder / "user_key.pub").read_text())
    host = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text("".join(f"{node} {host}" for _, node in RAILS))


def _write_configs(folder: Path) -> None:
    (folder / "sshd_config").write_text(
        f"ListenAddress 0.0.0.0\nPort 22\nHostKey {folder}/host_key\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nPidFile {folder}/sshd.pid\n"
        "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
        "PermitUserEnvironment no\n"
    )
    (folder / "ssh_config").write_text(
        f"Host *\n  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n"
        "  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n"
        "  BatchMode yes\n  ConnectTimeout 5\n  Ciphers aes128-gcm@openssh.com\n"
    )


def _namespaces() -> None:
    for name in (HEAD, NODE):
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")
    for number, (head, node) in enumerate(RAILS):
        _ip(
            *f"-n {HEAD} link add rail{number} type veth".split(),
            *f"peer name rail{number} netns {NODE}".split(),
        )
        for name, address in ((HEAD, head), (NODE, node)):
            _ip(*f"-n {name} addr add {address}/24 dev rail{number}".split())
            # Jumbo frames, as the fabric has them.
            _ip(*f"-n {name} link set rail{number} mtu 9000 up".split())


@contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
    """Head and node with an sshd; everything is gone afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    _keys(folder)
    _write_configs(folder)
    _clean()
    Path("/run/sshd").mkdir(exist_ok=True)
    _namespaces()
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin") or ""
    argv = [sshd, "-D", "-e", "-f", str(folder / "sshd_config")]
    with (folder / "sshd.log").open("w") as log:
        server = subprocess.Popen(inside(NODE, argv), stderr=log)
    try:
        ssh = ("ssh", "-F", str(folder / "ssh_config"))
        _wait_for_ssh(ssh)
        yield Hosts(folder, ssh)
    finally:
        server.terminate()
        server.wait(10)
        _clean()


@contextmanager
def slow_cables(megabits: int) -> Iterator[None]:
    """Both rails at ``megabits`` a second, so that a transfer can be watched."""
    for number in range(len(RAILS)):
        rule = f"qdisc replace dev rail{number} root tbf rate {megabits}mbit"
        words = f"tc -n {HEAD} {rule} burst 128kb latency 50ms".split()
        done = subprocess.run(words, capture_output=True, check=False, text=True)
        if done.returncode:
            pytest.skip(f"needs tc and its tbf to slow a cable: {done.stderr.strip()}")
    try:
        yield
    finally:
        for number in range(len(RAILS)):
            words = f"tc -n {HEAD} qdisc del dev rail{number} root".split()
            subprocess.run(words, check=True)


def _wait_for_ssh(ssh: tuple[str, ...]) -> None:
    deadline = time.monotonic() + 10
    argv = inside(HEAD, [*ssh, RAILS[0][1], "true"])
    while True:
        done = subprocess.run(argv, capture_output=True, check=False, text=True)
        if done.returncode == 0:
            return
        assert time.monotonic() < deadline, done.stderr
        time.sleep(0.1)
