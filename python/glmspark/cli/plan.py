"""``glmspark plan``: what a start would do, and what it would need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from glmspark.cli.options import json_option, kit_options, print_json, settings_of
from glmspark.cli.start import show_plan
from glmspark.errors import ConfigError
from glmspark.plan import Goal, Plan, build_plan
from glmspark.schema import Kit

if TYPE_CHECKING:
    from glmspark.views import NodeView


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
@click.option(
    "--facts",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="GPU kits: plan from what `doctor --json` printed; no node is asked.",
)
@json_option
def command(kit: str | None, sets: tuple[str, ...], **how: Any) -> None:
    """Print what `start` would do: the steps, and each rank's command line.

    The same plan is carried out by `start`; secrets are masked. A GPU kit's nodes are
    asked for the devices and the memory that its lines come from.
    """
    from glmspark.boost.folders import of_kit
    from glmspark.paths import kit_paths

    settings = settings_of(kit, sets)
    facts, as_json = how["facts"], how["as_json"]
    if how["memory"]:
        show_memory(settings.kit, how["node_memory"], facts, as_json=as_json)
        return
    of_kit(settings.kit, kit_paths(settings.kit), must_exist=True)
    show_plan(plan_of(settings.kit, facts), as_json=as_json)


def reported(kit: Kit, facts: Path) -> tuple[NodeView, ...]:
    """The nodes' views in the file of a doctor's report.

    Raises:
        ConfigError: the file is no such report.
    """
    from glmspark.doctor import views_from_report

    try:
        report = json.loads(facts.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read {facts}: {error}", hint=f"glmspark doctor --json > {facts}"
        ) from error
    return views_from_report(kit, report)


def plan_of(kit: Kit, facts: Path | None) -> Plan:
    """The plan of a start, from ``facts`` or from what the nodes answer now."""
    if not kit.engine.uses_gpu:  # needs nobody's answer, and none of what asks
        from glmspark.engine import engine_paths
        from glmspark.paths import kit_paths

        return build_plan(kit, Goal.START, engine_paths(kit, kit_paths(kit)))
    from glmspark.console import narrator
    from glmspark.operations import Operator
    from glmspark.runner import ProcessRunner

    with narrator() as teller:
        operator = Operator(kit, ProcessRunner(), teller)
        if facts is not None:
            operator.assume(reported(kit, facts))
        return operator.plan(Goal.START)


def show_memory(
    kit: Kit, sizes: tuple[str, ...], facts: Path | None, *, as_json: bool
) -> None:
    """The memory plan on stdout.

    Raises:
        PreflightError: it does not fit; says what is short and what would fit.
    """
    from glmspark.serving.kitplan import (
        kit_memory,
        node_memory,
        parse_node_memory,
    )
    from glmspark.serving.memory import check_fits
    from glmspark.serving.report import memory_lines, memory_values

    views = reported(kit, facts) if facts is not None else ()
    known = {view.name: node_memory(view) for view in views}
    known |= {node.name: node for node in map(parse_node_memory, sizes)}
    plan = kit_memory(kit, known)
    if as_json:
        print_json(memory_values(plan))
    else:
        click.echo("\n".join(memory_lines(plan)))
    check_fits(plan)
