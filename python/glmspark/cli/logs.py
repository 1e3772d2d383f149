"""``glmspark logs``: what the ranks print."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import click

from glmspark.cli.options import kit_options, settings_of
from glmspark.errors import ConfigError


@click.command(name="logs")
@kit_options
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option("--rank", type=click.IntRange(0), help="Only this rank.")
@click.option("-n", "--lines", default=50, show_default=True, help="Last lines a rank.")
@click.option("--boot", metavar="NAME", help="An earlier boot; see --list.")
@click.option("--list", "list_boots", is_flag=True, help="Name the kept boots.")
def command(  # noqa: PLR0913 - one parameter an option
    kit: str | None,
    sets: tuple[str, ...],
    *,
    follow: bool,
    rank: int | None,
    lines: int,
    boot: str | None,
    list_boots: bool,
) -> None:
    """Print the log of each rank, its lines marked with the rank's number."""
    from glmspark.boot import boot_folders
    from glmspark.paths import kit_paths

    settings = settings_of(kit, sets)
    folders = boot_folders(kit_paths(settings.kit).boots)
    if list_boots:
        for folder in folders:
            click.echo(folder.name)
        return
    folder = _pick(folders, boot)
    files = sorted(folder.glob(f"rank-{'*' if rank is None else rank}.log"))
    if not files:
        which = "any rank" if rank is None else f"rank {rank}"
        raise ConfigError(
            f"boot {folder.name} has no log of {which}",
            hint=f"cat {folder}/supervisor.log" if rank is None else "glmspark logs",
        )
    tails = [Tail(file) for file in files]
    for tail in tails:
        for line in tail.last(lines):
            click.echo(line)
    while follow:
        fresh = [line for tail in tails for line in tail.fresh()]
        for line in fresh:
            click.echo(line)
        if not fresh:
            time.sleep(0.2)


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


class Tail:
    """Reads a log as it grows; a log that was cut short is read from its start."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._rank = file.stem.removeprefix("rank-")
        self._offset = 0
        self._rest = b""

    def _marked(self, lines: list[bytes]) -> list[str]:
        return [f"[{self._rank}] {line.decode(errors='replace')}" for line in lines]

    def last(self, count: int) -> list[str]:
        """The last ``count`` whole lines."""
        return list(self.fresh())[-count:] if count > 0 else list(self.fresh())[:0]

    def fresh(self) -> Iterator[str]:
        """The whole lines that have come since the last call."""
        with self._file.open("rb") as file:
            if file.seek(0, 2) < self._offset:
                self._offset, self._rest = 0, b""
            file.seek(self._offset)
            data = self._rest + file.read()
            self._offset = file.tell()
        *lines, self._rest = data.split(b"\n")
        yield from self._marked(lines)
