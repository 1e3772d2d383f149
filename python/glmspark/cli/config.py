"""``glmspark config``: check and show the settings, print their schema."""

from __future__ import annotations

from typing import Any

import click

from glmspark.cli.options import json_option, kit_options, print_json
from glmspark.console import table
from glmspark.settings import load_settings, show_rows


@click.group(name="config")
def command() -> None:
    """Check and show the settings."""


@command.command()
@click.argument("file", required=False)
@kit_options
def check(file: str | None, kit: str | None, sets: tuple[str, ...]) -> None:
    """See whether the settings (of FILE) are valid; exit status 3 when not."""
    settings = load_settings(file or kit, sets)
    where = settings.path or "the built-in loopback kit"
    click.echo(f"{where}: valid, kit {settings.kit.name}")


@command.command()
@kit_options
@json_option
def show(kit: str | None, sets: tuple[str, ...], as_json: bool) -> None:  # noqa: FBT001
    """Print every setting with its value and where that came from."""
    rows = show_rows(load_settings(kit, sets))
    if as_json:
        print_json({key: {"value": v, "origin": o} for key, v, o in rows})
        return
    shown = [(key, _toml(value), origin) for key, value, origin in rows]
    table(("setting", "value", "from"), shown)


def _toml(value: Any) -> str:
    """``value`` as kit.toml would have it."""
    import json

    return json.dumps(value)


@command.command()
def schema() -> None:
    """Print the JSON Schema of kit.toml."""
    from glmspark.jsonschema import kit_schema

    print_json(kit_schema())
