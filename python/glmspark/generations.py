"""What has served before, kept so that it can serve again: settings, plan, engine.

A generation is written when a start has come to serve. It holds the settings as they
were, the plan, the closure or image, and what rank 0 said that it ran.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glmspark import __version__, fingerprint
from glmspark.boot import write_json
from glmspark.errors import ConfigError, GlmSparkError, IntegrityError
from glmspark.paths import KitPaths
from glmspark.plan import Goal, Plan
from glmspark.rankexec import fingerprint_file
from glmspark.schema import Kit

KEPT = 3


@dataclass(frozen=True)
class Generation:
    """A start that served: number, digest of its plan, settings, engine, model.

    ``since`` is the time of its first answer, ``closure`` the store path or "",
    ``image`` the digest of the image's config or "", ``stated`` rank 0's fingerprint.
    """

    number: int
    digest: str
    boot: str
    since: float
    kit: Mapping[str, Any]
    closure: str
    image: str
    stated: Mapping[str, str]
    tool: str

    def line(self) -> str:
        """The generation for people."""
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.since))
        engine = self.closure or self.image or self.kit["engine"]
        model = self.kit["weights"]["target"]
        return f"{self.number}  {when}  {self.digest}  {engine}  {model}"

    def settings(self) -> Kit:
        """The kit as it was.

        Raises:
            ConfigError: this version of the tool does not understand it.
        """
        try:
            return Kit.model_validate_json(json.dumps(self.kit))
        except ValueError as error:
            raise ConfigError(
                f"generation {self.number} was written by glmspark {self.tool} and "
                f"cannot be used by {__version__}: {error}",
                hint="glmspark rollback --list",
            ) from error


def folder_of(paths: KitPaths) -> Path:
    """Where the generations of a kit are."""
    return paths.state / "generations"


def read_generations(paths: KitPaths) -> list[Generation]:
    """The kept generations, oldest first; what cannot be read is left out."""
    found = []
    for file in folder_of(paths).glob("*/generation.json"):
        try:
            found.append(Generation(**json.loads(file.read_text())))
        except (OSError, ValueError, TypeError):
            continue
    return sorted(found, key=lambda one: one.number)


def record(
    paths: KitPaths, kit: Kit, plan: Plan, boot: str, engine: tuple[str, str]
) -> Generation:
    """Keep what serves now; ``engine`` is closure and image. Older ones beyond KEPT go.

    The same plan again is the same generation, with the time of its last start.
    """
    before = read_generations(paths)
    last = before[-1] if before else None
    number = last.number if last else 0
    if last is None or last.digest != plan.digest:
        number += 1
    stated = fingerprint.read(fingerprint_file(paths.boots / boot, 0)) or {}
    made = Generation(
        number,
        plan.digest,
        boot,
        time.time(),
        kit.model_dump(mode="json"),
        *engine,
        stated,
        __version__,
    )
    folder = folder_of(paths) / f"{number:04}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(folder / "plan.json", plan.to_json())
    write_json(folder / "generation.json", asdict(made))
    for old in [one for one in before if one.number <= number - KEPT]:
        shutil.rmtree(folder_of(paths) / f"{old.number:04}", ignore_errors=True)
    return made


def pick(
    kept: Sequence[Generation], current: str, asked: int | None = None
) -> Generation:
    """The generation to go back to: the asked one, else the last unlike ``current``.

    ``current`` is the digest of the plan that runs, or that kit.toml makes (pure).

    Raises:
        ConfigError: there is none.
    """
    if asked is not None:
        found = [one for one in kept if one.number == asked]
    else:
        found = [one for one in kept if one.digest != current]
    if found:
        return found[-1]
    what = f"no generation {asked}" if asked is not None else "no other generation"
    raise ConfigError(
        f"there is {what} of this kit",
        hint="glmspark rollback --list; a start that serves makes one",
    )


def check_model(generation: Generation, model: Path) -> None:
    """See that ``model`` is still what the generation served.

    Raises:
        IntegrityError: it has changed, or cannot be read.
    """
    wanted = generation.stated.get("model", "")
    if wanted and (seen := fingerprint.model_digest(model)) != wanted:
        raise IntegrityError(
            f"{model} is another model ({seen[:12]}) than generation "
            f"{generation.number} served ({wanted[:12]})",
            hint="glmspark weights link, then roll back again",
        )


def closures_of(kept: Sequence[Generation]) -> dict[str, str]:
    """The store paths that the kept generations need, by a name for each."""
    return {f"generation-{one.number}": one.closure for one in kept if one.closure}


def with_way_back(error: GlmSparkError, paths: KitPaths, plan: Plan) -> GlmSparkError:
    """``error`` of a restart, naming what served before if that was something else."""
    unlike = [one for one in read_generations(paths) if one.digest != plan.digest]
    if plan.goal is Goal.RESTART and unlike:
        error.hint += f"; glmspark rollback brings generation {unlike[-1].number} back"
    return error
