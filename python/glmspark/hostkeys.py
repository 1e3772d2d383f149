"""The kit's own list of host keys: first contact is a step that shows what it keeps."""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from glmspark.errors import IntegrityError
from glmspark.remote import CONNECT_S, Remote, run_ssh
from glmspark.remoteerrors import explain


@dataclass(frozen=True)
class HostKey:
    """A host's public key as known_hosts has it: names, type, base64 of the key."""

    names: str
    kind: str
    data: str

    @property
    def fingerprint(self) -> str:
        """The fingerprint as `ssh-keygen -l` prints it."""
        digest = hashlib.sha256(base64.b64decode(self.data)).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")

    @property
    def line(self) -> str:
        """The line of known_hosts."""
        return f"{self.names} {self.kind} {self.data}"


def parse_known(text: str) -> list[HostKey]:
    """The keys in a known_hosts file; comments and markers are passed over."""
    keys = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 3 and not fields[0].startswith(("#", "@")):
            keys.append(HostKey(fields[0], fields[1], fields[2]))
    return keys


def read_known(path: Path) -> list[HostKey]:
    """The keys in ``path``; none while it does not exist."""
    return parse_known(path.read_text()) if path.exists() else []


def known_name(resolved: Mapping[str, Sequence[str]], target: str) -> str:
    """The name that known_hosts has for a host, by its resolved configuration."""
    if alias := resolved.get("hostkeyalias"):
        return alias[0]
    host = (resolved.get("hostname") or [target])[0]
    port = (resolved.get("port") or ["22"])[0]
    return host if port == "22" else f"[{host}]:{port}"


def ask_key(remote: Remote) -> HostKey:
    """The key that the host shows now; nothing is kept and nobody is logged in.

    The client itself is asked, so that aliases, ports and jump hosts of its
    configuration count: it notes the key in a file of this call, then gives up.

    Raises:
        RemoteError: the host does not answer.
    """
    with tempfile.TemporaryDirectory() as folder:
        noted = Path(folder) / "known_hosts"
        options = remote.options(
            StrictHostKeyChecking="accept-new",
            UserKnownHostsFile=str(noted),
            PreferredAuthentications="none",
            ControlMaster="no",
            ControlPath="none",
        )
        done = run_ssh(["ssh", *options, "--", remote.target, "true"], 2 * CONNECT_S)
        keys = read_known(noted)
    if not keys:
        raise explain(remote.name, remote.target, done, remote.resolved())
    return keys[0]


def keep(remote: Remote, key: HostKey, *, replace: bool = False) -> bool:
    """Note ``key`` in the kit's known_hosts; False when it stands there already.

    Raises:
        IntegrityError: another key of that host stands there and ``replace`` is not
            asked for.
    """
    known = read_known(remote.known_hosts)
    held = [one for one in known if one.names == key.names]
    if key in held:
        return False
    if held and not replace:
        raise IntegrityError(
            f"the kit knows {key.names} by {held[0].fingerprint}, "
            f"and it shows {key.fingerprint} now",
            hint="compare it on the host's own console "
            "(ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), then add --replace",
            node=remote.name,
        )
    lines = [one.line for one in known if one.names != key.names] + [key.line]
    remote.known_hosts.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = remote.known_hosts.with_name(remote.known_hosts.name + ".part")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.truncate()
        file.write("\n".join(lines) + "\n")
    partial.replace(remote.known_hosts)
    return True
