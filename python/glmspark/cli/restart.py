"""``glmspark restart``."""

from __future__ import annotations

from typing import Any

import click

from glmspark.cli.options import (
    json_option,
    kit_options,
    waive_option,
    warm_up_option,
)
from glmspark.cli.start import bring_up
from glmspark.plan import Goal


@click.command(name="restart")
@kit_options
@waive_option
@warm_up_option
@click.option("--dry-run", is_flag=True, help="Print the plan; do nothing.")
@json_option
def command(kit: str | None, sets: tuple[str, ...], **how: Any) -> None:
    """Check everything first, then stop the kit and start it anew."""
    bring_up(Goal.RESTART, kit, sets, **how)
