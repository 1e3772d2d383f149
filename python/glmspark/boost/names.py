"""What a build is called in the store, and where it is once it is there (pure)."""

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
    """The results of a profile; None for one that it does not ask for.

    ``drafter`` is the quantized drafter, ``donor`` the tensors of a transplant,
    ``target`` the target with dense EXL3 tensors.
    """

    drafter: Artifact | None = None
    donor: Artifact | None = None
    target: Artifact | None = None

    @property
    def parts(self) -> dict[str, Artifact]:
        """Name -> result, in the order in which they are made."""
        found = {"drafter": self.drafter, "donor": self.donor, "target": self.target}
        return {name: one for name, one in found.items() if one is not None}


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
    Raises ConfigError for an input or a base that is not pinned to a commit, and for a
    transplant into layers that the build makes EXL3.
    """
    _check_base(profile, base)
    _check_apart(profile)
    made = {}
    if profile.build:
        dense = Inputs({"dense": table(profile, "dense")}, "", base)
        made["target"] = _artifact(profile.name, "target", dense)
        if drafter:
            draft = Inputs({"drafter": table(profile, "drafter")}, QUANTIZER)
            made["drafter"] = _artifact(profile.name, "drafter", draft)
    if profile.transplant:
        given = Inputs({"transplant": dict(profile.transplant)}, "", base)
        made["donor"] = _artifact(profile.name, "donor", given)
    return Built(**made)


def _check_base(profile: Profile, base: str) -> None:
    repo, _, revision = base.partition("@")
    try:
        check_repo(repo, revision)
    except ConfigError as error:
        raise ConfigError(
            f"profile '{profile.name}' is built upon REPOSITORY@REVISION, and "
            f"weights.target is {base}",
            hint="set weights.target to the EXL3 checkpoint at its commit",
        ) from error


def _check_apart(profile: Profile) -> None:
    dense = (profile.build or {}).get("dense", {}).get("layers", ())
    given = (profile.transplant or {}).get("tensors", ())
    both = sorted({f"{kind}.weight" for kind in dense} & set(given))
    if both:
        raise ConfigError(
            f"profile '{profile.name}' transplants {', '.join(both)} and builds the "
            "same layers as EXL3: the transplant would be lost",
            hint="take them out of build.dense.layers",
        )


def build_command(profile: Profile) -> str:
    """The command that makes what is missing."""
    return f"glmspark profile build {profile.name}"


def require(profile: Profile, base: str, store: Path, *, drafter: bool) -> Built:
    """The profile's results, which must be in ``store``.

    Raises ConfigError that names what is missing and the command that builds it.
    """
    built = results(profile, base, drafter=drafter)
    for part in built.parts.values():
        if not part.folder(store).is_dir():
            raise ConfigError(
                f"profile '{profile.name}' needs {part.ref}, and {store} has no view "
                "of it",
                hint=f"{build_command(profile)}, then glmspark weights share",
            )
    return built
