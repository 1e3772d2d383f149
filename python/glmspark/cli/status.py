"""``glmspark status``."""

from __future__ import annotations

import click

from glmspark.cli.options import json_option, kit_options, print_json, settings_of
from glmspark.errors import ExitCode


@click.command(name="status")
@kit_options
@json_option
def command(kit: str | None, sets: tuple[str, ...], as_json: bool) -> int:  # noqa: FBT001
    """Say what the kit does: phase, ranks, memory. Exit status 6 unless it serves."""
    from glmspark.boot import Api, read_state
    from glmspark.paths import kit_paths
    from glmspark.plan import api_url
    from glmspark.status import read_status

    settings = settings_of(kit, sets)
    paths = kit_paths(settings.kit)
    serve = settings.kit.serve
    state = read_state(paths.state_file)
    configured = Api(serve.host, serve.port, serve.name, api_url(settings.kit), "")
    api = state.api if state is not None and state.url else configured
    status = read_status(settings.kit, paths, state, api)
    if as_json:
        print_json(status.to_json())
    else:
        click.echo("\n".join(lines(status)))
    return ExitCode.DONE if status.serves else ExitCode.NOT_READY


def lines(status: object) -> list[str]:
    """The status for people."""
    from glmspark.status import Status

    assert isinstance(status, Status)  # noqa: S101 - imported late for start-up time
    out = [f"{status.kit}: {status.phase}"]
    if status.phase == "serving":
        out[0] += f" for {_span(status.uptime_s)}"
        out.append(f"  {status.model} on {status.url}")
        if not status.healthy:
            out.append("  the API does not answer /health")
    for one in status.ranks:
        size = one.pss_bytes / (1 << 30)
        pids = " ".join(str(pid) for pid in one.pids)
        out.append(f"  rank {one.rank} on {one.node}: {size:.2f} GiB, pid {pids}")
    if status.failure:
        out.append(f"  {status.failure}")
    if status.hint:
        out.append(f"  hint: {status.hint}")
    return out


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
