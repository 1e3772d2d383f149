"""Checkpoint tensors into one rank's parameters, every one checked and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vllm_exl3 import format as exl3
from vllm_exl3 import layout
from vllm_exl3.errors import Exl3Error
from vllm_exl3.layout import LinearLayout, Split
from vllm_exl3.schema import Rate

SHOWN = 3


def fields_of(rate: Rate) -> tuple[str, ...]:
    """The tensors of a linear layer in a checkpoint of this codebook."""
    return ("trellis", "suh", "svh", *filter(None, [rate.codebook.suffix]))


def field_name(key: str, rate: Rate, *, old: bool = False) -> str:
    """A key's name in a checkpoint: the marker's is its codebook's, ``su`` is old."""
    if key == "marker":
        return rate.codebook.suffix or key
    return key.removesuffix("h") if old else key


def signs(name: str, key: str, loaded: Tensor, shape: LinearLayout) -> Tensor:
    """The ±1 scales fp16 of an old file's sign bitfield, after its checks."""
    needed = shape.whole(key)[0] // 16
    if loaded.dtype != torch.int16 or tuple(loaded.shape) != (needed,):
        dtype = str(loaded.dtype).removeprefix("torch.")
        raise Exl3Error(
            f"{name} is {dtype} {list(loaded.shape)}, needed int16 [{needed}]"
        )
    return exl3.unpack_signs(loaded)


def take(name: str, key: str, loaded: Tensor, shape: LinearLayout, at: Split) -> Tensor:
    """One rank's part of a checkpoint tensor, after its checks.

    ``key`` is trellis, suh, svh or marker. The part is a contiguous copy in host
    memory: copies to the device out of a mapped file stall on kernels with pages of
    64 KiB, and a view would keep the whole file's pages alive.
    """
    dtype = str(loaded.dtype).removeprefix("torch.")
    layout.check_tensor(name, key, dtype, tuple(loaded.shape), shape.whole(key))
    if key == "marker":
        layout.check_marker(name, int(loaded.item()), shape.rate)
        return loaded.reshape(1)
    dimension = shape.cut_dimension(key)
    if dimension is not None:
        loaded = loaded.narrow(dimension, *at.part(loaded.shape[dimension]))
    return loaded.clone(memory_format=torch.contiguous_format)


@dataclass
class Ledger:
    """Which tensors of a layer have come, so that none is missing or doubled.

    A key is (expert, projection, field); a dense layer's expert is None.
    """

    layer: str
    rank: int
    needed: frozenset[tuple[int | None, str, str]]
    seen: set[tuple[int | None, str, str]] = field(default_factory=set)

    def name(self, key: tuple[int | None, str, str]) -> str:
        """The words that error messages use for a tensor."""
        expert, projection, part = key
        of = "" if expert is None else f"expert {expert} "
        return f"{self.layer}: {of}{projection}.{part} (rank {self.rank})"

    def record(self, key: tuple[int | None, str, str]) -> None:
        """Note a tensor, or raise when it has come before."""
        if key in self.seen:
            raise Exl3Error(f"{self.name(key)} comes twice in the checkpoint")
        self.seen.add(key)

    def check_complete(self) -> None:
        """Nothing, or an ``Exl3Error`` that names the first missing tensors."""
        missing = sorted(self.needed - self.seen, key=str)
        if not missing:
            return
        first = "; ".join(self.name(key) for key in missing[:SHOWN])
        raise Exl3Error(
            f"{len(missing)} of {len(self.needed)} EXL3 tensors are missing: {first}"
            f"{'; ...' if len(missing) > SHOWN else ''}",
            hint="verify the weights: a shard or an index entry is absent",
        )


def needed_keys(
    experts: Iterable[int | None], projections: Iterable[str], rate: Rate
) -> frozenset[tuple[int | None, str, str]]:
    """Every key that a complete layer has."""
    names = list(projections)
    return frozenset((e, p, f) for e in experts for p in names for f in fields_of(rate))


@dataclass
class ExpertLoader:
    """The ``weight_loader`` of a layer's routed experts.

    ``local_id`` maps a global expert number to this rank's slot, or to -1. Layouts
    are those of the whole projection; ``split`` is this rank's share of the
    intermediate dimension.
    """

    ledger: Ledger
    rate: Rate
    hidden: int
    intermediate: int
    split: Split
    local_id: Callable[[int], int]

    def shape(self, shard_id: str) -> LinearLayout:
        """The layout of ``w1`` (gate), ``w3`` (up) or ``w2`` (down)."""
        if shard_id == "w2":
            return LinearLayout(self.intermediate, self.hidden, self.rate, "rows")
        return LinearLayout(self.hidden, self.intermediate, self.rate, "columns")

    def load(  # noqa: PLR0913 (vLLM's call and one word more)
        self,
        param: Tensor,
        loaded: Tensor,
        key: str,
        shard_id: str,
        expert_id: int,
        *,
        old: bool = False,
    ) -> bool:
        """Copy one tensor into its place; False when the expert is another rank's.

        ``old``: ``loaded`` is an old file's ``su``/``sv`` sign bitfield.
        """
        slot = self.local_id(expert_id)
        if slot < 0:
            return False
        projection, shape = layout.PROJECTIONS[shard_id], self.shape(shard_id)
        field = field_name(key, self.rate, old=old)
        label = self.ledger.name((expert_id, projection, field))
        if old:
            loaded = signs(label, key, loaded, shape)
        part = take(label, key, loaded, shape, self.split)
        self.ledger.record((expert_id, projection, field_name(key, self.rate)))
        place = param.data[slot]
        if shard_id != "w2":
            place = place[0 if shard_id == "w1" else 1]
        place.copy_(part)
        return True

    def refuse(self, key: str, shard_id: str, expert_id: int) -> None:
        """Raise: a tensor came that a checkpoint of this codebook does not have."""
        where = (expert_id, layout.PROJECTIONS[shard_id], key)
        raise Exl3Error(
            f"{self.ledger.name(where)} does not belong to a checkpoint whose "
            f"config.json says codebook {self.rate.codebook.label}"
        )
