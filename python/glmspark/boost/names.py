"""What a build is called in the store, and where to find it once it is there (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmspark.errors import ConfigError
from glmspark.serving.boost import Inputs, check_inputs
from glmspark.serving.profiles import Profile
from glmspark.weights.manifest import check_repo

# The quantizer's name for its own output; another search or scale, another name.
QUANTIZER = "vllm_exl3 viterbi 1"


@dataclass(frozen=True)
class Artifact:
    """One result of a build, a manifest of the store: ``repo`` at ``revision``."""

    repo: str
    revision: str
    address: str

    @property
    def ref(self) -> str:
        """``repo@revision``, as weights.target takes it."""
        return f"{self.repo}@{self.revision}"

    @property
    def view(self) -> str:
        """The name of its view in the store."""
        return f"{self.repo.replace('/', '--')}--{self.revision[:12]}"

    def folder(self, store: Path) -> Path:
        """The lasting path of its view."""
        return store / "views" / self.view


@dataclass(frozen=True)
class Built:
    """The two results: the target with dense EXL3, and the drafter if one is wanted."""

    target: Artifact
    drafter: Artifact | None


def _artifact(profile: str, part: str, inputs: Inputs) -> Artifact:
    check_inputs(inputs)
    address = inputs.address
    return Artifact(f"local/{profile}-{part}", address[:40], address)


def table(profile: Profile, part: str) -> Mapping[str, Any]:
    """The profile's table ``build.<part>``; ConfigError if it has none."""
    found = (profile.build or {}).get(part)
    if found is None:
        raise ConfigError(
            f"profile '{profile.name}' has no table build.{part}: nothing to build",
            hint="glmspark profile list",
        )
    return dict(found)


def results(profile: Profile, base: str, *, drafter: bool) -> Built:
    """What ``glmspark profile build`` makes of ``profile`` for the target ``base``.

    ``base`` is REPOSITORY@REVISION. Equal inputs give equal names on every machine.
    Raises ConfigError for a profile without a build, an input or a base that is not
    pinned to a commit.
    """
    repo, _, revision = base.partition("@")
    try:
        check_repo(repo, revision)
    except ConfigError as error:
        raise ConfigError(
            f"profile '{profile.name}' is built upon REPOSITORY@REVISION, and "
            f"weights.target is {base}",
            hint="set weights.target to the EXL3 checkpoint at its commit",
        ) from error
    dense = Inputs({"dense": table(profile, "dense")}, "", base)
    target = _artifact(profile.name, "target", dense)
    if not drafter:
        return Built(target, None)
    draft = Inputs({"drafter": table(profile, "drafter")}, QUANTIZER)
    return Built(target, _artifact(profile.name, "drafter", draft))


def build_command(profile: Profile) -> str:
    """The command that makes what is missing."""
    return f"glmspark profile build {profile.name}"


def require(profile: Profile, base: str, store: Path, *, drafter: bool) -> Built:
    """The profile's results, which must be in ``store``.

    Raises ConfigError that names what is missing and the command that builds it.
    """
    built = results(profile, base, drafter=drafter)
    for part in (built.target, built.drafter):
        if part is not None and not part.folder(store).is_dir():
            raise ConfigError(
                f"profile '{profile.name}' needs {part.ref}, and {store} has no view "
                "of it",
                hint=f"{build_command(profile)}, then glmspark weights share",
            )
    return built
