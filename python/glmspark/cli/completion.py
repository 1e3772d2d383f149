"""``glmspark completion``: what a shell needs to complete the command line."""

from __future__ import annotations

import click


@click.command(name="completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script for SHELL.

    For bash: glmspark completion bash >> ~/.bashrc
    """
    from click.shell_completion import get_completion_class

    from glmspark.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - one of the choices
    click.echo(kind(cli, {}, "glmspark", "_GLMSPARK_COMPLETE").source())
