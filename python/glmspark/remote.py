"""Other hosts over OpenSSH: one connection a node, no question ever asked, bounded."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from glmspark.errors import ConfigError
from glmspark.remoteerrors import RemoteError, explain
from glmspark.shipped import NO_PYTHON, REMOTE_COMMAND, Call, parse_answer

T = TypeVar("T")
R = TypeVar("R")

CONNECT_S = 10.0
# An idle connection stays this long for the next command of the tool.
PERSIST_S = 60
OPTIONS: Mapping[str, str] = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "GlobalKnownHostsFile": "/dev/null",
    "UpdateHostKeys": "no",
    "CheckHostIP": "no",
    "HashKnownHosts": "no",
    "VerifyHostKeyDNS": "no",
    "ConnectTimeout": f"{CONNECT_S:.0f}",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
    "RequestTTY": "no",
    "RemoteCommand": "none",
    "LogLevel": "ERROR",
}


def control_folder(environ: Mapping[str, str]) -> Path:
    """The folder of the connections' sockets, of this user alone, made if needed.

    Raises:
        ConfigError: somebody else owns it, or others may write to it.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    base = Path(runtime) if runtime and Path(runtime).is_dir() else Path("/tmp")  # noqa: S108 - owner and mode are checked; a socket's path must be short
    folder = base / f"glmspark-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    seen = folder.lstat()
    if seen.st_uid != os.getuid() or seen.st_mode & 0o077 or folder.is_symlink():
        raise ConfigError(
            f"folder {folder} is not this user's alone, connections would be unsafe",
            hint=f"ls -ld {folder}; remove it, or set XDG_RUNTIME_DIR",
        )
    return folder


@dataclass(frozen=True)
class Remote:
    """A host that is reached by ssh.

    ``known_hosts`` is the kit's own file of host keys, ``config`` an OpenSSH client
    configuration (None: the user's), ``name`` the node's in messages.
    """

    name: str
    target: str
    known_hosts: Path
    config: Path | None = None

    def options(self, **more: str) -> list[str]:
        """The options of every ssh command to this host."""
        values = {**OPTIONS, "UserKnownHostsFile": f'"{self.known_hosts}"', **more}
        file = ["-F", str(self.config)] if self.config else []
        return [*file, *(f"-o{name}={value}" for name, value in values.items())]

    @property
    def socket(self) -> Path:
        """The socket of this host's connection."""
        text = "\0".join((self.target, str(self.known_hosts), str(self.config)))
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        return control_folder(os.environ) / name

    def connect(self) -> None:
        """Open the connection that the calls share, unless it is open.

        Raises:
            RemoteError: with the reason: unknown, changed, denied, no answer.
        """
        control = ["-S", str(self.socket)]
        if _listens(self.socket):
            return
        master = ["-f", "-N", "-M", *control, f"-oControlPersist={PERSIST_S}"]
        # Authentication has no time-out of its own in the client.
        done = run_ssh(
            ["ssh", *self.options(), *master, "--", self.target], 2 * CONNECT_S
        )
        if done.code != 0:
            raise explain(self.name, self.target, done, self.resolved())

    def call(
        self, function: str, arguments: Mapping[str, Any], timeout_s: float = 30.0
    ) -> Any:
        """What ``function`` ("module:name" of this tool) gives on that host.

        Raises:
            RemoteError: it could not be reached or asked, or the function failed there.
        """
        self.connect()
        call = Call.of(function, arguments)
        argv = ["ssh", "-T", *self.options(), "-S", str(self.socket)]
        argv += ["--", self.target]
        stdin = call.stdin([sys.executable])
        done = run_ssh([*argv, REMOTE_COMMAND], timeout_s, stdin)
        if done.timed_out:
            raise RemoteError(
                f"{self.target} gave no answer in {timeout_s:.0f} s",
                kind="silent",
                node=self.name,
                hint=f"ssh {self.target} uptime",
            )
        try:
            return parse_answer(done.out, call.marker)
        except ValueError as error:
            raise self._no_answer(str(error), done) from error
        except RuntimeError as error:
            raise RemoteError(
                f"{function} failed on {self.target}: {error}",
                kind="failed",
                node=self.name,
                hint=f"ssh {self.target} and see to it there",
            ) from error

    def _no_answer(self, what: str, done: SshDone) -> RemoteError:
        if done.code == NO_PYTHON:
            said = (done.err.strip() or "no Python").splitlines()[-1]
            return RemoteError(
                f"{self.target} has {said}",
                kind="no python",
                node=self.name,
                hint="install Python 3.11 or newer there (apt install python3)",
            )
        if done.code == 255:
            return explain(self.name, self.target, done, self.resolved())
        said = (done.err.strip() or done.out.strip() or "nothing").splitlines()[-1]
        return RemoteError(
            f"{what} from {self.target} (exit status {done.code}), "
            f"which said: {said[:200]}",
            kind="no answer",
            node=self.name,
            hint=f"see that `ssh {self.target} true` runs and prints nothing odd",
        )

    def close(self) -> None:
        """End the connection, if it is open."""
        argv = ["ssh", *self.options(), "-S", str(self.socket), "-O", "exit"]
        run_ssh([*argv, "--", self.target], CONNECT_S)

    def resolved(self) -> dict[str, list[str]]:
        """The client's configuration for this host, by lower-case name."""
        done = run_ssh(["ssh", *self.options(), "-G", "--", self.target], CONNECT_S)
        found: dict[str, list[str]] = {}
        for line in done.out.splitlines():
            name, _, value = line.partition(" ")
            found.setdefault(name, []).append(value)
        return found


def _listens(path: Path) -> bool:
    """Whether a connection's master still listens on its socket."""
    with socket.socket(socket.AF_UNIX) as wire:
        try:
            wire.connect(str(path))
        except OSError:
            return False
        return True


@dataclass(frozen=True)
class SshDone:
    """How an ssh command ended."""

    code: int
    out: str
    err: str
    timed_out: bool = False


def run_ssh(argv: Sequence[str], timeout_s: float, stdin: str = "") -> SshDone:
    """Run an ssh command; its output goes through files.

    A connection in the background keeps its standard error open, so that waiting for
    the end of a pipe would be waiting for the end of the connection.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            done = subprocess.run(
                argv,
                input=stdin.encode(),
                stdout=out,
                stderr=err,
                env={**os.environ, "LC_ALL": "C"},
                timeout=timeout_s,
                check=False,
            )
            code = done.returncode
        except FileNotFoundError as error:
            raise ConfigError(
                "there is no ssh program on this machine",
                hint="install the OpenSSH client (apt install openssh-client)",
            ) from error
        except subprocess.TimeoutExpired:
            code = -1
        out.seek(0)
        err.seek(0)
        texts = [one.read().decode(errors="replace") for one in (out, err)]
        return SshDone(code, texts[0], texts[1], timed_out=code == -1)


def in_parallel(work: Callable[[T], R], items: Iterable[T]) -> list[R | RemoteError]:
    """``work`` of each item at once, in order; a RemoteError stands for itself."""
    items = list(items)

    def attempt(item: T) -> R | RemoteError:
        try:
            return work(item)
        except RemoteError as error:
            return error

    with ThreadPoolExecutor(max(1, len(items))) as pool:
        return list(pool.map(attempt, items))
