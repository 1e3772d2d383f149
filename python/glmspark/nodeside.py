"""What runs on a node on behalf of the head; standard library alone, plain data out."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from glmspark import imageside, nixside, reach
from glmspark.fabricfacts import read_fabric
from glmspark.facts import Roots, probe
from glmspark.hostfacts import read_host
from glmspark.imageside import ImageId
from glmspark.paths import KitPaths, kit_paths


def node_paths(kit: str, folders: dict[str, str]) -> KitPaths:
    """The folders of a kit on this node, by this node's own home and XDG folders.

    ``folders`` holds state, cache, key_file and store as kit.toml has them.
    """
    view = SimpleNamespace(
        name=kit,
        paths=SimpleNamespace(state=folders["state"], cache=folders["cache"]),
        auth=SimpleNamespace(key_file=folders["key_file"]),
        weights=SimpleNamespace(store=folders["store"]),
    )
    return kit_paths(cast("Any", view))


def look(  # noqa: PLR0913 - the whole question in one message
    *,
    kit: str,
    folders: dict[str, str],
    program: Sequence[str],
    peers: Sequence[str] = (),
    ports: Sequence[int] = (),
    wanted: dict[str, Any] | None = None,
    sys: str = "/sys",
    proc: str = "/proc",
) -> dict[str, Any]:
    """Everything that the checks want to know of this node, in one answer.

    ``peers`` are the fabric addresses of the other nodes and ``ports`` the TCP ports
    that they will be asked on. ``wanted`` is the engine to look for: a store path and
    the key that may sign it, or an image. ``clock`` holds the time before and after.
    """
    began = time.time()
    paths, roots = node_paths(kit, folders), Roots(Path(proc), Path(sys))
    facts = probe(paths, program, roots).to_json()
    host = read_host(roots, paths.store, os.environ)
    return {
        "facts": facts,
        "fabric": read_fabric(roots).to_json(),
        "host": host.to_json(),
        **_engine(host.tools, wanted or {}),
        "paths": reach.look(peers, ports),
        "places": {"state": str(paths.state), "cache": str(paths.cache)},
        "clock": [began, time.time()],
    }


def _engine(tools: Mapping[str, str], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What this node has of the engine that is wanted."""
    if closure := wanted.get("closure"):
        store = nixside.look(tools.get("nix", ""), closure, wanted["key"])
        return {"store": store.to_json()}
    if image := wanted.get("image"):
        tool = imageside.pick_tool(tools, wanted["tool"])
        return {"image": imageside.look(tool, ImageId.from_json(image)).to_json()}
    return {}


def paths_to(peers: Sequence[str], ports: Sequence[int] = ()) -> list[dict[str, Any]]:
    """The paths to ``peers`` alone, for further rails."""
    return reach.look(peers, ports)


def keep_closure(
    kit: str, folders: dict[str, str], nix: str, closures: dict[str, str]
) -> str:
    """Root ``closures`` (names to store paths) for the kit; what went wrong, or ""."""
    root = node_paths(kit, folders).state / "closures"
    return nixside.keep(nix, closures, str(root))


def find_image(tool: str, image: dict[str, Any]) -> str:
    """What this node's store calls ``image`` now; "" where it lacks it.

    Raises:
        OSError: the container engine cannot be asked.
    """
    seen = imageside.look(tool, ImageId.from_json(image))
    if seen.why:
        raise OSError(seen.why)
    return seen.found
