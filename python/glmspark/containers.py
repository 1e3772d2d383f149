"""A rank in a container of this machine: its boot alone, its mounts, its end."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from glmspark import imageside
from glmspark.boot import Boot
from glmspark.errors import ConfigError
from glmspark.ranks import RankSpec


def read_container(folder: Path, rank: int) -> dict[str, Any] | None:
    """How ``rank`` of the boot in ``folder`` is contained; None: it is not."""
    file = folder / "containers.json"
    if not file.is_file():
        return None
    box: dict[str, Any] | None = json.loads(file.read_text()).get(str(rank))
    return box


def inner_boot(boot: Boot, spec: RankSpec) -> Boot:
    """The boot as the container sees it: this rank alone, here."""
    return replace(boot, ranks=(replace(spec, host="local"),))


def enter(folder: Path, boot: Boot, spec: RankSpec, box: Mapping[str, Any]) -> NoReturn:
    """Replace this process by the container engine's client, in the foreground.

    A signal that ends it is passed on to the rank. What the rank states lands in its
    own folder, and is seen from the boot's.

    Raises:
        ConfigError: the container engine cannot be run.
    """
    serve = spec.argv.index("serve")
    inside = folder / f"rank-{spec.rank}"
    inside.mkdir(mode=0o700)
    inner_boot(boot, spec).write(inside)
    name = f"rank-{spec.rank}.fingerprint.json"
    (folder / name).symlink_to(Path(inside.name) / name)
    access = json.loads((folder / "ssh.json").read_text())["places"]["here"]
    rank = {
        "rank": spec.rank,
        "boot": boot.name,
        "model": spec.argv[serve + 1],
        "container": {**box, **access},
    }
    cell = imageside.cell_of(rank, str(inside), list(spec.secrets.values()))
    argv = imageside.run_argv(box["tool"], box["image"], cell)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        raise ConfigError(
            f"cannot run {argv[0]}: {error.strerror}", node=spec.node
        ) from error
