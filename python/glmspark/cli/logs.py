"""``glmspark logs``: what the ranks print."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from glmspark.cli.options import kit_options, settings_of
from glmspark.errors import ConfigError

if TYPE_CHECKING:
    from glmspark.logread import Tail


@click.command(name="logs")
@kit_options
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option("--rank", type=click.IntRange(0), help="Only this rank.")
@click.option("--node", metavar="NAME", help="Only the ranks of this node.")
@click.option("--since", metavar="TIME", help="From then on: 10m, 2h, 14:30, a date.")
@click.option("-n", "--lines", default=50, show_default=True, help="Last lines a rank.")
@click.option("--boot", metavar="NAME", help="An earlier boot; see --list.")
@click.option("--list", "list_boots", is_flag=True, help="Name the kept boots.")
def command(kit: str | None, sets: tuple[str, ...], **how: Any) -> None:
    """Print the logs of all ranks in the order of time, each line with its rank.

    Times of other nodes are set right by how far their clocks are off; a line without
    a time stays with the one before it.
    """
    from glmspark.boot import boot_folders
    from glmspark.logread import merge, parse_since
    from glmspark.paths import kit_paths

    settings = settings_of(kit, sets)
    folders = boot_folders(kit_paths(settings.kit).boots)
    if how["list_boots"]:
        for folder in folders:
            click.echo(folder.name)
        return
    since_s = parse_since(how["since"], time.time()) if how["since"] else None
    wanted = ranks_of(settings.kit, how["node"], how["rank"])
    tails = open_tails(_pick(folders, how["boot"]), wanted)
    count = how["lines"]

    def first(tail: Tail) -> list[Any]:
        entries = tail.fresh()
        if since_s is not None:
            return [one for one in entries if one.when_s >= since_s]
        return entries[-count:] if count > 0 else []

    for one in merge(first(tail) for tail in tails):
        click.echo(one.shown())
    while how["follow"]:
        fresh = list(merge([tail.fresh() for tail in tails]))
        for one in fresh:
            click.echo(one.shown())
        if not fresh:
            time.sleep(0.2)


def ranks_of(kit: Any, node: str | None, rank: int | None) -> set[int]:
    """The ranks that are asked for.

    Raises:
        ConfigError: the kit has no such node.
    """
    names = [one.name for one in kit.nodes]
    if node is not None and node not in names:
        raise ConfigError(
            f"kit {kit.name} has no node {node}", hint=f"nodes: {', '.join(names)}"
        )
    return {
        number
        for number, name in enumerate(names)
        if node in {None, name} and rank in {None, number}
    }


def open_tails(folder: Path, wanted: set[int]) -> list[Tail]:
    """The logs of the wanted ranks of the boot in ``folder``.

    Raises:
        ConfigError: there is none of them.
    """
    from glmspark.logread import Tail

    tails = [Tail(file) for file in sorted(folder.glob("rank-*.log"))]
    found = [tail for tail in tails if tail.rank in wanted]
    if not found:
        which = f"rank {min(wanted)}" if len(wanted) == 1 else "these ranks"
        raise ConfigError(
            f"boot {folder.name} has no log of {which}",
            hint=f"cat {folder}/supervisor.log",
        )
    return found


def _pick(folders: list[Path], boot: str | None) -> Path:
    if boot is not None:
        folders = [folder for folder in folders if folder.name == boot]
    if not folders:
        what = f"boot {boot}" if boot else "a boot"
        raise ConfigError(
            f"there is no log of {what} of this kit",
            hint="glmspark logs --list" if boot else "glmspark start",
        )
    return folders[-1]
