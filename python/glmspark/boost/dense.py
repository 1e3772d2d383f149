"""The dense EXL3 tensors: found in the pack, read by range, put into one file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from glmspark.boost import layers, safetensors
from glmspark.boost.job import Job
from glmspark.boost.layers import MARKERS, Layer, Tensor
from glmspark.boost.ranges import Reader
from glmspark.boost.work import Work
from glmspark.errors import ConfigError, IntegrityError
from glmspark.serving.boost import byte_ranges
from glmspark.weights import hashing, hub
from glmspark.weights.hashing import Hashes

INDEX = "model.safetensors.index.json"
# A kill loses one piece of each of the workers; a request costs a few per cent of it.
PIECE_BYTES = 16 << 20
WORKERS = 4


@dataclass(frozen=True)
class Piece:
    """Bytes [start, end) of a file of the pack, read by one request and kept."""

    file: str
    start: int
    end: int

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.end - self.start

    @property
    def key(self) -> str:
        """Its name in the work folder."""
        name = hashlib.sha256(self.file.encode()).hexdigest()[:12]
        return f"range-{name}-{self.start}-{self.end}"


@contextmanager
def hub_reader(job: Job, part_of: str) -> Iterator[Reader]:
    """A reader of the repository that the profile's table ``part_of`` names."""
    out, patience = job.progress, job.patience
    hub.prepare(job.store.root, stall_s=patience.stall_s, allow_xet=False)
    with hub.narrated(out):
        yield Reader(job.source(part_of), patience, out.note, job.guard.during)


def pack_tensors(
    reader: Reader, marks: Sequence[str], *, at_end: bool = False
) -> dict[str, Tensor]:
    """The tensors of the files in which some name begins (or ends) with a mark.

    Names that only the index knows come without a type: for an error to tell.
    """
    try:
        index = json.loads(reader.text(INDEX))["weight_map"]
        where = {str(name): str(file) for name, file in index.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(f"{INDEX} of {reader.source} is no index") from error
    ends = tuple(marks)
    asked = [n for n in where if (n.endswith(ends) if at_end else n.startswith(ends))]
    found: dict[str, Tensor] = {}
    for file in sorted({where[name] for name in asked}):
        found |= layers.describe(file, *reader.header(file))
    named = set(asked)
    unseen = (n for n in where if n not in found and n not in named)
    return found | {name: Tensor(where[name], "", (), 0, 0) for name in unseen}


def bring(job: Job, work: Work, reader: Reader, chosen: list[Layer]) -> Bytes:
    """The bytes of the ``chosen`` layers, read where ``work`` does not hold them."""
    wanted = pieces(chosen)
    size = sum(piece.size for piece in wanted)
    here = sum(piece.size for piece in wanted if piece.key in work.found)
    job.may_begin(2 * size - here)
    out = job.progress
    out.begin(f"tensors of {reader.source}", size)
    out.open_file("ranges", 0, here)
    fetched = fetch(work, reader, wanted, lambda count: out.advance("ranges", count))
    return Bytes(work, wanted, fetched)


def pieces(chosen: list[Layer]) -> list[Piece]:
    """What to read for the ``chosen`` layers: near ranges merged, long ones cut."""
    by_file: dict[str, dict[str, dict[str, tuple[int, int]]]] = {}
    for layer in chosen:
        for name, tensor in layer.tensors.items():
            entry = {"data_offsets": (tensor.start, tensor.end)}
            by_file.setdefault(tensor.file, {})[name] = entry
    found = []
    for file, entries in sorted(by_file.items()):
        for span in byte_ranges(entries, 0, entries):
            for start in range(span.start, span.end, PIECE_BYTES):
                found.append(Piece(file, start, min(start + PIECE_BYTES, span.end)))
    return found


def fetch(
    work: Work, reader: Reader, wanted: list[Piece], advance: Callable[[int], None]
) -> int:
    """Bring in the pieces that ``work`` lacks or holds damaged; their bytes."""
    left = [piece for piece in wanted if not work.check(piece.key)]
    stopped: list[bool] = []

    def one(piece: Piece) -> None:
        if not stopped:
            work.put(piece.key, reader.read(piece.file, piece.start, piece.end))
            advance(piece.size)

    hashing.parallel(one, left, WORKERS, on_error=lambda: stopped.append(True))
    return sum(piece.size for piece in left)


class Bytes:
    """The kept pieces as one address space per file; each is hashed when it is read.

    ``fetched_bytes`` of them came now.
    """

    def __init__(self, work: Work, kept: list[Piece], fetched_bytes: int) -> None:
        self.work = work
        self.kept = kept
        self.fetched_bytes = fetched_bytes
        self._last: tuple[Piece, bytes] | None = None

    def of(self, tensor: Tensor) -> bytes:
        """The bytes of ``tensor``."""
        data = bytearray()
        for piece in self.kept:
            low, high = max(piece.start, tensor.start), min(piece.end, tensor.end)
            if piece.file == tensor.file and low < high:
                data += self._read(piece)[low - piece.start : high - piece.start]
        return bytes(data)

    def _read(self, piece: Piece) -> bytes:
        if self._last is None or self._last[0] != piece:
            data = self.work.path(piece.key).read_bytes()
            if hashlib.sha256(data).hexdigest() != self.work.found[piece.key]:
                self.work.drop(piece.key)
                raise IntegrityError(
                    f"bytes {piece.start} to {piece.end} of {piece.file} changed on "
                    "this disk since they came; they were thrown away",
                    hint="run it again: the rest is kept",
                )
            self._last = (piece, data)
        return self._last[1]

    def check_pin(self, hashes: Hashes, pin: str) -> None:
        """Raise IntegrityError if the profile knows the result and this is another.

        The pieces go: one of them is wrong, and nothing says which.
        """
        if not pin or hashes.sha256 == pin:
            return
        for piece in self.kept:
            self.work.drop(piece.key)
        raise IntegrityError(
            f"the tensors hash to {hashes.sha256}, the profile's sha256 is {pin}; what "
            "had come was thrown away",
            hint="run it again; if it stays, the pin or the source is wrong",
        )


def _check_values(name: str, tensor: Tensor, data: bytes, codebook: str) -> None:
    if tensor.dtype == "F16" and not safetensors.is_finite(data):
        raise IntegrityError(f"{name} holds NaN or infinity: these are wrong bytes")
    if tensor.dtype == "I32":
        got = int(next(safetensors.values("I32", data)))
        if got != MARKERS[codebook]:
            raise IntegrityError(
                f"{name} holds {got}, and the marker of {codebook} is "
                f"{MARKERS[codebook]}"
            )


def assemble(path: Path, chosen: list[Layer], kept: Bytes) -> Hashes:
    """Write the layers' tensors as the safetensors file ``path``; its hashes.

    Raises IntegrityError for a piece that changed, a marker of another codebook and
    scales that are no numbers; what was wrong is named.
    """
    order = {
        name: (layer, tensor)
        for layer in chosen
        for name, tensor in sorted(layer.tensors.items())
    }
    sizes: Mapping[str, tuple[str, tuple[int, ...], int]] = {
        name: (t.dtype, t.shape, t.size) for name, (_, t) in order.items()
    }

    def chunks() -> Iterator[bytes]:
        yield safetensors.header_bytes(sizes)
        for name, (layer, tensor) in order.items():
            data = kept.of(tensor)
            _check_values(name, tensor, data, layer.codebook)
            yield data

    with kept.work.disk():
        return safetensors.write(path, chunks())


def kinds_of(table: Mapping[str, object], where: str) -> list[str]:
    """The table's list ``layers``; ConfigError names it where it is none."""
    kinds = table.get("layers")
    if not isinstance(kinds, list) or not kinds or not all(kinds):
        raise ConfigError(
            f"{where} is {kinds!r}, needed a list of ends of names such as "
            "self_attn.o_proj"
        )
    return [str(kind) for kind in kinds]
