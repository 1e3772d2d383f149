"""``glmspark profile build``: everything in order, each step resumable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glmspark.boost import dense, layers, names, publish, quantizing, safetensors, work
from glmspark.boost.guard import Guard
from glmspark.boost.layers import Layer
from glmspark.boost.names import Artifact, Built
from glmspark.boost.quantizing import Quantizer
from glmspark.boost.ranges import Patience, Reader
from glmspark.boost.work import Work
from glmspark.errors import ConfigError
from glmspark.serving.profiles import Profile
from glmspark.weights import builtin, hub, locks, part
from glmspark.weights.hub import Source
from glmspark.weights.manifest import Manifest
from glmspark.weights.progress import Progress
from glmspark.weights.store import Store

# Room for config, index and the store's own small files.
_SPARE_BYTES = 256 << 20


@dataclass
class Job:
    """What to build and with what; ``python`` is the engine's."""

    profile: Profile
    base: str
    store: Store
    python: str
    guard: Guard
    progress: Progress = field(default_factory=Progress)
    with_drafter: bool = False
    patience: Patience = field(default_factory=Patience)
    device: str = "cuda"
    env: Mapping[str, str] | None = None

    @property
    def results(self) -> Built:
        """The names of what is built."""
        return names.results(self.profile, self.base, drafter=self.with_drafter)


@dataclass
class Outcome:
    """What a build did: ``word`` is built or already; figures by name."""

    word: str
    built: Built
    figures: dict[str, Any] = field(default_factory=dict)

    def to_json(self, store: Path) -> dict[str, Any]:
        """The outcome as plain data."""
        parts = {"target": self.built.target, "drafter": self.built.drafter}
        return {
            "result": self.word,
            **{
                name: {"ref": one.ref, "view": str(one.folder(store))}
                for name, one in parts.items()
                if one is not None
            },
            **self.figures,
        }


def missing(job: Job) -> list[Artifact]:
    """The results that are not in the store, the drafter first.

    The target comes last: with it the profile is built.
    """
    wanted = [job.results.drafter, job.results.target]
    return [
        one
        for one in wanted
        if one is not None and not publish.is_published(job.store, one)
    ]


def steps(job: Job) -> list[str]:
    """What ``build`` would do, a line each; nothing is asked of a network."""
    left = missing(job)
    if not left:
        return [f"already: {job.results.target.folder(job.store.root)}"]
    lines = []
    for one in left:
        folder = job.store.root / "builds" / one.address
        kept = len(list(folder.glob("[!.]*.*"))) if folder.is_dir() else 0
        part_name = "target" if one == job.results.target else "drafter"
        source = names.table(job.profile, _table(part_name))
        lines.append(
            f"{_VERB[part_name]} of {source['repository']}@{source['revision'][:12]} "
            f"({kept} pieces are here)"
        )
        lines.append(f"publish {one.ref} in {one.folder(job.store.root)}")
    return lines


_VERB = {"target": "read dense EXL3 tensors", "drafter": "quantize on the GPU weights"}


def _table(part_name: str) -> str:
    return {"target": "dense", "drafter": "drafter"}[part_name]


def build(job: Job) -> Outcome:
    """Make what is missing of the profile's results.

    Raises PreflightError beside a serving kit, without a GPU or without room,
    CommandError when a kit starts meanwhile, another build runs or the Hub fails,
    ConfigError or IntegrityError for inputs that do not fit. What has come is kept.
    """
    left = missing(job)
    if not left:
        return Outcome("already", job.results)
    figures: dict[str, Any] = {}
    job.guard.before(job.store.root, _SPARE_BYTES)
    for one in left:
        make = _target if one == job.results.target else _drafter
        with work.claimed(job.store, one.address) as folder:
            if not publish.is_published(job.store, one):
                figures |= make(job, one, folder)
        work.discard(job.store, one.address)
    return Outcome("built", job.results, figures)


def _manifest(job: Job, ref: str) -> Manifest:
    return job.store.resolve(builtin.select(job.store, ref))


def _source(table: Mapping[str, Any]) -> Source:
    return Source(str(table["repository"]), str(table["revision"]))


def _chosen(job: Job, base: Manifest, reader: Reader) -> tuple[dict[str, Any], Any]:
    """The base's configuration and tensors, with the layers that take their place."""
    table = names.table(job.profile, "dense")
    config = publish.read_config(publish.base_files(job.store, base, ".json"), base.ref)
    files = publish.base_files(job.store, base, ".safetensors")
    tensors = safetensors.folder_tensors(files)
    text = config.get("text_config", config)
    kinds = dense.kinds_of(table, "dense")
    wanted = layers.wanted(tensors, kinds, int(text["num_hidden_layers"]))
    pack = dense.pack_tensors(reader, wanted)
    return config, (tensors, layers.choose(wanted, tensors, pack, str(reader.source)))


def _target(job: Job, artifact: Artifact, folder: Work) -> dict[str, Any]:
    table = names.table(job.profile, "dense")
    base = _manifest(job, job.base)
    out = job.progress
    hub.prepare(job.store.root, stall_s=job.patience.stall_s, allow_xet=False)
    with hub.narrated(out):
        reader = Reader(_source(table), job.patience, out.note, job.guard.during)
        config, (tensors, chosen) = _chosen(job, base, reader)
        wanted = dense.pieces(chosen)
        size = sum(piece.end - piece.start for piece in wanted)
        here = sum(
            piece.end - piece.start for piece in wanted if piece.key in folder.found
        )
        job.guard.before(job.store.root, 2 * size - here + _SPARE_BYTES)
        out.begin(f"dense EXL3 tensors of {reader.source}", size)
        fetched = dense.fetch(folder, reader, wanted, lambda n: out.advance("", n))
    path = folder.folder / f".{publish.DENSE_FILE}.tmp"
    kept = dense.Bytes(folder, wanted)
    with locks.using(job.store):
        hashes = _assembled(path, chosen, kept, folder)
        dense.check_pin(hashes, str(table.get("sha256", "")), folder, wanted)
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
        "fetched_bytes": fetched,
    }


def _assembled(path: Path, chosen: list[Layer], kept: dense.Bytes, folder: Work) -> Any:
    try:
        return dense.assemble(path, chosen, kept, lambda _count: None)
    except OSError as error:
        raise part.disk_error(error, folder.store) from error


def _drafter(job: Job, artifact: Artifact, folder: Work) -> dict[str, Any]:
    table = names.table(job.profile, "drafter")
    source = _source(table)
    base = _manifest(job, f"{source.repo}@{source.revision}")
    files = publish.base_files(job.store, base, ".safetensors")
    config = publish.read_config(publish.base_files(job.store, base, ".json"), base.ref)
    tensors = safetensors.folder_tensors(files)
    wanted = quantizing.wanted(list(tensors), dense.kinds_of(table, "drafter"))
    size = sum(t.end - t.start for t in tensors.values())
    job.guard.before(job.store.root, 2 * size + _SPARE_BYTES)
    rate = (float(table["bits"]), str(table.get("codebook", "mcg")))
    quantizer = Quantizer(job.python, *rate, device=job.device, env=job.env)
    errors: dict[str, float] = {}
    out = job.progress
    out.begin(f"quantize {source}", sum(_size(tensors[n]) for n in wanted))

    def done(name: str, error: float) -> None:
        errors[name] = error
        out.advance("", _size(tensors[name]))

    view = publish.link(job.store, base).folder
    quantizing.quantize(
        folder, view, wanted, quantizer, watch=job.guard.during, on_done=done
    )
    before = _layers_before(config, base.ref)
    made_config = publish.draft_config(config, wanted, rate, before)
    with locks.using(job.store):
        path = folder.folder / f".{publish.DRAFT_FILE}.tmp"
        hashes = _merged(path, folder, files, wanted)
        made = [
            publish.enter(folder, path, hashes, publish.DRAFT_FILE),
            publish.enter_json(folder, made_config, "config.json"),
        ]
    kept = [e for e in base.files if not e.path.endswith((".safetensors", dense.INDEX))]
    publish.publish(
        job.store,
        artifact,
        base.with_files(kept),
        made,
        f"a derivative of {base.ref}, for your own use; its terms hold: {base.license}",
    )
    worst = max(errors.values(), default=0.0)
    return {"quantized": len(errors), "worst_relative_error": worst}


def _size(tensor: layers.Tensor) -> int:
    return tensor.end - tensor.start


def _layers_before(config: Mapping[str, Any], ref: str) -> int:
    """The target's layers, after which vLLM numbers the drafter's."""
    found = config.get("num_target_layers")
    if not isinstance(found, int) or isinstance(found, bool):
        raise ConfigError(f"{ref}: config.json has no num_target_layers")
    return found


def _merged(
    path: Path, folder: Work, files: Mapping[str, Path], wanted: list[str]
) -> Any:
    """One file of the drafter: quantized weights from their pieces, the rest as is."""
    replaced = set(wanted)
    rows: dict[str, tuple[Path, layers.Tensor]] = {}
    for file, blob in sorted(files.items()):
        header = layers.describe(file, *safetensors.read_header(blob))
        rows |= {n: (blob, t) for n, t in header.items() if n not in replaced}
    for name in wanted:
        piece = folder.path(quantizing.key_of(name))
        header = layers.describe(name, *safetensors.read_header(piece))
        rows |= {n: (piece, t) for n, t in header.items()}
    try:
        return safetensors.copy(path, rows)
    except OSError as error:
        raise part.disk_error(error, folder.store) from error
