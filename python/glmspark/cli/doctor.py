"""``glmspark doctor``: look at every node of the kit and say what is in the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from glmspark.cli.options import (
    json_option,
    kit_options,
    print_json,
    settings_of,
    waive_option,
)
from glmspark.errors import ExitCode, GlmSparkError


@click.command(name="doctor")
@kit_options
@waive_option
@json_option
def command(
    kit: str | None, sets: tuple[str, ...], *, waive: tuple[str, ...], as_json: bool
) -> int:
    """Look at all nodes at once; nothing is changed. Exit status 4: a start would fail.

    A finding that does not apply can be waived by its name: --waive fabric.mtu.
    """
    from glmspark.bringing import wanted_of
    from glmspark.doctor import asker, examine
    from glmspark.ending import boot_names
    from glmspark.engine import engine_paths
    from glmspark.nodesmemory import remembering
    from glmspark.paths import kit_paths
    from glmspark.preflight import check_waivers
    from glmspark.views import ANYTHING

    check_waivers(waive)
    settings = settings_of(kit, sets)
    paths = kit_paths(settings.kit)
    program = engine_paths(settings.kit, paths).program
    boots = boot_names(paths)
    ask, wanted = remembering(asker(settings.kit, paths), paths), ANYTHING
    extra: tuple[Any, ...] = ()
    try:
        wanted = wanted_of(settings.kit, paths, program)
    except GlmSparkError as error:  # the rest can be looked at all the same
        extra = (no_engine(settings.kit, error),)
    seen = examine(settings.kit, ask, program, boots, wanted=wanted)
    seen = replace(seen, findings=(*seen.findings, *extra))
    open_ = [one for one in seen.errors if one.check not in waive]
    if as_json:
        print_json(report(seen, waive))
    else:
        click.echo("\n".join(lines(seen, waive)))
    return ExitCode.PREFLIGHT if open_ else ExitCode.DONE


def no_engine(kit: Any, error: GlmSparkError) -> Any:
    """The finding that the kit names no engine that could be brought."""
    from glmspark.preflight import Finding

    check = "engine.image" if kit.runtime.value == "oci" else "engine.closure"
    needed = f"an engine that runtime = {kit.runtime} can bring"
    return Finding(check, kit.nodes[0].name, str(error), needed, error.hint)


def report(seen: Any, waive: tuple[str, ...]) -> dict[str, Any]:
    """The examination as plain data."""
    findings = [
        {**one.to_json(), "waived": one.check in waive, "waiver": _waiver(one)}
        for one in seen.findings
    ]
    nodes = {
        view.name: {
            "facts": view.facts.to_json(),
            "fabric": view.fabric.to_json(),
            "host": view.host.to_json(),
            "clock_ahead_s": list(view.skew_s),
        }
        for view in seen.views
    }
    return {"findings": findings, "nodes": nodes}


def _waiver(finding: Any) -> str:
    return f"--waive {finding.check}"


def lines(seen: Any, waive: tuple[str, ...]) -> list[str]:
    """The examination for people: errors first, each with what mends it."""
    order = {"error": 0, "warning": 1, "advice": 2}
    out: list[str] = []
    for one in sorted(seen.findings, key=lambda one: order[one.severity]):
        word = "waived" if one.check in waive else one.severity
        out.append(f"{word}: {one.line()}")
        out.append(f"    mend: {one.remedy}")
        if one.severity == "error" and one.check not in waive:
            out.append(f"    or go on all the same: {_waiver(one)}")
    names = ", ".join(view.name for view in seen.views) or "no node"
    count = sum(1 for one in seen.errors if one.check not in waive)
    verdict = "nothing in the way" if not count else f"{count} in the way of a start"
    return [*out, f"looked at {names}: {verdict}"]
