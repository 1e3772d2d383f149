"""What is known of a node's network and RDMA devices; plain data, no decisions."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Address:
    """An address and the length of its prefix."""

    address: str
    prefix: int

    @property
    def network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        """The subnet that it lies in."""
        return ipaddress.ip_network(f"{self.address}/{self.prefix}", strict=False)

    @property
    def is_ipv4(self) -> bool:
        """Whether it is an IPv4 address."""
        return ":" not in self.address


@dataclass(frozen=True)
class Netdev:
    """A network device; MTU in bytes, speed in Mb/s (0: unknown).

    ``pci`` is its PCI address ("" for virtual devices); width in lanes and the speed
    text are those of the PCIe link now and at best. ``addr_gen_mode`` is the kernel's
    number: 0 EUI-64, 1 none, 2 stable privacy, 3 random (-1: unknown).
    """

    name: str
    index: int
    mtu: int
    operstate: str
    is_up: bool
    mac: str = ""
    kind: str = ""
    addresses: tuple[Address, ...] = ()
    speed_mbps: int = 0
    driver: str = ""
    pci: str = ""
    port_name: str = ""
    pcie_width: int = 0
    pcie_width_max: int = 0
    pcie_speed: str = ""
    pcie_speed_max: str = ""
    addr_gen_mode: int = -1

    @property
    def ipv4(self) -> tuple[Address, ...]:
        """Its IPv4 addresses."""
        return tuple(one for one in self.addresses if one.is_ipv4)

    @property
    def has_carrier(self) -> bool:
        """Whether it can pass packets; virtual devices may not know and say so."""
        return self.is_up and self.operstate in {"up", "unknown"}


@dataclass(frozen=True)
class Gid:
    """An entry of a GID table: index, GID, type ("RoCE v2"), netdev."""

    index: int
    gid: str
    kind: str
    netdev: str

    @property
    def ipv4(self) -> str:
        """The IPv4 address that it stands for, or ""."""
        try:
            mapped = ipaddress.IPv6Address(self.gid).ipv4_mapped
        except ValueError:
            return ""
        return str(mapped) if mapped else ""


@dataclass(frozen=True)
class RdmaPort:
    """A port of an RDMA device, its GID table and its error counters."""

    device: str
    port: int
    state: str
    link_layer: str
    rate: str
    netdev: str
    pci: str
    gids: tuple[Gid, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_active(self) -> bool:
        """Whether the port is up for RDMA."""
        return self.state == "ACTIVE"


@dataclass(frozen=True)
class FabricFacts:
    """Every network device and RDMA port of a node, and what could not be read."""

    netdevs: tuple[Netdev, ...] = ()
    rdma: tuple[RdmaPort, ...] = ()
    default_netdevs: tuple[str, ...] = ()
    verbs_nodes: int = 0
    unread: tuple[str, ...] = ()

    def netdev(self, name: str) -> Netdev | None:
        """The device of that name."""
        return next((one for one in self.netdevs if one.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """The facts as plain data."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> FabricFacts:
        """The facts that :meth:`to_json` gave."""
        netdevs = tuple(
            Netdev(
                **{**one, "addresses": tuple(Address(**a) for a in one["addresses"])}
            )
            for one in data["netdevs"]
        )
        rdma = tuple(
            RdmaPort(**{**one, "gids": tuple(Gid(**gid) for gid in one["gids"])})
            for one in data["rdma"]
        )
        return FabricFacts(
            netdevs,
            rdma,
            tuple(data["default_netdevs"]),
            data["verbs_nodes"],
            tuple(data["unread"]),
        )
