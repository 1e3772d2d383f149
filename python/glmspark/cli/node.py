"""``glmspark node``: what runs on one node; mostly called by the tool itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from glmspark.cli.options import json_option, kit_options, print_json, settings_of
from glmspark.console import table
from glmspark.errors import ExitCode, IntegrityError


@click.group(name="node")
def command() -> None:
    """Look at this node, or run its part of a kit."""


@command.command()
@kit_options
@json_option
@click.option("--sys", "sys_root", default="/sys", hidden=True)
@click.option("--proc", "proc_root", default="/proc", hidden=True)
def probe(
    kit: str | None,
    sets: tuple[str, ...],
    *,
    as_json: bool,
    sys_root: str,
    proc_root: str,
) -> None:
    """Print the facts of this node that the checks look at."""
    from glmspark.doctor import question
    from glmspark.engine import engine_paths
    from glmspark.nodeside import look
    from glmspark.paths import kit_paths

    settings = settings_of(kit, sets)
    paths = kit_paths(settings.kit)
    program = engine_paths(settings.kit, paths).program
    asked = question(settings.kit, settings.kit.nodes[0], program) | {"peers": []}
    seen = look(**asked, sys=sys_root, proc=proc_root)
    facts = {**seen["facts"], "fabric": seen["fabric"], "host": seen["host"]}
    if as_json:
        print_json(facts)
        return
    rows = [
        (name, str(line))
        for name, value in facts.items()
        for line in (value if isinstance(value, (list, tuple)) else [value])
    ]
    table(("fact", "value"), rows)


@command.command()
@click.argument("target")
@kit_options
@click.option("--fingerprint", metavar="SHA256:...", help="Keep exactly this key.")
@click.option("--yes", is_flag=True, help="Keep the key that the host shows.")
@click.option("--replace", is_flag=True, help="Replace a key that has changed.")
def trust(target: str, kit: str | None, sets: tuple[str, ...], **how: Any) -> int:
    """Show the host key of TARGET and keep it for this kit: the first contact.

    Without --yes or --fingerprint you are asked on a terminal, and nothing is kept
    elsewhere; compare with `ssh-keygen -lf` on the host's own console.
    """
    from glmspark.doctor import remote_of
    from glmspark.hostkeys import ask_key, keep
    from glmspark.paths import kit_paths
    from glmspark.schema import Node

    settings = settings_of(kit, sets)
    node = Node(name="node", ssh=target, fabric="127.0.0.1")
    remote = remote_of(settings.kit, node, kit_paths(settings.kit))
    key = ask_key(remote)
    click.echo(f"{key.names} {key.kind} {key.fingerprint}")
    agreed = how["yes"] or key.fingerprint == how["fingerprint"]
    if how["fingerprint"] and key.fingerprint != how["fingerprint"]:
        raise IntegrityError(
            f"{target} shows {key.fingerprint}, not {how['fingerprint']}",
            hint="compare it on the host's own console",
        )
    if not agreed and sys.stdin.isatty():
        agreed = click.confirm("Is this the host's fingerprint?", err=True)
    if not agreed:
        click.echo("nothing was kept; add --fingerprint SHA256:... or --yes", err=True)
        return ExitCode.PREFLIGHT
    kept = keep(remote, key, replace=how["replace"])
    click.echo("kept" if kept else "kept already", err=True)
    return ExitCode.DONE


@command.command(hidden=True)
@click.option("--boot", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--state", type=click.Path(path_type=Path), required=True)
def supervise(boot: Path, state: Path) -> int:
    """Launch and watch the ranks of one boot (internal)."""
    from glmspark.supervisor import Supervisor

    return Supervisor(boot, state).run()
