"""The tensors of a transplant: chosen ones of a second repository, by range."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from glmspark.boost import dense, publish
from glmspark.boost.job import Job
from glmspark.boost.layers import Layer, Tensor
from glmspark.boost.names import Artifact
from glmspark.boost.target import base_tensors
from glmspark.boost.work import Work
from glmspark.errors import ConfigError, IntegrityError
from glmspark.serving.render import layer_range
from glmspark.weights import locks
from glmspark.weights.manifest import make_manifest

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.(.+)$")
Key = tuple[int, str]


def make(job: Job, artifact: Artifact, folder: Work) -> dict[str, Any]:
    """Read and publish them as a checkpoint of their own; figures of what was done."""
    table = job.table("transplant")
    own = by_key(base_tensors(job, job.manifest(job.base)))
    wanted = keys(table)
    lacking = [key for key in wanted if key not in own]
    if lacking:
        raise ConfigError(f"{job.base} has no {_words(lacking)}", hint=_HINT)
    with dense.hub_reader(job, "transplant") as reader:
        ends = tuple(f"layers.{n}.{name}" for n, name in wanted)
        given = by_key(dense.pack_tensors(reader, ends, at_end=True))
        chosen = choose(wanted, own, given, str(reader.source))
        kept = dense.bring(job, folder, reader, chosen)
    with locks.using(job.store):
        path = folder.folder / f".{publish.DRAFT_FILE}.tmp"
        hashes = dense.assemble(path, chosen, kept)
        kept.check_pin(hashes, str(table.get("sha256", "")))
        made = [publish.enter(folder, path, hashes, publish.DRAFT_FILE)]
        source = job.source("transplant")
        text = f"tensors of {source.repo}@{source.revision}; its terms hold"
        bare = make_manifest(source.repo, source.revision, [])
        publish.publish(job.store, artifact, bare, made, text)
    return {
        "donor_tensors": len(chosen),
        "donor_bytes": hashes.size,
        "donor_sha256": hashes.sha256,
        "donor_fetched_bytes": kept.fetched_bytes,
    }


_HINT = "correct transplant.layers and .tensors in your copy of the profile"


def keys(table: Mapping[str, Any]) -> list[Key]:
    """(layer, end of the name) of every tensor that a transplant replaces."""
    tensors = table.get("tensors")
    if not isinstance(tensors, list) or not tensors:
        raise ConfigError(f"transplant.tensors is {tensors!r}, needed a list of names")
    layers = layer_range(str(table.get("layers", "")))
    return [(number, str(name)) for number in layers for name in tensors]


def by_key(tensors: Mapping[str, Tensor]) -> dict[Key, tuple[str, Tensor]]:
    """(layer, end of the name) -> name and tensor.

    Two names with one key cannot be told apart by the loader: an IntegrityError.
    """
    found: dict[Key, tuple[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = _LAYER.search(name)
        if match is None:
            continue
        key = (int(match[1]), match[2])
        if key in found:
            raise IntegrityError(f"{name} and {found[key][0]} are one layer's tensor")
        found[key] = (name, tensor)
    return found


def choose(
    wanted: Iterable[Key],
    own: Mapping[Key, tuple[str, Tensor]],
    given: Mapping[Key, tuple[str, Tensor]],
    source: str,
) -> list[Layer]:
    """The donor's tensors, each of the type and shape of the one that it replaces.

    Raises ConfigError naming what the donor (called ``source``) lacks or has otherwise.
    """
    lacking = [key for key in wanted if key not in given]
    if lacking:
        raise ConfigError(f"{source} has no {_words(lacking)}", hint=_HINT)
    found = []
    for key in wanted:
        (name, theirs), (_, mine) = given[key], own[key]
        if (theirs.dtype, theirs.shape) != (mine.dtype, mine.shape):
            raise ConfigError(
                f"{source}: {name} is {theirs.dtype} {list(theirs.shape)}, the target "
                f"has {mine.dtype} {list(mine.shape)}"
            )
        found.append(Layer(name, 0, "", {name: theirs}))
    return found


def _words(lacking: list[Key]) -> str:
    shown = [f"layers.{number}.{name}" for number, name in lacking[:3]]
    more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
    return ", ".join(shown) + more
