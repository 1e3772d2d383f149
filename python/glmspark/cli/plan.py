"""``glmspark plan``: what a start would do."""

from __future__ import annotations

import click

from glmspark.cli.options import json_option, kit_options, settings_of
from glmspark.cli.start import show_plan
from glmspark.plan import Goal, build_plan


@click.command(name="plan")
@kit_options
@json_option
def command(kit: str | None, sets: tuple[str, ...], as_json: bool) -> None:  # noqa: FBT001
    """Print what `start` would do: the steps, and each rank's command line.

    The same plan is carried out by `start`; secrets are masked.
    """
    from glmspark.engine import engine_paths
    from glmspark.paths import kit_paths

    settings = settings_of(kit, sets)
    engine = engine_paths(settings.kit, kit_paths(settings.kit))
    show_plan(build_plan(settings.kit, Goal.START, engine), as_json=as_json)
