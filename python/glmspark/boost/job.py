"""A build's inputs as a kit gives them, and what a start asks of a built profile."""

from __future__ import annotations

from glmspark.boost import names
from glmspark.boost.build import Job
from glmspark.boost.guard import Guard
from glmspark.engine import engine_python, find_program
from glmspark.errors import ConfigError
from glmspark.paths import kit_paths
from glmspark.schema import Kit
from glmspark.serving.profiles import Profile
from glmspark.weights.progress import Progress
from glmspark.weights.store import Store


def job_of(profile: Profile, kit: Kit, progress: Progress) -> Job:
    """The build of ``profile`` for ``kit`` on this machine.

    Raises ConfigError: the profile needs no build, the kit's target is not
    REPOSITORY@REVISION, or there is no store.
    """
    if not profile.build:
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
