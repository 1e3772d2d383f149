"""``glmspark stop``."""

from __future__ import annotations

import click

from glmspark.cli.options import json_option, kit_options, print_json, settings_of


@click.command(name="stop")
@kit_options
@json_option
def command(kit: str | None, sets: tuple[str, ...], as_json: bool) -> None:  # noqa: FBT001
    """End every rank of the kit and prove that it is gone; safe to repeat."""
    from glmspark.console import narrator
    from glmspark.operations import Operator
    from glmspark.runner import ProcessRunner

    settings = settings_of(kit, sets)
    with narrator() as teller:
        outcome = Operator(settings.kit, ProcessRunner(), teller).stop()
    if as_json:
        seconds = round(outcome.seconds, 1)
        print_json({"result": outcome.word, "seconds": seconds})
    else:
        click.echo(f"{settings.kit.name}: {outcome.word}")
