"""``glmspark profile build``: everything in order, each step resumable."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glmspark.boost import donor, draft, publish, target, work
from glmspark.boost.job import Job
from glmspark.boost.names import Artifact, Built


@dataclass
class Outcome:
    """What a build did: ``word`` is built or already; figures by name."""

    word: str
    built: Built
    figures: dict[str, Any] = field(default_factory=dict)

    def to_json(self, store: Path) -> dict[str, Any]:
        """The outcome as plain data."""
        parts = {
            name: {"ref": one.ref, "view": str(one.folder(store))}
            for name, one in self.built.parts.items()
        }
        return {"result": self.word, **parts, **self.figures}


def missing(job: Job) -> dict[str, Artifact]:
    """The results that are not in the store, in the order in which they are made."""
    return {
        name: one
        for name, one in job.results.parts.items()
        if not publish.is_published(job.store, one)
    }


def steps(job: Job) -> list[str]:
    """What ``build`` would do, a line each; nothing is asked of a network."""
    lines = []
    for name, one in job.results.parts.items():
        if publish.is_published(job.store, one):
            lines.append(f"already: {one.folder(job.store.root)}")
            continue
        folder = job.store.root / "builds" / one.address
        kept = len(list(folder.glob("[!.]*.*"))) if folder.is_dir() else 0
        verb, part_of = _VERB[name]
        source = job.source(part_of)
        lines.append(f"{verb} of {source} ({kept} pieces are here)")
        lines.append(f"publish {one.ref} in {one.folder(job.store.root)}")
    return lines


_VERB = {
    "target": ("read dense EXL3 tensors", "dense"),
    "drafter": ("quantize on the GPU weights", "drafter"),
    "donor": ("read the transplant's tensors", "transplant"),
}


def build(job: Job) -> Outcome:
    """Make what is missing of the profile's results.

    Raises PreflightError beside a serving kit, without room and, for the drafter,
    without a GPU; CommandError when a kit starts meanwhile, another build runs or the
    Hub fails; ConfigError or IntegrityError for inputs that do not fit. What has come
    is kept.
    """
    left = missing(job)
    makers = {"target": target.make, "drafter": draft.make, "donor": donor.make}
    figures: dict[str, Any] = {}
    job.needs_gpu = "drafter" in left
    if left:
        job.may_begin(0)
    for name, one in left.items():
        with work.claimed(job.store, one.address) as folder:
            if not publish.is_published(job.store, one):
                figures |= makers[name](job, one, folder)
        work.discard(job.store, one.address)
    return Outcome("built" if left else "already", job.results, figures)
