"""``glmspark profile``: the sets of serving choices that come with the tool."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

import click

from glmspark.cli.options import kit_options, settings_of, tell
from glmspark.serving.profiles import (
    Engine,
    Profile,
    difference,
    load_profile,
    own_profile_names,
    profile_names,
)


def _plain(profile: Profile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "summary": profile.summary,
        "engine": asdict(profile.engine),
        "build": profile.build,
        "transplant": profile.transplant,
        "notes": list(profile.notes),
        "measured": [asdict(row) for row in profile.measured],
    }


@click.group(name="profile")
def command() -> None:
    """List, show, compare and build profiles."""


@command.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="for programs")
def list_(*, as_json: bool) -> None:
    """Every profile with its one line."""
    names = profile_names() + own_profile_names()
    profiles = [load_profile(name) for name in names]
    if as_json:
        click.echo(json.dumps([_plain(p) for p in profiles], indent=1))
        return
    width = max(len(profile.name) for profile in profiles)
    for profile in profiles:
        click.echo(f"{profile.name:<{width}}  {profile.summary}")


@command.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="for programs")
def show(name: str, *, as_json: bool) -> None:
    """All values of one profile, its notes and what was measured."""
    profile = load_profile(name)
    if as_json:
        click.echo(json.dumps(_plain(profile), indent=1))
        return
    lines = [profile.summary, ""]
    for field in fields(Engine):
        lines.append(f"{field.name} = {getattr(profile.engine, field.name)!r}")
    for title, table in (("build", profile.build), ("transplant", profile.transplant)):
        if table:
            lines += ["", f"{title}: {json.dumps(table, indent=1)}"]
    lines += ["", *profile.notes] if profile.notes else []
    for row in profile.measured:
        lines += ["", f"{row.metric}: {row.value:g} {row.unit}"]
        lines += [f"  {row.conditions}", f"  {row.source}"]
    click.echo("\n".join(lines))


@command.command()
@click.argument("first")
@click.argument("second")
@click.option("--json", "as_json", is_flag=True, help="for programs")
def diff(first: str, second: str, *, as_json: bool) -> None:
    """Values in which two profiles differ."""
    pairs = difference(load_profile(first), load_profile(second))
    if as_json:
        click.echo(json.dumps(pairs, indent=1))
        return
    for name, (a, b) in pairs.items():
        click.echo(f"{name}: {a!r} -> {b!r}")


@command.command()
@click.argument("name")
@kit_options
@click.option("--dry-run", is_flag=True, help="Say what would be done, do nothing.")
@click.option("--json", "as_json", is_flag=True, help="for programs")
def build(
    name: str, kit: str | None, sets: tuple[str, ...], *, dry_run: bool, as_json: bool
) -> None:
    """Make the weights that a profile needs, here on the head, and say "already" after.

    Reads the kit's target, drafter, store and engine. May be run again after any
    failure: what has come is kept. Refuses beside a serving kit, and gives way to one
    that starts. The token is HF_TOKEN; HF_ENDPOINT is honoured.
    """
    from glmspark.boost import build as building
    from glmspark.boost.job import job_of
    from glmspark.weights import progress as bars

    profile = load_profile(name)
    settings = settings_of(kit, sets)
    with bars.for_terminal() as out:
        job = job_of(profile, settings.kit, out)
        if profile.build and not job.with_drafter:
            tell("note: weights.drafter is not dflash2: the drafter is not quantized")
        if dry_run:
            lines = building.steps(job)
            click.echo(json.dumps({"steps": lines}) if as_json else "\n".join(lines))
            return
        outcome = building.build(job)
    data = outcome.to_json(job.store.root)
    lines = [f"{key}: {value}" for key, value in outcome.figures.items()]
    lines += [f"{outcome.word}: {one.ref}" for one in outcome.built.parts.values()]
    click.echo(json.dumps(data, indent=1) if as_json else "\n".join(lines))
