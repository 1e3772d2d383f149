"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import click

from glmspark.quick import without_plugins

with without_plugins():
    from glmspark.settings import Settings, load_settings

F = TypeVar("F", bound=Callable[..., Any])


def kit_options(command: F) -> F:
    """--kit and --set, for every command that reads the settings."""
    command = click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set one value, for instance --set serve.port=9000; may be repeated.",
    )(command)
    return click.option(
        "--kit",
        metavar="FILE",
        help="The kit.toml to use; default: $GLMSPARK_KIT, ./kit.toml, the user's, "
        "/etc/glmspark/kit.toml, else the built-in loopback kit.",
    )(command)


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON."
)
waive_option = click.option(
    "--waive",
    "waive",
    multiple=True,
    metavar="CHECK",
    help="Go on in spite of this check; may be repeated.",
)


warm_up_option = click.option(
    "--warm-up/--no-warm-up",
    "warm_up",
    default=None,
    help="GPU kits: send every shape that would compile in traffic first, or leave "
    "that to traffic (serve.warm_up).",
)


def tell(text: str) -> None:
    """A line on stderr; nobody has to read it."""
    with suppress(OSError, ValueError):
        click.echo(text, err=True)


def settings_of(kit: str | None, sets: tuple[str, ...]) -> Settings:
    """The settings, after naming on stderr each value that the environment set."""
    settings = load_settings(kit, sets)
    for line in settings.from_environment():
        tell(f"note: {line}")
    if settings.path is None and _has_gb10():
        tell(
            "note: this machine has a GB10 and there is no kit.toml: this is the "
            "loopback kit on the CPU; `glmspark init` sets a kit of Sparks up"
        )
    return settings


def _has_gb10() -> bool:
    from glmspark.facts import Roots, read_gpus

    try:
        return any("GB10" in name for name in read_gpus(Roots()))
    except OSError:
        return False


def print_json(data: Any) -> None:
    """``data`` on stdout as JSON with sorted keys."""
    click.echo(json.dumps(data, indent=2, sort_keys=True))
