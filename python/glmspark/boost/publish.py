"""The results as manifests and views: config.json, index, and the shared files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from glmspark.boost.layers import Layer, Tensor
from glmspark.boost.names import Artifact
from glmspark.boost.work import Work
from glmspark.errors import ConfigError
from glmspark.weights import hashing
from glmspark.weights.files import disk_error
from glmspark.weights.hashing import Hashes
from glmspark.weights.manifest import FileEntry, Manifest, Mirror, make_manifest
from glmspark.weights.store import Store
from glmspark.weights.view import View, link

DENSE_FILE = "glmspark-dense-exl3.safetensors"
DRAFT_FILE = "model.safetensors"


def target_config(base: Mapping[str, Any], chosen: Iterable[Layer]) -> dict[str, Any]:
    """config.json of the target: the base's, and which linear layers are EXL3.

    ``native_weights`` tells the plugin that the base's files still hold the bf16
    weights of these layers, which are to be left out.
    """
    own = base.get("quantization_config")
    if not isinstance(own, Mapping) or own.get("quant_method") != "exl3":
        raise ConfigError(
            "the target's config.json has no quantization_config of quant_method exl3, "
            "and the dense tensors are put beside EXL3 experts"
        )
    if own.get("non_routed_exl3"):
        raise ConfigError("the target's config.json lists dense EXL3 layers already")
    rows = {c.name: {"bits": c.bits, "codebook": c.codebook} for c in chosen}
    block = {"layers": rows, "native_weights": "ignored"}
    return {**base, "quantization_config": {**own, "non_routed_exl3": block}}


def draft_config(
    base: Mapping[str, Any], names: Iterable[str], rate: tuple[float, str], target: int
) -> dict[str, Any]:
    """config.json of the quantized drafter.

    vLLM numbers the drafter's layers after the target's ``target`` layers and fuses
    q, k, v and gate, up, so that each layer is listed under every name that it goes by.
    """
    if base.get("quantization_config"):
        raise ConfigError("the drafter is quantized already")
    bits, codebook = rate
    listed: dict[str, None] = {}
    for name in names:
        layer = name.removesuffix(".weight")
        listed |= dict.fromkeys(_spellings(layer, target))
    block = {"layers": sorted(listed)}
    quantization = {
        "quant_method": "exl3",
        "bits": bits,
        "codebook": codebook,
        "non_routed_exl3": block,
    }
    return {**base, "quantization_config": quantization}


def _spellings(layer: str, target: int) -> list[str]:
    head, _, rest = layer.rpartition("layers.")
    number, _, kind = rest.partition(".")
    fused = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj"}
    fused |= {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}
    parent, _, leaf = kind.rpartition(".")
    kinds = {kind, f"{parent}.{fused.get(leaf, leaf)}"}
    numbers, heads = {int(number), int(number) + target}, {head, "model."}
    return [f"{h}layers.{n}.{k}" for h in heads for n in numbers for k in kinds]


def target_index(base: Mapping[str, Tensor], chosen: Iterable[Layer]) -> dict[str, Any]:
    """The index: the base's tensors without those that are replaced, and the new."""
    layers = list(chosen)
    gone = {f"{layer.name}.weight" for layer in layers}
    kept = {name: t for name, t in base.items() if name not in gone}
    new = {name: t for layer in layers for name, t in layer.tensors.items()}
    total = sum(t.end - t.start for t in (*kept.values(), *new.values()))
    where = {name: t.file for name, t in kept.items()} | dict.fromkeys(new, DENSE_FILE)
    return {
        "metadata": {"total_size": total},
        "weight_map": dict(sorted(where.items())),
    }


def enter(work: Work, path: Path, hashes: Hashes, name: str) -> FileEntry:
    """Make the work file ``path`` a blob; its entry, under ``name`` in the view."""
    store = work.store
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        store.enter(path, fd, hashes, private=True)
    except OSError as error:
        raise disk_error(error, store.root) from error
    finally:
        os.close(fd)
    # Pinned: the place that it comes from is this build, and no Hub has it.
    return FileEntry(name, hashes.size, hashes.sha256, pinned=True)


def enter_json(work: Work, data: Mapping[str, Any], name: str) -> FileEntry:
    """Make ``data`` a blob, as the JSON file ``name``."""
    path = work.folder / f".{name}.tmp"
    try:
        path.write_text(json.dumps(data, indent=1) + "\n")
    except OSError as error:
        raise disk_error(error, work.store.root) from error
    return enter(work, path, hashing.hash_file(path), name)


def publish(
    store: Store, artifact: Artifact, base: Manifest, made: list[FileEntry], text: str
) -> View:
    """Register the result and link its view: from now on it is built.

    Files of ``base`` that ``made`` does not replace are shared with it, byte for byte
    the same blobs; ``text`` is its licence. The manifest comes by one rename.
    """
    hidden = {entry.path for entry in made}
    kept = [e for e in base.files if e.path not in hidden and not e.pinned]
    kept += [
        replace(e, pinned=True) for e in base.files if e.pinned and e.path not in hidden
    ]
    mirrors = (Mirror(base.repo, base.revision, "the files that were not built"),)
    manifest = make_manifest(
        artifact.repo,
        artifact.revision,
        [*kept, *made],
        mirrors=(*mirrors, *base.mirrors),
        license=text,
    )
    return link(store, manifest)


def is_published(store: Store, artifact: Artifact) -> bool:
    """Whether the result is in the store, whole."""
    found = store.manifests().get(artifact.view)
    return (
        found is not None
        and found.revision == artifact.revision
        and not store.missing(found)
        and artifact.folder(store.root).is_dir()
    )


def base_files(store: Store, base: Manifest, ends: str) -> dict[str, Path]:
    """Path in the repository -> blob of the files of ``base`` that end in ``ends``.

    Raises ConfigError if some file of it is not in the store.
    """
    missing = store.missing(base)
    if missing:
        raise ConfigError(
            f"{base.ref} lacks {len(missing)} of {len(base.files)} files in "
            f"{store.root}",
            hint=f"glmspark weights fetch {base.ref}",
        )
    files = store.resolve(base).files
    return {e.path: store.blob_path(e.sha256) for e in files if e.path.endswith(ends)}


def read_config(files: Mapping[str, Path], ref: str) -> dict[str, Any]:
    """The config.json among ``files``; ConfigError where it is absent or no object."""
    path = files.get("config.json")
    try:
        found = json.loads(path.read_text()) if path is not None else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{ref} has no readable config.json")
    return found
