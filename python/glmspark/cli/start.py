"""``glmspark start`` and ``restart``: bring the kit to serve."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any

import click

from glmspark.cli.options import (
    json_option,
    kit_options,
    print_json,
    settings_of,
    tell,
    waive_option,
    warm_up_option,
)
from glmspark.plan import Goal


def bring_up(goal: Goal, kit: str | None, sets: tuple[str, ...], **how: Any) -> None:
    """Start or restart the kit, or print the plan of it; the result is on stdout."""
    if how.get("warm_up") is not None:
        sets = (*sets, f"serve.warm_up={str(how['warm_up']).lower()}")
    settings = settings_of(kit, sets)

    def act(operator: Any) -> Any:
        if how["dry_run"]:
            show_plan(operator.plan(goal, how["waive"]), as_json=how["as_json"])
            return None
        bring = operator.restart if goal.stops else operator.start
        return bring(how["waive"])

    run_operation(settings.kit, act, how)


def run_operation(kit: Any, act: Callable[[Any], Any], how: Mapping[str, Any]) -> None:
    """Let an operator of ``kit`` act, then show what lives if it says so."""
    from glmspark.console import narrator
    from glmspark.operations import Operator
    from glmspark.runner import ProcessRunner

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with narrator() as teller:
        operator = Operator(kit, ProcessRunner(), teller)
        outcome = act(operator)
    if outcome is not None:
        show_live(kit.topology.value, outcome, operator, as_json=how["as_json"])


def show_plan(plan: Any, *, as_json: bool) -> None:
    """The plan on stdout."""
    if as_json:
        print_json(plan.to_json())
    else:
        click.echo("\n".join(plan.lines()))


def show_live(topology: str, outcome: Any, operator: Any, *, as_json: bool) -> None:
    """The line that everybody waits for, on stdout, and what to do next on stderr."""
    state, kit = outcome.state, operator.kit
    if as_json:
        print_json(
            {
                "result": outcome.word,
                "url": state.url,
                "model": state.name,
                "boot": state.boot,
                "seconds": round(outcome.seconds, 1),
                "key_file": operator.engine.key if kit.needs_key else None,
                "waived": [finding.to_json() for finding in outcome.waived],
            }
        )
        return
    already = "already " if outcome.word == "already" else ""
    click.echo(f"{state.name} ({topology}) is {already}LIVE on {state.url}")
    if kit.weights.target == "loopback":
        tell(
            "the model is tiny and its weights are random: it answers, "
            "it does not make sense"
        )
    if kit.needs_key:
        tell(f"clients send the key in {operator.engine.key}")
    tell("glmspark status | logs -f | stop")


@click.command(name="start")
@kit_options
@waive_option
@warm_up_option
@click.option("--dry-run", is_flag=True, help="Print the plan; do nothing.")
@json_option
def command(kit: str | None, sets: tuple[str, ...], **how: Any) -> None:
    """Check every node, launch the ranks, and wait until the API answers.

    Says "already" and does nothing when the kit serves. Ctrl-C takes everything down.
    """
    bring_up(Goal.START, kit, sets, **how)
