"""``glmspark rollback``: go back to what served before."""

from __future__ import annotations

from typing import Any

import click

from glmspark.cli.options import (
    json_option,
    kit_options,
    print_json,
    settings_of,
    tell,
    waive_option,
)


@click.command(name="rollback")
@kit_options
@waive_option
@click.option("--to", type=click.IntRange(1), metavar="N", help="That generation.")
@click.option("--list", "listing", is_flag=True, help="Print the kept generations.")
@click.option("--dry-run", is_flag=True, help="Print the plan; do nothing.")
@json_option
def command(kit: str | None, sets: tuple[str, ...], **how: Any) -> None:
    """Restart with the settings, engine and model that served before.

    Everything is checked before anything is stopped. kit.toml stays as it is: the next
    `glmspark restart` applies it again.
    """
    from glmspark.cli.start import run_operation, show_plan
    from glmspark.engine import model_folder
    from glmspark.generations import check_model, pick, read_generations
    from glmspark.paths import kit_paths
    from glmspark.plan import Goal

    settings = settings_of(kit, sets)
    paths = kit_paths(settings.kit)
    kept = read_generations(paths)
    if how["listing"]:
        if how["as_json"]:
            print_json([{"number": g.number, "digest": g.digest} for g in kept])
        else:
            click.echo("\n".join(one.line() for one in kept) or "none")
        return
    chosen = pick(kept, current_digest(settings.kit, paths), how["to"])
    before = chosen.settings()
    if how["dry_run"]:

        def show(operator: Any) -> None:
            show_plan(operator.plan(Goal.RESTART), as_json=how["as_json"])

        run_operation(before, show, how)
        return
    check_model(chosen, model_folder(before, paths))
    tell(f"back to generation {chosen.line()}")
    run_operation(before, lambda operator: operator.restart(how["waive"]), how)
    tell("kit.toml is as it was; `glmspark restart` applies it")


def current_digest(kit: Any, paths: Any) -> str:
    """The digest of what runs; where nothing does, of what kit.toml would start."""
    from glmspark.boot import read_state
    from glmspark.engine import engine_paths
    from glmspark.errors import ConfigError
    from glmspark.generations import read_generations
    from glmspark.plan import Goal, build_plan

    state = read_state(paths.state_file)
    if state is not None and state.is_up:
        return state.digest
    if state is not None and state.phase == "failed":
        return state.digest  # what failed is not what to go back to
    try:
        digest = build_plan(kit, Goal.START, engine_paths(kit, paths)).digest
    except ConfigError:  # a netdev that is looked up at start, an engine that is gone
        kept = read_generations(paths)
        return kept[-1].digest if kept else ""
    return digest
