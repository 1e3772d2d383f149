"""``glmspark report``: one redacted file that says what is going on."""

from __future__ import annotations

import time
from pathlib import Path

import click

from glmspark.cli.options import json_option, kit_options, print_json, settings_of, tell


@click.command(name="report")
@kit_options
@click.option(
    "--output", metavar="FILE", help="Default: glmspark-KIT-TIME.tar.gz here."
)
@json_option
def command(
    kit: str | None, sets: tuple[str, ...], *, output: str | None, as_json: bool
) -> None:
    """Bundle probes, plan, logs and versions; secrets and addresses are replaced.

    Nothing is sent anywhere. Look into the file before you pass it on.
    """
    from glmspark.paths import kit_paths
    from glmspark.reporting import write_report

    settings = settings_of(kit, sets)
    stamp = time.strftime("%Y%m%dT%H%M%S")
    path = Path(output or f"glmspark-{settings.kit.name}-{stamp}.tar.gz")
    names = write_report(settings, kit_paths(settings.kit), path)
    if as_json:
        print_json({"file": str(path), "parts": names})
    else:
        click.echo(str(path))
        tell(f"{len(names)} parts; look into it before you pass it on")
