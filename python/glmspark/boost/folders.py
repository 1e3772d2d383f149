"""What a kit's ranks open for its profile: views that a build has made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from glmspark.errors import ConfigError
from glmspark.paths import KitPaths
from glmspark.schema import Kit

if TYPE_CHECKING:  # what few kits need loads late: every plan comes through here
    from glmspark.serving.profiles import Profile


@dataclass(frozen=True)
class Folders:
    """Paths of a profile's own views; empty where the profile has none.

    ``model`` takes the target's place, ``draft`` the drafter's, and ``donor`` is the
    second checkpoint of a transplant (``donor_dir`` of the rank line).
    """

    model: str = ""
    draft: str = ""
    donor: str = ""


def named(profile: Profile, base: str, store: Path, *, drafter: bool) -> Folders:
    """Where the views of ``profile`` are or will be, upon REPOSITORY@REVISION.

    A transplant without a donor has none; the rank line refuses it.
    """
    if not (profile.transplant or {}).get("repository"):
        profile = replace(profile, transplant=None)
    if not profile.build and not profile.transplant:
        return Folders()
    from glmspark.boost import names

    parts = names.results(profile, base, drafter=drafter).parts
    paths = {name: str(one.folder(store)) for name, one in parts.items()}
    return Folders(
        paths.get("target", ""), paths.get("drafter", ""), paths.get("donor", "")
    )


def opened(profile: Profile, base: str, store: Path, *, drafter: bool) -> Folders:
    """The same, and they have to be there.

    Raises ConfigError that names what is missing and the command that builds it.
    """
    if profile.build or profile.transplant:
        from glmspark.boost import names

        names.require(profile, base, store, drafter=drafter)
    return named(profile, base, store, drafter=drafter)


def of_kit(kit: Kit, paths: KitPaths, *, must_exist: bool) -> Folders:
    """The folders of the kit's profile; none for a target that is no repository.

    If they ``must_exist``, raises ConfigError as ``opened`` does, and for EXL3 at
    three ranks: heads are padded with zeros there, which no EXL3 tensor holds.
    """
    target = kit.weights.target
    if kit.profile == "default" or "@" not in target or target.startswith("/"):
        return Folders()
    from glmspark.serving.profiles import load_profile

    profile, drafter = load_profile(kit.profile), kit.weights.drafter == "dflash2"
    if must_exist and profile.engine.dense == "exl3" and kit.topology.ranks == 3:
        raise ConfigError(
            f"profile '{profile.name}' does not work at three ranks: heads are padded "
            "there, and EXL3 tensors have no padding",
            hint="glmspark profile list; another profile, or two or four nodes",
        )
    find = opened if must_exist else named
    return find(profile, target, paths.store, drafter=drafter)
