"""EXL3 in plain torch: the reference that every other path is held against.

A linear layer of shape [in, out] is stored as 16x16 tiles of a trellis-coded stream
``trellis`` (int16 [in/16, out/16, 16·K]), signs and scales ``suh`` (fp16 [in]) and
``svh`` (fp16 [out]), and a marker tensor that names the codebook. Its weight is
``diag(suh) · H · W · H · diag(svh)``, H being the block-diagonal Hadamard of size 128.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from vllm_exl3 import tables
from vllm_exl3.errors import Exl3Error
from vllm_exl3.tables import HADAMARD, TILE, TILE_VALUES, Codebook


@dataclass(frozen=True)
class Exl3Linear:
    """One EXL3 linear layer, checked when it is made.

    *Shapes*: ``trellis`` int16 [in/16, out/16, 16·K], ``suh`` fp16 [in], ``svh`` fp16
    [out]; in and out are multiples of 128. Raises ``Exl3Error`` for anything else.
    """

    trellis: Tensor
    suh: Tensor
    svh: Tensor
    codebook: Codebook

    def __post_init__(self) -> None:
        if self.trellis.dtype != torch.int16 or self.trellis.dim() != 3:
            raise Exl3Error(
                f"trellis is {self.trellis.dtype} {tuple(self.trellis.shape)}, "
                "needed int16 [in/16, out/16, 16*K]"
            )
        tables.check_rate(self.bits, self.codebook)
        for name, scale, length in (
            ("suh", self.suh, self.in_features),
            ("svh", self.svh, self.out_features),
        ):
            if scale.dtype != torch.float16 or tuple(scale.shape) != (length,):
                raise Exl3Error(
                    f"{name} is {scale.dtype} {tuple(scale.shape)}, "
                    f"needed float16 [{length}]"
                )
            check_dimension(name, length)

    @property
    def in_features(self) -> int:
        """Rows of the dense weight."""
        return self.trellis.shape[0] * TILE

    @property
    def out_features(self) -> int:
        """Columns of the dense weight."""
        return self.trellis.shape[1] * TILE

    @property
    def bits(self) -> float:
        """K, the bits of a weight."""
        return tables.rate_of(self.trellis.shape[2])

    def dense(self) -> Tensor:
        """The weight as float32 [in, out] (y = x @ weight)."""
        inner = decode_trellis(self.trellis, self.codebook).float()
        inner = hadamard_rows(hadamard_columns(inner))
        return self.suh.float()[:, None] * inner * self.svh.float()[None, :]

    def forward(self, x: Tensor) -> Tensor:
        """``x @ dense()`` in float32, rotating activations instead of weights.

        *Shapes*: x [tokens, in], result float32 [tokens, out].
        """
        inner = decode_trellis(self.trellis, self.codebook).float()
        rotated = hadamard_columns(x.float() * self.suh.float())
        return hadamard_columns(rotated @ inner) * self.svh.float()


def check_dimension(name: str, length: int) -> None:
    """Nothing, or an ``Exl3Error`` when a Hadamard block of 128 would be cut."""
    if length % HADAMARD or length <= 0:
        raise Exl3Error(f"{name} has {length} elements, needed a multiple of 128")


@lru_cache(maxsize=16)
def _window(bits: float, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    first, following, shift = tables.window_tables(bits)
    return (
        torch.from_numpy(first).to(device),
        torch.from_numpy(following).to(device),
        torch.from_numpy(shift).to(device),
    )


@lru_cache(maxsize=16)
def codebook_tensor(codebook: Codebook, device: torch.device) -> Tensor:
    """The codebook as fp16 [65536] on ``device``."""
    return torch.from_numpy(tables.codebook_values(codebook)).to(device)


@lru_cache(maxsize=16)
def _hadamard(device: torch.device) -> Tensor:
    return torch.from_numpy(tables.hadamard_matrix()).to(device)


def swap_halves(words: Tensor) -> Tensor:
    """The two 16-bit halves of every 32-bit word exchanged (its own inverse)."""
    return words.reshape(*words.shape[:-1], -1, 2).flip(-1).flatten(-2)


def unpack_states(trellis: Tensor) -> Tensor:
    """The 256 states of each tile, in stream order.

    *Shapes*: trellis int16 [..., 16·K], result int32 [..., 256] in 0…65535.
    """
    bits = tables.rate_of(trellis.shape[-1])
    first, following, shift = _window(bits, trellis.device)
    words = swap_halves(trellis).to(torch.int32) & 0xFFFF
    # Bit 31 may be set: the arithmetic shift's sign bits fall to the final mask.
    pairs = (words[..., first] << 16) | words[..., following]
    return (pairs >> shift) & 0xFFFF


def pack_states(states: Tensor, bits: float) -> Tensor:
    """The trellis words of states that form a valid tail-biting path.

    *Shapes*: states int [..., 256], result int16 [..., 16·K]. Each state must carry
    its predecessor's low bits, or an ``Exl3Error`` says that it does not.
    """
    position, shift = tables.bit_sources(bits)
    stream = states[..., torch.from_numpy(position).to(states.device)].to(torch.int32)
    stream = (stream >> torch.from_numpy(shift).to(states.device)) & 1
    weights = 1 << torch.arange(15, -1, -1, dtype=torch.int32, device=states.device)
    words = (stream.reshape(*states.shape[:-1], -1, 16) * weights).sum(-1)
    packed = swap_halves(words.to(torch.int16))
    if not torch.equal(unpack_states(packed), states.to(torch.int32)):
        raise Exl3Error("the states are no tail-biting path of the trellis")
    return packed


def decode_trellis(trellis: Tensor, codebook: Codebook) -> Tensor:
    """The inner weights fp16 [in, out], bit-equal to exllamav3's ``reconstruct``."""
    rows, columns, _ = trellis.shape
    values = codebook_tensor(codebook, trellis.device)[unpack_states(trellis).long()]
    order = torch.from_numpy(tables.tile_order()).to(trellis.device)
    tiles = values[..., torch.argsort(order)].view(rows, columns, TILE, TILE)
    return tiles.transpose(1, 2).reshape(rows * TILE, columns * TILE)


def encode_tiles(weights: Tensor) -> Tensor:
    """A matrix [in, out] as tiles in stream order, [in/16, out/16, 256]."""
    rows, columns = weights.shape[0] // TILE, weights.shape[1] // TILE
    tiles = weights.view(rows, TILE, columns, TILE).transpose(1, 2)
    order = torch.from_numpy(tables.tile_order()).to(weights.device)
    return tiles.reshape(rows, columns, TILE_VALUES)[..., order]


def hadamard_columns(x: Tensor) -> Tensor:
    """``x · H`` for float32 x [..., n], n a multiple of 128."""
    blocks = x.reshape(*x.shape[:-1], -1, HADAMARD)
    return (blocks @ _hadamard(x.device)).flatten(-2)


def hadamard_rows(x: Tensor) -> Tensor:
    """``H · x`` for float32 x [n, m], n a multiple of 128."""
    blocks = x.reshape(-1, HADAMARD, x.shape[1])
    return (_hadamard(x.device) @ blocks).flatten(0, 1)


def unpack_signs(bitfield: Tensor) -> Tensor:
    """The ±1 scales fp16 [16·n] of an old file's ``.su``/``.sv`` int16 [n].

    Bit i of word w (least significant first) belongs to element 16·w + i; a set bit
    is -1.
    """
    if bitfield.dtype != torch.int16:
        raise Exl3Error(f"sign bitfield is {bitfield.dtype}, needed int16")
    shifts = torch.arange(16, device=bitfield.device, dtype=torch.int32)
    bits = (bitfield.to(torch.int32)[:, None] >> shifts) & 1
    return (1 - 2 * bits).flatten().to(torch.float16)
