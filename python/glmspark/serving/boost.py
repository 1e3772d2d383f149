"""The speed-boost build as a plan: its address, what is left to do, when it may run.

Pure; ``glmspark.boost`` carries it out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from glmspark.errors import ConfigError, PreflightError

# Bytes between two wanted ranges that are cheaper to read than to skip: one request
# costs about as much as 4 MiB at 40 MB/s.
MERGE_GAP_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Inputs:
    """All that decides a result: the build table, the quantizer, what it is put upon.

    ``base`` is the REPOSITORY@REVISION whose tensors are replaced, empty for none.
    """

    build: Mapping[str, Any]
    quantizer: str
    base: str = ""

    @property
    def address(self) -> str:
        """64 hex digits: the name of the result, equal exactly for equal inputs."""
        text = json.dumps(
            {"build": self.build, "quantizer": self.quantizer, "base": self.base},
            sort_keys=True,
            separators=(",", ":"),
        )
        return hashlib.sha256(text.encode()).hexdigest()


def check_inputs(inputs: Inputs) -> None:
    """Raises ConfigError unless every source is pinned and the device is CUDA."""
    for name, step in inputs.build.items():
        revision = str(step.get("revision", ""))
        if len(revision) != 40 or not set(revision) <= set("0123456789abcdef"):
            raise ConfigError(
                f"build.{name}.revision is '{revision}', not 40 hex digits: a branch "
                "would make another result under the same name"
            )
        if step.get("device", "cuda") != "cuda":
            raise ConfigError(
                f"build.{name}.device is '{step['device']}': quantizing on the head's "
                "CPU takes days and its memory from the host"
            )


@dataclass(frozen=True)
class HeadState:
    """The head as probed just before the build: ranks that serve, its GPU, its disk."""

    name: str
    serving_ranks: int
    has_cuda: bool
    disk_free_bytes: int


def check_may_build(head: HeadState, needed_bytes: int) -> None:
    """Raises PreflightError beside a serving kit, without CUDA, or without room."""
    if head.serving_ranks:
        raise PreflightError(
            f"{head.serving_ranks} ranks serve, and the build needs their memory",
            hint="glmspark stop",
            node=head.name,
        )
    if not head.has_cuda:
        raise PreflightError(
            "no CUDA device here, and the drafter is quantized on a GPU only",
            hint="run it on the kit's head",
            node=head.name,
        )
    if head.disk_free_bytes < needed_bytes:
        short = (needed_bytes - head.disk_free_bytes) / 2**30
        raise PreflightError(
            f"the build needs {needed_bytes / 2**30:.1f} GiB of disk, {short:.1f} GiB "
            "are missing",
            hint="glmspark weights gc",
            node=head.name,
        )


def remaining(wanted: Iterable[str], finished: Mapping[str, str]) -> list[str]:
    """Tensors still to make, in order; ``finished`` maps a name to its file's sha256.

    A name whose recorded hash is no sha256 counts as unfinished.
    """
    return [name for name in wanted if len(finished.get(name, "")) != 64]


@dataclass(frozen=True)
class Range:
    """Bytes ``start`` to ``end`` (exclusive) of a file, and the tensors inside."""

    start: int
    end: int
    tensors: tuple[str, ...]


def byte_ranges(
    header: Mapping[str, Any], data_start: int, wanted: Iterable[str]
) -> list[Range]:
    """Ranges of one safetensors file with the ``wanted`` tensors, near ones merged.

    ``header`` is the file's JSON header, ``data_start`` 8 + its length. Raises
    ConfigError for a tensor that the file does not have.
    """
    spans = []
    for name in wanted:
        entry = header.get(name)
        if entry is None:
            raise ConfigError(f"the source file has no tensor '{name}'")
        low, high = entry["data_offsets"]
        spans.append((data_start + low, data_start + high, name))
    merged: list[Range] = []
    for start, end, name in sorted(spans):
        last = merged[-1] if merged else None
        if last and start - last.end <= MERGE_GAP_BYTES:
            merged[-1] = Range(last.start, max(last.end, end), (*last.tensors, name))
        else:
            merged.append(Range(start, end, (name,)))
    return merged
