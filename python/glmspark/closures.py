"""Which store path a kit runs, how it gets to a node, and how far it is (pure)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from glmspark.errors import ConfigError
from glmspark.nixside import FEATURES, StoreFacts
from glmspark.preflight import Finding
from glmspark.remote import OPTIONS
from glmspark.runner import quote
from glmspark.schema import Kit, Runtime

STORE = "/nix/store/"
# Of Nix's internal-json log: activity and result numbers (logging.hh).
COPY_PATH, RES_PROGRESS, RES_SET_EXPECTED = 100, 105, 106


class Way(StrEnum):
    """How a closure gets into a node's store."""

    THERE = "there"
    TRUSTED = "trusted"
    SIGNED = "signed"
    REFUSED = "refused"


def store_path(program: Sequence[str]) -> str:
    """The store path that holds ``program``, links resolved; "" if none does."""
    if not program or not Path(program[0]).is_absolute():
        return ""
    place = str(Path(program[0]).resolve())
    if not place.startswith(STORE):
        return ""
    return STORE + place.removeprefix(STORE).partition("/")[0]


def require_closure(kit: Kit, program: Sequence[str]) -> str:
    """The closure that ``kit`` runs; "" for a runtime that has none.

    Raises:
        ConfigError: runtime is nix, and the engine is no program of a Nix store.
    """
    if kit.runtime is not Runtime.NIX:
        return ""
    found = store_path(program)
    if not found:
        raise ConfigError(
            f"runtime is nix, and the engine {quote(program)} is in no Nix store",
            hint="nix run .#start names one, or set paths.engine to its bin/vllm",
        )
    return found


def way_to(store: StoreFacts) -> Way:
    """How a closure gets into the store of a node."""
    if store.has_closure:
        return Way.THERE
    if store.trusts_user:
        return Way.TRUSTED
    return Way.SIGNED if store.trusts_key else Way.REFUSED


def findings(node: str, store: StoreFacts, *, head: bool) -> Iterator[Finding]:
    """What keeps the closure from being on ``node`` or from getting there."""
    way = way_to(store)
    if way is Way.THERE:
        return
    if head:
        yield Finding(
            "engine.closure",
            node,
            store.why or "the engine's store path is not valid here",
            "the whole closure in this store",
            "nix build .#vllm-gb10 --no-link, then start again",
        )
    elif store.why and not store.nix:
        yield Finding(
            "engine.closure",
            node,
            store.why,
            "Nix, since runtime is nix",
            "install Nix there, or set runtime to oci",
        )
    elif way is Way.REFUSED and store.trusts_user is None:
        yield Finding(
            "engine.closure",
            node,
            store.why or "its Nix does not say whom it trusts",
            "a Nix that this user can bring paths to",
            f"on {node}: sudo systemctl enable --now nix-daemon.socket; nix store info",
        )
    elif way is Way.REFUSED:
        yield Finding(
            "engine.closure",
            node,
            f"its Nix takes unsigned paths from trusted users only; {store.user} is "
            "none, and this kit's key is not among its trusted-public-keys",
            f"in /etc/nix/nix.conf there: extra-trusted-public-keys = {store.key}",
            f"on {node}: echo 'extra-trusted-public-keys = {store.key}' | sudo tee -a "
            "/etc/nix/nix.conf && sudo systemctl restart nix-daemon",
        )


def copy_argv(nix: str, target: str, daemon: str, closure: str, way: Way) -> list[str]:
    """The argv that sends what is missing of ``closure`` to ``target``'s store."""
    argv = [nix, *FEATURES, "copy", "--log-format", "internal-json", "--verbose"]
    if way is Way.TRUSTED:
        argv.append("--no-check-sigs")
    return [*argv, "--to", f"ssh-ng://{target}?remote-program={daemon}", closure]


def sign_argv(nix: str, key_file: str, closure: str) -> list[str]:
    """The argv that signs every path of ``closure`` in this store."""
    words = ("store", "sign", "--recursive", "--key-file", key_file)
    return [nix, *FEATURES, *words, closure]


def ssh_config(
    known_hosts: Path, config: Path | None, home: str, route: Mapping[str, str]
) -> str:
    """An OpenSSH configuration with the tool's own options over the user's.

    Nix splits NIX_SSHOPTS at blanks, so that everything goes by a file. ``route`` adds
    options that come first. Nix learns of the connection by a local command.
    """
    ours = {**route, **OPTIONS, "UserKnownHostsFile": f'"{known_hosts}"'}
    del ours["PermitLocalCommand"]
    files = [str(config)] if config else [f"{home}/.ssh/config", "/etc/ssh/ssh_config"]
    lines = [f"{name} {value}" for name, value in ours.items()]
    return "\n".join([*lines, *(f'Include "{file}"' for file in files)]) + "\n"


@dataclass
class Progress:
    """Bytes of a copy, added up from Nix's log as it comes."""

    expected: int = 0
    done: dict[int, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    @property
    def bytes_done(self) -> int:
        """What has been sent."""
        return sum(self.done.values())

    def feed(self, line: str) -> None:
        """Take one line of the log; what is no event is kept as an error's words."""
        if not line.startswith("@nix "):
            self.errors += [line.strip()] if line.strip() else []
            return
        try:
            event: dict[str, Any] = json.loads(line.removeprefix("@nix "))
        except ValueError:
            return
        self._take(event)

    def _take(self, event: Mapping[str, Any]) -> None:
        fields = event.get("fields", [])
        match (event.get("action"), event.get("type")):
            case ("result", t) if t == RES_SET_EXPECTED and fields[0] == COPY_PATH:
                self.expected = max(self.expected, int(fields[1]))
            case ("start", t) if t == COPY_PATH:
                self.done.setdefault(int(event["id"]), 0)
            case ("result", t) if t == RES_PROGRESS and event["id"] in self.done:
                self.done[event["id"]] = int(fields[0])
            case ("msg", _) if event.get("level", 9) == 0:
                text = str(event.get("raw_msg") or event.get("msg", ""))
                self.errors.append(text.strip())


def show(parts: Iterable[tuple[str, Progress]]) -> str:
    """How far the copies are, for people."""
    said = [
        f"{name} {one.bytes_done / 1e6:.0f} of {one.expected / 1e6:.0f} MB"
        for name, one in parts
        if one.expected
    ]
    return "bring the engine: " + (", ".join(said) or "compare the stores")
