"""What an ssh failure means, and what mends it (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from glmspark.errors import CommandError
from glmspark.runner import quote


class RemoteError(CommandError):
    """A host could not be reached or asked.

    ``kind`` is one of: unknown, changed, denied, refused, silent, unresolved,
    unreachable, no python, no answer, failed, other.
    """

    def __init__(self, message: str, *, kind: str, hint: str = "", node: str) -> None:
        super().__init__(message, hint=hint, node=node)
        self.kind = kind


class Done(Protocol):
    """An ended ssh command."""

    @property
    def err(self) -> str:
        """What it said."""
        ...

    @property
    def timed_out(self) -> bool:
        """Whether it was ended because it took too long."""
        ...


# Words of OpenSSH's client, most telling first.
_SIGNS = (
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "changed"),
    ("host key is known for", "unknown"),
    ("Host key verification failed", "unknown"),
    ("Permission denied", "denied"),
    ("Too many authentication failures", "denied"),
    ("Connection refused", "refused"),
    ("Could not resolve hostname", "unresolved"),
    ("No route to host", "unreachable"),
    ("Network is unreachable", "unreachable"),
    ("timed out", "silent"),
    ("Connection closed by", "closed"),
    ("Connection reset by", "closed"),
)


def kind_of(text: str, *, timed_out: bool = False) -> str:
    """The kind of failure that ssh's words speak of."""
    for sign, kind in _SIGNS:
        if sign in text:
            return kind
    return "silent" if timed_out else "other"


def explain(
    name: str, target: str, done: Done, resolved: Mapping[str, Sequence[str]]
) -> RemoteError:
    """The error for an ssh command that failed before anything ran on the host."""
    kind = kind_of(done.err, timed_out=done.timed_out)
    user = (resolved.get("user") or ["?"])[0]
    host = (resolved.get("hostname") or [target])[0]
    port = (resolved.get("port") or ["22"])[0]
    place = f"{user}@{host} port {port}"
    keys = ", ".join(resolved.get("identityfile", [])) or "none"
    last = (done.err.strip() or "nothing").splitlines()[-1]
    trust = f"glmspark node trust {quote([target])}"
    known = (resolved.get("userknownhostsfile") or ["known_hosts"])[0]
    texts = {
        "unknown": (
            f"the host key of {place} is not known to this kit",
            f"{trust} shows its fingerprint and keeps it",
        ),
        "changed": (
            f"the host key of {place} is another one than this kit knows: a new "
            "installation, or somebody in between",
            f"compare the fingerprint on the host's own console, then: {trust} "
            f"--replace (keys are kept in {known})",
        ),
        "denied": (
            f"{place} accepts none of this user's keys (tried as {user}: {keys})",
            f"ssh-copy-id -p {port} {user}@{host}",
        ),
        "refused": (
            f"nothing listens for ssh on {host} port {port}",
            f"on {name}: systemctl status ssh",
        ),
        "unresolved": (
            f"the name {host} is not known",
            f"use its address, or add {host} to /etc/hosts",
        ),
        "unreachable": (f"there is no way to {host}", f"ip route get {host}"),
        "silent": (
            f"{place} did not answer in time",
            f"ping {host}; is {name} up, and does a firewall drop port {port}?",
        ),
        "closed": (
            f"{place} closed the connection: {last}",
            f"on {name}: journalctl -u ssh -n 20",
        ),
        "other": (f"ssh to {place} failed: {last}", f"ssh -v {quote([target])} true"),
    }
    message, hint = texts[kind]
    return RemoteError(message, kind=kind, hint=hint, node=name)
