"""Nodes as a share sees them: addresses, the ssh command, its failures in words."""

from __future__ import annotations

import shlex
import socket
from dataclasses import dataclass
from typing import Any

from glmspark.errors import (
    CommandError,
    ConfigError,
    GlmSparkError,
    IntegrityError,
    PreflightError,
)

# Batch mode: a question for a password or a host key would wait for ever.
SSH = (
    "ssh",
    "-oBatchMode=yes",
    "-oConnectTimeout=15",
    "-oServerAliveInterval=15",
    "-oServerAliveCountMax=4",
)


@dataclass(frozen=True)
class Node:
    """Where to send: ssh target and the node's address on each link to the head."""

    name: str
    ssh_target: str
    fabric: tuple[str, ...]
    ssh: tuple[str, ...] = SSH
    program: tuple[str, ...] = ("glmspark",)
    store: str = ""


def parse_node(text: str) -> Node:
    """The node in ``NAME=SSH_TARGET,FABRIC_ADDR[,FABRIC_ADDR]``, one address a link."""
    name, equals, rest = text.partition("=")
    target, *fabric = rest.split(",")
    if not (name and equals and target and fabric and all(fabric)):
        raise ConfigError(
            f"cannot read the node {text!r}",
            hint="--to NAME=SSH_TARGET,FABRIC_ADDR[,FABRIC_ADDR]",
        )
    return Node(name, target, tuple(fabric))


def local_address(peer: str) -> str:
    """This machine's address on the route to ``peer``; nothing is sent.

    PreflightError if there is no route, or if ``peer`` is this machine.
    """
    try:
        family = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0][0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((peer, 9))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise PreflightError(
            f"the head has no route to the fabric address {peer}: {error}",
            hint="ip route get " + peer,
        ) from error


def pull_command(node: Node) -> list[str]:
    """The argv that runs ``weights pull`` on ``node``, quoted for its shell."""
    words = [*node.program, "weights", "pull"]
    words += ["--store", node.store] if node.store else []
    return [*node.ssh, "--", node.ssh_target, shlex.join(words)]


def rebuilt(fields: dict[str, Any], node: str) -> GlmSparkError:
    """The error that the node told of, as this process would raise it."""
    code = fields.get("exit_code")
    kinds = (ConfigError, PreflightError, CommandError, IntegrityError)
    kind = next((k for k in kinds if k.exit_code == code), CommandError)
    return kind(
        str(fields.get("message", "failed")),
        hint=str(fields.get("hint", "")),
        node=node,
    )


def ssh_error(node: Node, status: int, words: list[str]) -> GlmSparkError:
    """What ended the remote command without a word of its own, by what ssh printed."""
    text = " / ".join(words) or "it printed nothing"
    known = [
        (
            "Host key verification failed",
            "host key is unknown or changed",
            "ssh-keyscan",
        ),
        ("Permission denied", "ssh login was denied", "ssh-copy-id"),
        ("Could not resolve", "name is unknown", "ping"),
        ("Connection refused", "ssh port is closed", "ssh"),
        ("No route to host", "address cannot be reached", "ping"),
        ("timed out", "ssh does not answer", "ping"),
    ]
    if status == 127:
        return PreflightError(
            f"{node.program[0]} is not on the PATH of ssh on {node.ssh_target}: {text}",
            hint="name it with --remote-program /path/to/glmspark",
            node=node.name,
        )
    for sign, meaning, tool in known:
        if status == 255 and sign in text:
            return PreflightError(
                f"{node.ssh_target}: its {meaning}: {text}",
                hint=f"{tool} {node.ssh_target.rpartition('@')[2]}",
                node=node.name,
            )
    return CommandError(
        f"weights pull on {node.ssh_target} ended with status {status}: {text}",
        hint="run the share again: what arrived is kept",
        node=node.name,
    )
