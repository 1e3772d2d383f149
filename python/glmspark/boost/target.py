"""The target with dense EXL3 tensors: its own files, one more, config and index."""

from __future__ import annotations

from typing import Any

from glmspark.boost import dense, layers, publish, safetensors
from glmspark.boost.job import Job
from glmspark.boost.layers import Layer, Tensor
from glmspark.boost.names import Artifact
from glmspark.boost.ranges import Reader
from glmspark.boost.work import Work
from glmspark.errors import ConfigError
from glmspark.weights import locks
from glmspark.weights.manifest import Manifest


def make(job: Job, artifact: Artifact, folder: Work) -> dict[str, Any]:
    """Read, assemble and publish it; figures of what was done."""
    base = job.manifest(job.base)
    config = publish.read_config(publish.base_files(job.store, base, ".json"), base.ref)
    tensors = base_tensors(job, base)
    with dense.hub_reader(job, "dense") as reader:
        chosen = _chosen(job, config, tensors, reader)
        kept = dense.bring(job, folder, reader, chosen)
    with locks.using(job.store):
        path = folder.folder / f".{publish.DENSE_FILE}.tmp"
        hashes = dense.assemble(path, chosen, kept)
        kept.check_pin(hashes, str(job.table("dense").get("sha256", "")))
        made = [
            publish.enter(folder, path, hashes, publish.DENSE_FILE),
            publish.enter_json(
                folder, publish.target_config(config, chosen), "config.json"
            ),
            publish.enter_json(
                folder, publish.target_index(tensors, chosen), dense.INDEX
            ),
        ]
        publish.publish(job.store, artifact, base, made, base.license)
    return {
        "dense_layers": len(chosen),
        "dense_bytes": hashes.size,
        "dense_sha256": hashes.sha256,
        "fetched_bytes": kept.fetched_bytes,
    }


def base_tensors(job: Job, base: Manifest) -> dict[str, Tensor]:
    """Name -> tensor of the target, from the headers of its files in the store."""
    files = publish.base_files(job.store, base, ".safetensors")
    return safetensors.folder_tensors(files)


def _chosen(
    job: Job, config: dict[str, Any], tensors: dict[str, Tensor], reader: Reader
) -> list[Layer]:
    text = config.get("text_config", config)
    count = text.get("num_hidden_layers")
    if not isinstance(count, int):
        raise ConfigError(f"{job.base}: config.json has no num_hidden_layers")
    kinds = dense.kinds_of(job.table("dense"), "build.dense.layers")
    wanted = layers.wanted(tensors, kinds, count)
    pack = dense.pack_tensors(reader, [f"{name}." for name in wanted])
    return layers.choose(wanted, tensors, pack, str(reader.source))
