"""``glmspark weights``: the group, and what its commands share."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from glmspark.cli import LazyGroup
from glmspark.errors import ConfigError

if TYPE_CHECKING:
    from glmspark.weights.manifest import Manifest
    from glmspark.weights.store import Store

F = TypeVar("F", bound=Callable[..., Any])

_KIT = "glmspark.weights.kit"
STORE_VARIABLE = "GLMSPARK_WEIGHTS_STORE"

_COMMANDS = {
    "lock": ("weights_get", "Ask the Hub what REPO[@REV] holds and write its lock."),
    "fetch": ("weights_get", "Bring missing blobs from the Hub."),
    "import": ("weights_get", "Take what a cache, folder or bundle already holds."),
    "export": ("weights_get", "Write a bundle for machines without a network."),
    "apply": ("weights_get", "Bring in a bundle, all of it or nothing."),
    "verify": ("weights_keep", "Check blobs by stat, or by every byte (--deep)."),
    "link": ("weights_keep", "Build the view that vLLM opens."),
    "list": ("weights_keep", "Say what is there and what is missing."),
    "pin": ("weights_keep", "Place a file of your own in a view, by hash."),
    "forget": ("weights_keep", "Drop a manifest; gc then takes its blobs."),
    "gc": ("weights_keep", "Remove what no manifest and no running rank needs."),
    "share": ("weights_send", "Send the nodes what they lack, over the fabric."),
    "pull": ("weights_send", "The node's side of share; run by it over ssh."),
    "nfs-exports": ("weights_send", "Print the exports line for the blobs alone."),
    "nfs-check": ("weights_send", "Check a mount that is to be the source."),
}


class _WeightsGroup(LazyGroup):
    """Several commands live in one module, each under its name with a low line."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of that name, imported now; None where there is none."""
        if cmd_name not in self.table:
            return None
        module = importlib.import_module(f"glmspark.cli.{self.table[cmd_name][0]}")
        found: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        return found


@click.group("weights", cls=_WeightsGroup, table=_COMMANDS)
def command() -> None:
    """Fetch, verify, share and carry the weights.

    A MANIFEST is `target`, `drafter`, a name from `list`, REPO[@REVISION], or a lock
    file. Where none is named, the ones in the store are meant; in an empty store,
    target and drafter.
    """


def kit_option(function: F) -> F:
    """Add ``--kit``; :func:`default_store` and :func:`kit_file` look at it."""

    def keep(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
        ctx.meta[_KIT] = value

    option = click.option(
        "--kit",
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=keep,
        help="The kit.toml that names the store; found as for `start`.",
    )
    return option(function)


def kit_file() -> str | None:
    """What ``--kit`` names, if it was given."""
    named: str | None = click.get_current_context().meta.get(_KIT)
    return named


def default_store() -> Path:
    """The store's folder where --store names none: the environment's, the kit's, ours.

    The same order as for every setting; of the kit only this one word is looked at.
    """
    from glmspark.kitfile import find_kit, read_toml
    from glmspark.paths import expand

    if named := os.environ.get(STORE_VARIABLE):
        return expand(named, STORE_VARIABLE)
    path = find_kit(kit_file(), os.environ)
    table = read_toml(path)[1].get("weights", {}) if path else {}
    text = table.get("store", "") if isinstance(table, dict) else ""
    if not isinstance(text, str):
        raise ConfigError(
            f"{path}: weights.store is {text!r}, which is no path",
            hint=f"glmspark config check {path}",
        )
    return expand(text or "~/.local/share/glmspark/store", "weights.store")


def store_option(function: F) -> F:
    """Add ``--store`` and ``--kit``; the function gets ``store_path``."""
    option = click.option(
        "--store",
        "store_path",
        type=click.Path(path_type=Path, file_okay=False),
        default=default_store,
        show_default="$GLMSPARK_WEIGHTS_STORE, the kit's weights.store, or "
        "~/.local/share/glmspark/store",
        help="The folder of the store.",
    )
    return option(kit_option(function))


def json_option(function: F) -> F:
    """Add ``--json``; the function gets ``as_json``."""
    option = click.option(
        "--json", "as_json", is_flag=True, help="Print the result as JSON."
    )
    return option(function)


def manifests_argument(function: F) -> F:
    """Add ``[MANIFEST]...``; the function gets ``words``."""
    return click.argument("words", metavar="[MANIFEST]...", nargs=-1)(function)


def chosen(store: Store, words: tuple[str, ...]) -> list[Manifest]:
    """The manifests that ``words`` mean; all of the store, or the shipped, if none."""
    from glmspark.weights import builtin

    if words:
        return [store.resolve(builtin.select(store, word)) for word in words]
    return list(store.manifests().values()) or list(builtin.builtins().values())


def put(data: Any, text: str, *, as_json: bool) -> None:
    """The result on stdout: ``data`` as JSON or ``text``."""
    click.echo(json.dumps(data, indent=1) if as_json else text)
