"""``glmspark node``: what runs on one node; mostly called by the tool itself."""

from __future__ import annotations

from pathlib import Path

import click

from glmspark.cli.options import json_option, kit_options, print_json, settings_of
from glmspark.console import table


@click.group(name="node")
def command() -> None:
    """Look at this node, or run its part of a kit."""


@command.command()
@kit_options
@json_option
def probe(kit: str | None, sets: tuple[str, ...], as_json: bool) -> None:  # noqa: FBT001
    """Print the facts of this node that the checks look at."""
    from glmspark.engine import engine_paths
    from glmspark.facts import probe as read_facts
    from glmspark.paths import kit_paths

    settings = settings_of(kit, sets)
    paths = kit_paths(settings.kit)
    facts = read_facts(paths, engine_paths(settings.kit, paths).program).to_json()
    if as_json:
        print_json(facts)
        return
    rows = [
        (name, str(line))
        for name, value in facts.items()
        for line in (value if isinstance(value, (list, tuple)) else [value])
    ]
    table(("fact", "value"), rows)


@command.command(hidden=True)
@click.option("--boot", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--state", type=click.Path(path_type=Path), required=True)
def supervise(boot: Path, state: Path) -> int:
    """Launch and watch the ranks of one boot (internal)."""
    from glmspark.supervisor import Supervisor

    return Supervisor(boot, state).run()
