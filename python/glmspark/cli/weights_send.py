"""``glmspark weights``: share, pull, nfs-exports, nfs-check."""

from __future__ import annotations

import json
import os
import shlex
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from glmspark.cli.weights import (
    chosen,
    json_option,
    kit_file,
    put,
    store_option,
)
from glmspark.weights import progress as bars
from glmspark.weights.progress import human_bytes
from glmspark.weights.store import Store

if TYPE_CHECKING:
    from glmspark.schema import Node as KitNode
    from glmspark.weights.puller import PullJob
    from glmspark.weights.remote import Node
    from glmspark.weights.share import NodeResult

# After the head is gone a pull gets this long to end its connections.
_GRACE_S = 3.0


def _nodes_of_kit(words: tuple[str, ...]) -> tuple[list[Node], tuple[str, ...]]:
    """The nodes of the kit that ``words`` name (all if none), and the other words."""
    from glmspark.doctor import asker, question
    from glmspark.fabrictypes import FabricFacts
    from glmspark.paths import kit_paths
    from glmspark.settings import load_settings
    from glmspark.weights import kitnodes

    kit = load_settings(kit_file(), ()).kit
    known = {node.name for node in kit.nodes}
    paths = kit_paths(kit)
    ask = asker(kit, paths)

    def look(node: KitNode) -> FabricFacts:
        arguments = question(kit, node, ()) | {"peers": []}
        return FabricFacts.from_json(ask(node, arguments)["fabric"])

    names = tuple(word for word in words if word in known)
    rest = tuple(word for word in words if word not in known)
    return kitnodes.nodes_of(kit, names, paths, look), rest


@click.command("share")
@click.argument("words", metavar="[NODE|MANIFEST]...", nargs=-1)
@click.option(
    "--to",
    "to",
    metavar="NAME=SSH_TARGET,FABRIC_ADDR[,FABRIC_ADDR]",
    multiple=True,
    help="A node by hand, with its address on each link to the head, instead of the "
    "kit's. Repeatable.",
)
@click.option("--ssh", help="The ssh command and its options, instead of ours.")
@click.option("--remote-program", help="glmspark on the nodes, if not on their PATH.")
@click.option(
    "--remote-store", default="", help="The nodes' store, if not the default."
)
@click.option(
    "--connections",
    default=4,
    type=click.IntRange(1, 64),
    show_default=True,
    help="On each link.",
)
@click.option("--no-link", is_flag=True, help="Do not build the views on the nodes.")
@store_option
@json_option
def share_command(  # noqa: PLR0913 - one for each option
    *,
    words: tuple[str, ...],
    to: tuple[str, ...],
    ssh: str | None,
    remote_program: str | None,
    remote_store: str,
    connections: int,
    no_link: bool,
    store_path: Path,
    as_json: bool,
) -> int:
    """Send the NODEs of the kit (all if none is named) what they lack of the MANIFESTs.

    Over the fabric addresses and the links of their twins. Every blob is hashed at the
    receiver before it gets its name. Nothing keeps running afterwards. A node that
    cannot be served does not keep the others waiting.
    """
    from glmspark.weights import share

    store = Store.open(store_path, create=True)
    nodes, words = (_by_hand(to), words) if to else _nodes_of_kit(words)
    if not nodes:
        put({"nodes": []}, "already: the kit is this machine alone", as_json=as_json)
        return 0
    nodes = [_with_options(node, ssh, remote_program, remote_store) for node in nodes]
    options = share.ShareOptions(connections, link=not no_link)
    started = time.monotonic()
    with bars.for_terminal() as out:
        results = share.share(store, chosen(store, words), nodes, options, out)
    seconds = time.monotonic() - started
    return _tell(results, seconds, as_json=as_json)


def _with_options(node: Node, ssh: str | None, program: str | None, store: str) -> Node:
    return replace(
        node,
        ssh=tuple(shlex.split(ssh)) if ssh else node.ssh,
        program=tuple(shlex.split(program)) if program else node.program,
        store=store or node.store,
    )


def _by_hand(to: tuple[str, ...]) -> list[Node]:
    from glmspark.weights import remote

    return [remote.parse_node(text) for text in to]


def _tell(results: list[NodeResult], seconds: float, *, as_json: bool) -> int:
    rows, lines, code = [], [], 0
    for result in results:
        row = {"node": result.node, "ok": result.error is None} | result.result
        if result.error is not None:
            row["error"] = str(result.error)
            code = code or int(result.error.exit_code)
            click.echo(f"error: [{result.node}] {result.error}", err=True)
            click.echo(f"hint: {result.error.hint}", err=True)
        else:
            size = result.result["received_bytes"]
            lines.append(
                f"{result.node}: {result.result['received']} blobs sent "
                f"({human_bytes(size)}, {human_bytes(size / max(seconds, 1e-3))}/s), "
                f"{result.result['already']} were there already"
            )
        rows.append(row)
    put({"seconds": seconds, "nodes": rows}, "\n".join(lines), as_json=as_json)
    return code


def _job_line() -> str:
    """The first line of stdin, not by sys.stdin: the watcher would hold its lock."""
    data = b""
    while not data.endswith(b"\n") and (more := os.read(0, 1 << 16)):
        data += more
    return data.decode()


def _end_with_the_head() -> None:
    """End this process once stdin ends: the head, or the ssh to it, is gone."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        time.sleep(_GRACE_S)
        os._exit(130)  # parts are safe at any point; nothing else is held

    threading.Thread(target=watch, daemon=True).start()


@click.command("pull", hidden=True)
@store_option
def pull_command(*, store_path: Path) -> int:
    """Read a job from stdin, bring in its blobs, write framed JSON to stdout."""
    from glmspark.weights import puller, share, view

    line = _job_line()
    _end_with_the_head()
    out = bars.JsonProgress()

    def run(job: PullJob) -> dict[str, Any]:
        store = Store.open(store_path, create=True)
        result = puller.pull(store, job, out).to_json()
        if job.link:
            made = [view.link(store, manifest) for manifest in job.manifests]
            result["views"] = [str(item.folder) for item in made]
        return result

    return share.serve_pull(run, out.emit, line)


@click.command("nfs-exports")
@click.option("--subnet", required=True, help="Who may mount, e.g. 192.168.100.0/24.")
@click.option("--address", required=True, help="The head's fabric address.")
@store_option
def nfs_exports_command(*, subnet: str, address: str, store_path: Path) -> None:
    """Print the line for /etc/exports and the mount command; nothing is exported."""
    from glmspark.weights import nfs

    store = Store.open(store_path)
    click.echo(nfs.exports_line(store, subnet, address))
    click.echo("on the head: add it to /etc/exports, then: sudo exportfs -ra", err=True)
    command = nfs.mount_command(address, store.root, Path("NODE_STORE/blobs"))
    click.echo(f"on each node: {command}", err=True)


@click.command("nfs-check")
@click.argument("blobs", type=click.Path(path_type=Path, exists=True))
@click.argument("word", metavar="MANIFEST")
@click.option("--subnet", required=True, help="The fabric's subnet.")
@click.option("--link", is_flag=True, help="Build the view over the mount as well.")
@store_option
def nfs_check_command(
    *, blobs: Path, word: str, subnet: str, link: bool, store_path: Path
) -> None:
    """Check that the mounted folder BLOBS can be the source of MANIFEST's weights.

    With --link BLOBS is the blobs folder of this node's store; the view is built
    without reading a byte, since the head has verified them and nobody here can write.
    """
    from glmspark.weights import nfs

    store = Store.open(store_path, create=True)
    (manifest,) = chosen(store, (word,))
    mountinfo = Path("/proc/self/mountinfo").read_text()
    found = nfs.check(blobs, manifest, subnet, mountinfo)
    if link:
        found |= {"folder": str(nfs.adopt(store, blobs, manifest).folder)}
    click.echo(json.dumps(found))
