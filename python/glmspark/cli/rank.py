"""``glmspark rank``: become one rank (internal; supervisors and units run it)."""

from __future__ import annotations

import os
from pathlib import Path

import click

from glmspark.cli.options import kit_options


@click.command(name="rank", hidden=True)
@kit_options
@click.option(
    "--boot",
    type=click.Path(path_type=Path, exists=True),
    help="The folder of a supervisor's boot; without it the kit says what runs.",
)
@click.option("--rank", type=click.IntRange(0), required=True)
def command(
    kit: str | None, sets: tuple[str, ...], *, boot: Path | None, rank: int
) -> None:
    """State what this rank runs, then become the engine (internal)."""
    from glmspark.rankexec import become, become_alone
    from glmspark.settings import load_settings

    if boot is not None:
        become(boot, rank, os.environ)
    become_alone(load_settings(kit, sets).kit, rank, os.environ)
