"""A node's Nix: whether it has a store path, and whom it trusts to bring one.

Standard library alone: it is sent to the node.
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

NIX_S = 20.0
STATE = Path("/nix/var/nix")
NOW = "now"
FEATURES = ("--extra-experimental-features", "nix-command")


@dataclass(frozen=True)
class StoreFacts:
    """A node's Nix store, seen by this user.

    ``has_closure`` says whether the asked path is valid there, ``trusts_user`` whether
    this user may bring unsigned paths (None: it does not say), ``trusts_key`` whether
    paths signed by ``key`` are taken. ``why`` says what could not be asked.
    """

    key: str = ""
    nix: str = ""
    version: str = ""
    user: str = ""
    has_closure: bool = False
    trusts_user: bool | None = None
    trusts_key: bool = False
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """The facts as plain data."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any] | None) -> StoreFacts | None:
        """The facts that :meth:`to_json` gave; None for none."""
        return StoreFacts(**data) if data is not None else None


def run(argv: Sequence[str], timeout_s: float = NIX_S) -> tuple[int, str, str]:
    """Exit status and output of a Nix command; 127 and the reason if it cannot run."""
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, "", str(error)
    return done.returncode, done.stdout, done.stderr


def beside(nix: str, program: str) -> str:
    """Another program of the same Nix."""
    return str(Path(nix).with_name(program))


def parse_info(text: str) -> tuple[bool | None, str]:
    """Of ``nix store info --json``: whether this user is trusted, and its store."""
    try:
        said = json.loads(text)
        trusted, url = said.get("trusted"), str(said.get("url", ""))
    except (ValueError, AttributeError):
        return None, ""
    return (None if trusted is None else bool(trusted)), url


def falls_back(url: str, uid: int, state: Path = STATE) -> bool:
    """Whether Nix would use a store in the user's home, since no daemon runs.

    No program of such a store can be run at /nix/store.
    """
    return uid != 0 and url.startswith("local") and not os.access(state, os.W_OK)


def look(nix: str, closure: str, key: str) -> StoreFacts:
    """What this node's Nix says of ``closure`` and of the public key ``key``."""
    user = pwd.getpwuid(os.getuid()).pw_name
    if not nix:
        return StoreFacts(key, user=user, why="there is no nix program")
    code, said, error = run([nix, "--version"])
    if code:
        return StoreFacts(key, user=user, why=f"{nix}: {error.strip()[-200:]}")
    version = said.strip().rpartition(" ")[2]
    _, info, error = run([nix, *FEATURES, "store", "info", "--json"])
    trusted, url = parse_info(info)
    why = "" if info else f"nix store info: {error.strip()[-200:]}"
    if falls_back(url, os.getuid()):
        why = f"no Nix daemon runs there, {user} would get a store at home"
        return StoreFacts(key, nix, version, user, why=why)
    valid = run([beside(nix, "nix-store"), "--check-validity", closure])[0] == 0
    return StoreFacts(
        key,
        nix,
        version,
        user,
        has_closure=valid,
        trusts_user=trusted,
        trusts_key=bool(key) and key in _keys(nix),
        why=why,
    )


def _keys(nix: str) -> list[str]:
    """The public keys whose signatures this node takes."""
    argv = [nix, *FEATURES, "config", "show", "trusted-public-keys"]
    code, said, _ = run(argv)
    if code:  # before Nix 2.20
        said = run([nix, *FEATURES, "show-config", "--json"])[1]
        try:
            return list(json.loads(said)["trusted-public-keys"]["value"])
        except (ValueError, LookupError, TypeError):
            return []
    return said.split()


def keep(nix: str, links: Mapping[str, str], folder: str) -> str:
    """Keep store paths from being collected: ``links`` maps names to paths.

    The one named NOW must be there; others are kept where they are.

    Other links in ``folder`` are removed, so that what no generation needs can go.
    Gives what went wrong, or "".
    """
    root = Path(folder)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in root.iterdir():
        if old.name not in links and old.is_symlink():
            old.unlink()
    for name, path in links.items():
        valid = run([beside(nix, "nix-store"), "--check-validity", path])[0] == 0
        if name != NOW and not valid:  # of an earlier generation: gone, or never here
            continue
        argv = [beside(nix, "nix-store"), "--realise", path]
        code, _, error = run([*argv, "--add-root", str(root / name)])
        if code:
            return error.strip()[-300:] or f"exit status {code}"
    return ""
