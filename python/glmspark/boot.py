"""One boot of a kit on one node: what its supervisor is told, and what it answers."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from glmspark.processes import Identity
from glmspark.ranks import RankSpec

KEPT_BOOTS = 10
_BOOT_NAME = re.compile(r"^\d{8}T\d{6}-[0-9a-f]{6}$")


def kernel_boot() -> str:
    """The kernel's id of the current boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def new_boot_name() -> str:
    """A name for a boot; names sort by time."""
    return time.strftime("%Y%m%dT%H%M%S") + "-" + os.urandom(3).hex()


def scratch_folder(boot: str) -> Path:
    """The temporary files of a boot's ranks.

    Short, since Unix sockets below it have 108 bytes for their whole path; by the
    boot's name, so that whoever ends the boot finds it.
    """
    return Path("/tmp") / f"glmspark-{boot}"  # noqa: S108 - made with mode 0700


@dataclass(frozen=True)
class Limits:
    """Time-outs of the phases, in seconds; see ``glmspark.schema.Timeouts``."""

    launch_s: float
    stall_s: float
    ready_s: float
    canary_s: float
    stop_s: float


@dataclass(frozen=True)
class Api:
    """How the supervisor asks the engine: address, model name, key file or ""."""

    host: str
    port: int
    name: str
    url: str
    key_file: str


@dataclass(frozen=True)
class Trial:
    """What the engine is asked before it is announced.

    ``warm_up`` are the requests that make every shape compile (the fields of
    ``serving.warmup.WarmUp``). ``judges`` says whether the answers must make sense;
    a random model's only have to be there. ``drafts``: some drafts must be accepted.
    """

    warm_up: tuple[Mapping[str, Any], ...] = ()
    judges: bool = False
    drafts: bool = False


@dataclass(frozen=True)
class Boot:
    """What the supervisor of one node launches and watches."""

    name: str
    kit: str
    digest: str
    master_port: int
    limits: Limits
    api: Api
    ranks: tuple[RankSpec, ...]
    trial: Trial = field(default_factory=Trial)

    def write(self, folder: Path) -> None:
        """Leave the boot in ``folder``/boot.json for supervisor and ranks."""
        data = {**asdict(self), "ranks": [rank.to_json() for rank in self.ranks]}
        write_json(folder / "boot.json", data)

    @staticmethod
    def read(folder: Path) -> Boot:
        """The boot that :meth:`write` left in ``folder``."""
        data = json.loads((folder / "boot.json").read_text())
        data["limits"] = Limits(**data["limits"])
        data["api"] = Api(**data["api"])
        trial = data.get("trial", {})
        data["trial"] = Trial(**{**trial, "warm_up": tuple(trial.get("warm_up", ()))})
        data["ranks"] = tuple(RankSpec.from_json(rank) for rank in data["ranks"])
        return Boot(**data)


@dataclass(frozen=True)
class Failure:
    """Why a boot ended: what happened, the remedy, and the exit code for it."""

    message: str
    hint: str
    exit_code: int
    rank: int | None = None


@dataclass(frozen=True)
class State:
    """What the supervisor last said: phase, processes, failure."""

    boot: str
    kit: str
    digest: str
    kernel_boot: str
    supervisor: Identity
    phase: str
    since: float
    url: str
    name: str
    ranks: Mapping[int, Identity] = field(default_factory=dict)
    nodes: Mapping[int, str] = field(default_factory=dict)
    failure: Failure | None = None
    ready_s: float | None = None
    private_shm: bool = True

    def write(self, path: Path) -> None:
        """Leave the state in ``path``, whole or not at all."""
        write_json(path, asdict(self))

    @property
    def api(self) -> Api:
        """Where this very boot answers, whatever the settings say by now."""
        parts = urlsplit(self.url)
        return Api(parts.hostname or "", parts.port or 0, self.name, self.url, "")

    @property
    def is_current(self) -> bool:
        """Whether the supervisor that wrote it still runs on this boot."""
        return self.kernel_boot == kernel_boot() and self.supervisor.is_alive

    @property
    def is_up(self) -> bool:
        """Whether the boot serves or is on its way to."""
        return self.is_current and self.phase in {"launch", "load", "canary", "serving"}

    @property
    def is_final(self) -> bool:
        """Whether the boot has ended, well or not."""
        return self.phase in {"stopped", "failed"}


def read_state(path: Path) -> State | None:
    """The state in ``path``; None where there is none, or none that can be read."""
    try:
        data = json.loads(path.read_text())
        data["supervisor"] = Identity(**data["supervisor"])
        data["ranks"] = {int(k): Identity(**v) for k, v in data["ranks"].items()}
        data["nodes"] = {int(k): v for k, v in data["nodes"].items()}
        data["failure"] = Failure(**data["failure"]) if data["failure"] else None
        state = State(**data)
        words = (state.boot, state.kit, state.phase, state.url, state.kernel_boot)
        return state if all(isinstance(word, str) for word in words) else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        # Damaged, or written by another version: it says nothing; processes are found
        # by their marker all the same.
        return None


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Replace ``path`` by ``data`` as JSON, durable before it gets its name."""
    partial = path.with_name(path.name + ".part")
    with partial.open("w") as file:
        json.dump(data, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def boot_folders(boots: Path) -> list[Path]:
    """The folders of all kept boots, oldest first."""
    if not boots.is_dir():
        return []
    return sorted(p for p in boots.iterdir() if _BOOT_NAME.match(p.name))


def stale_boots(folders: list[Path], keep: int = KEPT_BOOTS) -> list[Path]:
    """Those of ``folders`` (oldest first) that are one too many."""
    return folders[: max(0, len(folders) - keep)]
