"""A build's inputs: a profile, what it is put upon, and the machine that does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from glmspark.boost import names
from glmspark.boost.guard import Guard
from glmspark.boost.names import Built
from glmspark.boost.ranges import Patience
from glmspark.engine import engine_python, find_program
from glmspark.errors import ConfigError
from glmspark.paths import kit_paths
from glmspark.schema import Kit
from glmspark.serving.profiles import Profile
from glmspark.weights import builtin
from glmspark.weights.hub import Source
from glmspark.weights.manifest import Manifest
from glmspark.weights.progress import Progress
from glmspark.weights.store import Store

# Room for config, index and the store's own small files.
_SPARE_BYTES = 256 << 20


@dataclass
class Job:
    """What to build and with what; ``python`` is the engine's, ``env`` its own.

    ``device`` is cuda: only a test without a GPU hands in another.
    """

    profile: Profile
    base: str
    store: Store
    python: str
    guard: Guard
    progress: Progress = field(default_factory=Progress)
    with_drafter: bool = False
    patience: Patience = field(default_factory=Patience)
    device: str = "cuda"
    env: Mapping[str, str] | None = None
    needs_gpu: bool = field(default=False, init=False)

    @property
    def results(self) -> Built:
        """The names of what is built."""
        return names.results(self.profile, self.base, drafter=self.with_drafter)

    def table(self, part: str) -> Mapping[str, Any]:
        """The profile's table ``build.<part>``, or its ``transplant``."""
        if part == "transplant":
            return dict(self.profile.transplant or {})
        return names.table(self.profile, part)

    def source(self, part: str) -> Source:
        """The public repository that a table names."""
        table = self.table(part)
        return Source(str(table["repository"]), str(table["revision"]))

    def manifest(self, ref: str) -> Manifest:
        """The manifest in the store behind REPOSITORY@REVISION."""
        return self.store.resolve(builtin.select(self.store, ref))

    def may_begin(self, needed_bytes: int) -> None:
        """Raise PreflightError beside a kit, or without GPU or room for so much."""
        needed = needed_bytes + _SPARE_BYTES
        self.guard.before(self.store.root, needed, needs_gpu=self.needs_gpu)


def job_of(profile: Profile, kit: Kit, progress: Progress) -> Job:
    """The build of ``profile`` for ``kit`` on this machine.

    Raises ConfigError: the profile needs no build, the kit's target is not
    REPOSITORY@REVISION, or there is no store.
    """
    if not profile.build and not profile.transplant:
        raise ConfigError(
            f"profile '{profile.name}' needs no build", hint="glmspark profile list"
        )
    with_drafter = kit.weights.drafter == "dflash2"
    paths = kit_paths(kit)
    names.results(profile, kit.weights.target, drafter=with_drafter)
    return Job(
        profile=profile,
        base=kit.weights.target,
        store=Store.open(paths.store),
        python=engine_python(find_program(kit)),
        guard=Guard(paths.state.parent),
        progress=progress,
        with_drafter=with_drafter,
    )
