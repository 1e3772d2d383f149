"""``glmspark rank``: become one rank (internal; the supervisor runs it)."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command(name="rank", hidden=True)
@click.option("--boot", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--rank", type=click.IntRange(0), required=True)
def command(boot: Path, rank: int) -> None:
    """State what this rank runs, then become the engine (internal)."""
    from glmspark.rankexec import become

    become(boot, rank, os.environ)
