"""What ``quantization_config`` of an EXL3 checkpoint says; pure, no vLLM, no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_exl3 import tables
from vllm_exl3.errors import Exl3ConfigError, Exl3Error
from vllm_exl3.tables import Codebook

QUANT_METHOD = "exl3"
PINNED = "take config.json from the checkpoint's pinned revision"


@dataclass(frozen=True)
class Rate:
    """Bits a weight and codebook of one group of layers."""

    bits: float
    codebook: Codebook

    @property
    def words(self) -> int:
        """16-bit words of one 16x16 tile."""
        return int(self.bits * tables.TILE)


@dataclass(frozen=True)
class Exl3Spec:
    """The rate of the routed experts, and the dense layers that are EXL3 too.

    With ``ignores_native`` the files hold those dense layers' native weights as well,
    which are left out; else such a weight is an error.
    ``dense`` maps a linear layer's name to its rate. The per-tensor ledger of the
    published files (37 MB) is dropped here, since vLLM pickles the configuration to
    every process.
    """

    experts: Rate
    dense: Mapping[str, Rate] = field(default_factory=dict)
    ignores_native: bool = False

    def renamed(self, rename: Callable[[str], str]) -> Exl3Spec:
        """The same with the dense layers' names in the engine's spelling."""
        return replace(self, dense={rename(k): v for k, v in self.dense.items()})

    def dense_rate(self, prefix: str, packed: Mapping[str, list[str]]) -> Rate | None:
        """The rate of the linear layer ``prefix``, or None when it is not EXL3.

        ``packed`` says which checkpoint layers a fused one stands for (``qkv_proj``:
        q, k, v). All or none of them may be EXL3, at one rate; else an error.
        """
        parent, dot, _ = prefix.rpartition(".")
        names = [f"{parent}{dot}{part}" for part in parts_of(prefix, packed)]
        rates = [self.dense.get(name) for name in names]
        if len(set(rates)) > 1:
            raise Exl3ConfigError(
                f"{prefix} fuses {', '.join(names)}, which are not EXL3 at one rate "
                f"({', '.join(str(r and r.bits) for r in rates)})"
            )
        return rates[0]


def parts_of(prefix: str, packed: Mapping[str, list[str]]) -> list[str]:
    """The checkpoint's layers, without their parent, that ``prefix`` stands for."""
    leaf = prefix.rpartition(".")[2]
    return packed.get(leaf, [leaf])


def parse(config: Mapping[str, Any]) -> Exl3Spec:
    """The ``Exl3Spec`` of a ``quantization_config``; ``Exl3ConfigError`` names a fault.

    ``bits`` and ``codebook`` are required; ``non_routed_exl3.layers`` is a list of
    layer names, or a mapping from name to overriding ``bits`` and ``codebook``;
    ``non_routed_exl3.native_weights`` is absent (default) or ignored.
    """
    method = config.get("quant_method", QUANT_METHOD)
    if method != QUANT_METHOD:
        raise _fault("quant_method", method, f'"{QUANT_METHOD}"')
    experts = _rate(config, "")
    block = config.get("non_routed_exl3") or {}
    if not isinstance(block, Mapping):
        raise _fault("non_routed_exl3", block, "an object with `layers`")
    native = block.get("native_weights", "absent")
    if native not in ("absent", "ignored"):
        raise _fault("non_routed_exl3.native_weights", native, '"absent" or "ignored"')
    dense = _dense(block.get("layers") or {}, config)
    return Exl3Spec(experts, dense, native == "ignored")


def _dense(layers: Any, config: Mapping[str, Any]) -> dict[str, Rate]:
    where = "non_routed_exl3.layers"
    if isinstance(layers, list):
        layers = dict.fromkeys(layers)
    if not isinstance(layers, Mapping):
        raise _fault(where, layers, "a list of names or an object by name")
    rates = {}
    for name, own in layers.items():
        if not isinstance(name, str) or not isinstance(own or {}, Mapping):
            raise _fault(where, {name: own}, "layer names, each with an object or null")
        rates[name] = _rate({**config, **(own or {})}, f"{where}[{name}].")
    return rates


def _rate(config: Mapping[str, Any], where: str) -> Rate:
    bits, name = config.get("bits"), config.get("codebook")
    if isinstance(bits, bool) or not isinstance(bits, int | float):
        raise _fault(f"{where}bits", bits, "a number: 1 to 8, or 1.5, 2.5, 3.5")
    if not isinstance(name, str):
        raise _fault(f"{where}codebook", name, '"mcg", "mul1" or "3inst"')
    try:
        codebook = Codebook.from_name(name)
        return Rate(tables.check_rate(bits, codebook), codebook)
    except Exl3Error as error:
        raise Exl3ConfigError(
            f"quantization_config.{where}bits and codebook: {error}", hint=PINNED
        ) from error


def _fault(where: str, got: object, needed: str) -> Exl3ConfigError:
    return Exl3ConfigError(
        f"quantization_config.{where} is {got!r}, needed {needed}",
        hint=PINNED,
    )
