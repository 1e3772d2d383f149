"""``glmspark plan``: what a start would do, and what it would need."""

from __future__ import annotations

import click

from glmspark.cli.options import json_option, kit_options, print_json, settings_of
from glmspark.cli.start import show_plan
from glmspark.plan import Goal, build_plan
from glmspark.schema import Kit


@click.command(name="plan")
@kit_options
@click.option(
    "--memory", is_flag=True, help="The memory of each rank instead; exit 4: no fit."
)
@click.option(
    "--node-memory",
    multiple=True,
    metavar="NAME=TOTAL,AVAILABLE",
    help="A node's memory in GiB for --memory; a node that is not named is assumed.",
)
@json_option
def command(
    kit: str | None,
    sets: tuple[str, ...],
    *,
    memory: bool,
    node_memory: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print what `start` would do: the steps, and each rank's command line.

    The same plan is carried out by `start`; secrets are masked.
    """
    from glmspark.boost.folders import of_kit
    from glmspark.engine import engine_paths
    from glmspark.paths import kit_paths

    settings = settings_of(kit, sets)
    if memory:
        show_memory(settings.kit, node_memory, as_json=as_json)
        return
    paths = kit_paths(settings.kit)
    of_kit(settings.kit, paths, must_exist=True)
    engine = engine_paths(settings.kit, paths)
    show_plan(build_plan(settings.kit, Goal.START, engine), as_json=as_json)


def show_memory(kit: Kit, sizes: tuple[str, ...], *, as_json: bool) -> None:
    """The memory plan on stdout.

    Raises:
        PreflightError: it does not fit; says what is short and what would fit.
    """
    from glmspark.serving.kitplan import kit_memory, parse_node_memory
    from glmspark.serving.memory import check_fits
    from glmspark.serving.report import memory_lines, memory_values

    known = {node.name: node for node in map(parse_node_memory, sizes)}
    plan = kit_memory(kit, known)
    if as_json:
        print_json(memory_values(plan))
    else:
        click.echo("\n".join(memory_lines(plan)))
    check_fits(plan)
