"""Hosts that tests make: network namespaces, cables, and a real sshd in each."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
# Namespaces of this project's tests; each run has names of its own.
PREFIX = "ghA"


def need_sshd() -> None:
    """Skip, saying why, where no sshd of our own can be run."""
    if os.getuid() != 0:
        pytest.skip("needs root: an sshd of its own for tests")
    missing = [one for one in (SSHD, "ssh", "ssh-keygen") if not shutil.which(one)]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (apt install openssh-server)")


def need_namespaces() -> None:
    """Skip, saying why, where no network namespaces can be made."""
    need_sshd()
    if not shutil.which("ip"):
        pytest.skip("needs ip (apt install iproute2)")
    made = ip("netns", "add", f"{PREFIX}probe", check=False)
    ip("netns", "del", f"{PREFIX}probe", check=False)
    if made:
        pytest.skip("needs network namespaces, and this kernel or container has none")


def ip(*words: str, netns: str = "", check: bool = True) -> int:
    """Run ip, in ``netns`` if given; its exit status."""
    argv = ["ip", *(["-n", netns] if netns else []), *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, f"{argv}: {done.stderr}"
    return done.returncode


def make_key(path: Path) -> Path:
    """A key pair at ``path``."""
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(argv, check=True)
    return path


@dataclass
class Sshd:
    """An sshd of a test: its folder, port, and optionally its namespace.

    ``prepare`` is shell that runs before it in its own mount namespace.
    """

    folder: Path
    client_key: Path
    port: int = 22
    address: str = "127.0.0.1"
    netns: str = ""
    options: Sequence[str] = ()
    prepare: str = ""
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> Sshd:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "log").write_text("")
        host_key = self.folder / "host_key"
        if not host_key.exists():
            make_key(host_key)
        keys = self.folder / "authorized_keys"
        keys.write_text(self.client_key.with_suffix(".pub").read_text())
        Path("/run/sshd").mkdir(exist_ok=True)
        lines = [
            f"Port {self.port}",
            f"ListenAddress {self.address}",
            f"HostKey {host_key}",
            f"AuthorizedKeysFile {keys}",
            f"PidFile {self.folder / 'pid'}",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "PermitRootLogin yes",
            "PrintMotd no",
            *self.options,
        ]
        config = self.folder / "sshd_config"
        config.write_text("\n".join(lines) + "\n")
        # Processes of its own, too: a host must not see another one's.
        # Slave mounts: a private copy would keep a deleted namespace alive.
        apart = ["unshare", "--pid", "--fork", "--mount-proc", "--propagation", "slave"]
        inside = ["ip", "netns", "exec", self.netns, *apart] if self.netns else []
        if self.prepare:
            inside += ["sh", "-ec", f'{self.prepare}\nexec "$@"', "sh"]
        log = (self.folder / "log").open("ab")
        self.process = subprocess.Popen(
            [*inside, SSHD, "-D", "-e", "-f", str(config)],
            stderr=log,
            start_new_session=True,
        )
        log.close()
        self._await()
        return self

    def _await(self) -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            text = (self.folder / "log").read_text()
            if "Server listening" in text:
                return
            time.sleep(0.02)
        raise AssertionError(text)

    def restart(self) -> None:
        """Read ``options`` anew, in the namespaces that it has."""
        assert self.process is not None
        config = self.folder / "sshd_config"
        kept = [line for line in config.read_text().splitlines() if line]
        config.write_text("\n".join([*kept, *self.options]) + "\n")
        (self.folder / "log").write_text("")
        os.kill(self._listener(), signal.SIGHUP)
        self._await()

    def _listener(self) -> int:
        """The pid outside of the sshd that runs in namespaces of its own."""
        parent = str(self.process.pid) if self.process else ""
        for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            return int(pid)
        return int(parent)

    def stop(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@dataclass
class Client:
    """A user's side: key, OpenSSH configuration with an alias for each host."""

    folder: Path
    key: Path = field(init=False)
    config: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.key = make_key(self.folder / "id_ed25519")
        self.config = self.folder / "ssh_config"
        self.config.write_text("")

    def alias(self, name: str, address: str, port: int, user: str = "root") -> None:
        with self.config.open("a") as file:
            file.write(
                f"Host {name}\n  HostName {address}\n  Port {port}\n  User {user}\n"
                f"  IdentityFile {self.key}\n  IdentitiesOnly yes\n"
            )


@dataclass
class Account:
    """A user account with a home and a login shell of its own."""

    name: str
    shell: str
    home: Path

    def create(self) -> Account:
        argv = ["useradd", "-M", "-d", str(self.home), "-s", self.shell, self.name]
        subprocess.run(argv, check=True, capture_output=True)
        # "*" is no locked account for sshd, and no password either.
        subprocess.run(["usermod", "-p", "*", self.name], check=True)
        entry = pwd.getpwnam(self.name)
        self.home.mkdir(exist_ok=True)
        os.chown(self.home, entry.pw_uid, entry.pw_gid)
        return self

    def delete(self) -> None:
        subprocess.run(["userdel", "-f", self.name], check=False, capture_output=True)


def silent_listener() -> socket.socket:
    """A port that accepts and never says a word."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(8)
    return server


@dataclass
class Host:
    """A namespace with its addresses by device, reached by ssh at ``address``."""

    name: str
    netns: str
    address: str
    sshd: Sshd | None = None

    def run(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["ip", "netns", "exec", self.netns, *argv],
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, f"{argv}: {done.stderr}"
        return done

    def pids(self) -> list[int]:
        """Every process in the namespace, by its pid outside."""
        argv = ["ip", "netns", "pids", self.netns]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return [int(pid) for pid in done.stdout.split()]

    def kill_sshd(self) -> None:
        """Kill every sshd in the namespace, open connections included."""
        for pid in self.pids():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().startswith("sshd"):
                    os.kill(pid, signal.SIGKILL)

    def boot(self) -> None:
        """Start the host's sshd again, after all its processes have gone."""
        assert self.sshd is not None
        self.sshd.stop()
        self.sshd.start()

    def kill_all(self) -> None:
        """Kill every process in the namespace."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        self.kill_all()
        if self.sshd is not None:
            self.sshd.stop()
        ip("netns", "del", self.netns, check=False)


@dataclass
class Lab:
    """Some hosts, a management network that reaches them all, and their cables.

    The management network is a /24 of its own in 10.66.0.0/16, so that labs of two
    test runs do not meet, with the tests' own end at .254.
    """

    folder: Path
    client: Client
    hosts: dict[str, Host] = field(default_factory=dict)
    tag: str = field(default_factory=lambda: secrets.token_hex(2))
    prepare: Callable[[str], str] = lambda _name: ""
    options: Sequence[str] = ()
    switches: list[str] = field(default_factory=list)

    @property
    def subnet(self) -> str:
        """The first three numbers of the management network; cables use those below."""
        return f"10.66.{100 + int(self.tag, 16) % 150}"

    @property
    def bridge(self) -> str:
        return f"{PREFIX}b{self.tag}"

    def open(self, names: Sequence[str]) -> Lab:
        ip("link", "add", self.bridge, "type", "bridge")
        ip("address", "add", f"{self.subnet}.254/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")
        for number, name in enumerate(names, start=1):
            self._add(number, name)
        return self

    def _add(self, number: int, name: str) -> None:
        netns = f"{PREFIX}{self.tag}{number}"
        host = Host(name, netns, f"{self.subnet}.{number}")
        self.hosts[name] = host
        ip("netns", "add", netns)
        ip("link", "set", "lo", "up", netns=netns)
        near = f"{PREFIX}m{self.tag}{number}"
        words = ("type", "veth", "peer", "name", "mgmt0", "netns", netns)
        ip("link", "add", near, *words)
        ip("link", "set", near, "master", self.bridge, "up")
        ip("address", "add", f"{host.address}/24", "dev", "mgmt0", netns=netns)
        ip("link", "set", "mgmt0", "up", netns=netns)
        ip("route", "add", "default", "via", f"{self.subnet}.254", netns=netns)
        sshd = Sshd(self.folder / name, self.client.key, 22, "0.0.0.0", netns)
        sshd.prepare, sshd.options = self.prepare(name), self.options
        host.sshd = sshd.start()
        self.client.alias(name, host.address, 22)

    def cable(  # noqa: PLR0917 - both ends of a cable
        self, a: str, dev_a: str, address_a: str, b: str, dev_b: str, address_b: str
    ) -> None:
        """Join two hosts by a veth pair; an empty address leaves that end bare."""
        ends = ((a, dev_a, address_a), (b, dev_b, address_b))
        inside = self.hosts[b].netns
        words = ("type", "veth", "peer", "name", dev_b, "netns", inside)
        ip("link", "add", dev_a, *words, netns=self.hosts[a].netns)
        for name, device, address in ends:
            netns = self.hosts[name].netns
            if address:
                ip("address", "add", address, "dev", device, netns=netns)
            ip("link", "set", device, "up", netns=netns)

    def switch(self, device: str, subnet: str) -> None:
        """A port on every host, all on one switch, with an address in ``subnet``."""
        bridge = f"{PREFIX}s{self.tag}"
        ip("link", "add", bridge, "type", "bridge")
        ip("link", "set", bridge, "up")
        self.switches.append(bridge)
        for number, host in enumerate(self.hosts.values(), start=1):
            near = f"{PREFIX}p{self.tag}{number}"
            words = ("type", "veth", "peer", "name", device, "netns", host.netns)
            ip("link", "add", near, *words)
            ip("link", "set", near, "master", bridge, "up")
            address = f"{subnet}.{number}/24"
            ip("address", "add", address, "dev", device, netns=host.netns)
            ip("link", "set", device, "up", netns=host.netns)

    def close(self) -> None:
        for bridge in self.switches:
            ip("link", "del", bridge, check=False)
        for number, host in enumerate(self.hosts.values(), start=1):
            host.end()
            ip("link", "del", f"{PREFIX}m{self.tag}{number}", check=False)
        ip("link", "del", self.bridge, check=False)
