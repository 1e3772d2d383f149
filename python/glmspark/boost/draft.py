"""The drafter, quantized: its linear layers as EXL3, everything else as it was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glmspark.boost import dense, layers, publish, quantizing, safetensors
from glmspark.boost.job import Job
from glmspark.boost.layers import Tensor
from glmspark.boost.names import Artifact
from glmspark.boost.quantizing import Quantizer
from glmspark.boost.work import Work
from glmspark.errors import ConfigError
from glmspark.weights import locks
from glmspark.weights.hashing import Hashes
from glmspark.weights.manifest import Manifest
from glmspark.weights.view import link


def make(job: Job, artifact: Artifact, folder: Work) -> dict[str, Any]:
    """Quantize, merge and publish it; figures of what was done."""
    source = job.source("drafter")
    base = job.manifest(f"{source.repo}@{source.revision}")
    files = publish.base_files(job.store, base, ".safetensors")
    config = publish.read_config(publish.base_files(job.store, base, ".json"), base.ref)
    tensors = safetensors.folder_tensors(files)
    table = job.table("drafter")
    kinds = dense.kinds_of(table, "build.drafter.layers")
    wanted = quantizing.wanted(list(tensors), kinds)
    rate = (float(table["bits"]), str(table.get("codebook", "mcg")))
    made_config = publish.draft_config(
        config, wanted, rate, _layers_before(config, base.ref)
    )
    job.may_begin(2 * sum(t.size for t in tensors.values()))
    errors = _quantized(job, folder, base, {n: tensors[n] for n in wanted}, rate)
    with locks.using(job.store):
        path = folder.folder / f".{publish.DRAFT_FILE}.tmp"
        hashes = _merged(path, folder, files, wanted)
        made = [
            publish.enter(folder, path, hashes, publish.DRAFT_FILE),
            publish.enter_json(folder, made_config, "config.json"),
        ]
        ends = (".safetensors", dense.INDEX)
        kept = [e for e in base.files if not e.path.endswith(ends)]
        terms = "a derivative, for your own use on your own machines; its terms hold"
        text = f"{terms}: {base.ref}: {base.license}"
        publish.publish(job.store, artifact, base.with_files(kept), made, text)
    return {
        "quantized": len(errors),
        "worst_relative_error": max(errors.values(), default=0.0),
    }


def _quantized(
    job: Job,
    folder: Work,
    base: Manifest,
    wanted: Mapping[str, Tensor],
    rate: tuple[float, str],
) -> dict[str, float]:
    """Weight -> relative error of those that were made now; all are in ``folder``."""
    quantizer = Quantizer(job.python, *rate, device=job.device, env=job.env)
    errors: dict[str, float] = {}
    here = sum(
        t.size for n, t in wanted.items() if quantizing.key_of(n) in folder.found
    )
    job.progress.begin(f"quantize {base.ref}", sum(t.size for t in wanted.values()))
    job.progress.open_file("weights", 0, here)

    def done(name: str, error: float) -> None:
        errors[name] = error
        job.progress.advance("weights", wanted[name].size)

    view = link(job.store, base).folder
    quantizing.quantize(
        folder, view, list(wanted), quantizer, watch=job.guard.during, on_done=done
    )
    return errors


def _layers_before(config: Mapping[str, Any], ref: str) -> int:
    """The target's layers, after which vLLM numbers the drafter's."""
    found = config.get("num_target_layers")
    if not isinstance(found, int) or isinstance(found, bool):
        raise ConfigError(f"{ref}: config.json has no num_target_layers")
    return found


def _merged(
    path: Path, folder: Work, files: Mapping[str, Path], wanted: list[str]
) -> Hashes:
    """One file of the drafter: quantized weights from their pieces, the rest as is."""
    replaced = set(wanted)
    rows: dict[str, tuple[Path, Tensor]] = {}
    for file, blob in sorted(files.items()):
        header = layers.describe(file, *safetensors.read_header(blob))
        rows |= {n: (blob, t) for n, t in header.items() if n not in replaced}
    for name in wanted:
        piece = folder.path(quantizing.key_of(name))
        header = layers.describe(name, *safetensors.read_header(piece))
        rows |= {n: (piece, t) for n, t in header.items()}
    with folder.disk():
        return safetensors.copy(path, rows)
