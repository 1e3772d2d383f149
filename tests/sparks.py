"""Fake Sparks: /sys trees as the kernel lays them out, read by the real readers."""

from __future__ import annotations

import ipaddress
import resource
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from glmspark.fabric import carrier
from glmspark.fabricfacts import enrich, join, read_rdma
from glmspark.fabrictypes import FabricFacts
from glmspark.facts import Facts, Roots
from glmspark.hostfacts import Gpu, HostFacts
from glmspark.netlink import Assigned, Link
from glmspark.reach import PathFacts
from glmspark.views import NodeView

LINK_LOCAL = "fe80:0000:0000:0000:0200:00ff:fe00:0001"
ZERO = ":".join(["0000"] * 8)


@dataclass
class Port:
    """A function of the card: names, PCI place, address, state, GID slots.

    ``slot`` is the index of the first of the IPv4 entries (v1, then v2); None: none.
    """

    netdev: str
    device: str
    pci: str
    address: str = ""
    mtu: int = 9000
    state: str = "4: ACTIVE"
    up: bool = True
    slot: int | None = 2
    width: int = 4
    speed: int = 200000
    kinds: tuple[str, str] = ("IB/RoCE v1", "RoCE v2")
    addr_gen_mode: int = 0


@dataclass
class Spark:
    """A node: its ports, further links, and the tree that they are written to."""

    root: Path
    ports: list[Port]
    lan: str = ""
    extra: list[tuple[Link, str]] = field(default_factory=list)

    @property
    def roots(self) -> Roots:
        return Roots(self.root / "proc", self.root / "sys")

    def write(self) -> Spark:
        for port in self.ports:
            self._write_port(port)
        return self

    def _write_port(self, port: Port) -> None:
        sys = self.root / "sys"
        pci = sys / "devices/pci0000:00" / port.pci
        driver = sys / "bus/pci/drivers/mlx5_core"
        net = pci / "net" / port.netdev
        rdma = pci / "infiniband" / port.device
        for folder in (driver, net, rdma):
            folder.mkdir(parents=True, exist_ok=True)
        (pci / "driver").symlink_to(driver)
        files = {
            pci / "current_link_width": port.width,
            pci / "max_link_width": 4,
            pci / "current_link_speed": "32.0 GT/s PCIe",
            pci / "max_link_speed": "32.0 GT/s PCIe",
            net / "speed": port.speed if port.up else -1,
            net / "phys_port_name": f"p{port.pci[-1]}",
            net / "dev_port": 0,
            rdma / "ports/1/state": port.state,
            rdma / "ports/1/link_layer": "Ethernet",
            rdma / "ports/1/rate": "200 Gb/sec (4X HDR)",
            rdma / "ports/1/hw_counters/out_of_sequence": 0,
        }
        conf = self.root / "proc/sys/net/ipv6/conf" / port.netdev
        files[conf / "addr_gen_mode"] = port.addr_gen_mode
        for index, (gid, kind) in enumerate(self._gids(port)):
            files[rdma / f"ports/1/gids/{index}"] = gid
            if gid != ZERO:
                files[rdma / f"ports/1/gid_attrs/types/{index}"] = kind
                files[rdma / f"ports/1/gid_attrs/ndevs/{index}"] = port.netdev
        for path, value in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")
        for kind, folder in (("net", net), ("infiniband", rdma)):
            link = sys / "class" / kind / folder.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(folder)
            (folder / "device").symlink_to(pci)

    @staticmethod
    def _gids(port: Port) -> list[tuple[str, str]]:
        slots = [(ZERO, "")] * 8
        for index, kind in enumerate(("IB/RoCE v1", "RoCE v2")):
            slots[index] = (LINK_LOCAL, kind)
        if port.address and port.slot is not None:
            raw = int(ipaddress.IPv4Address(port.address.partition("/")[0]))
            words = f"{raw >> 16:04x}:{raw & 0xFFFF:04x}"
            mapped = f"0000:0000:0000:0000:0000:ffff:{words}"
            for index, kind in enumerate(port.kinds):
                slots[port.slot + index] = (mapped, kind)
        return slots

    def facts(self) -> FabricFacts:
        """What the readers make of the tree, with the links that belong to it."""
        links: list[Link] = []
        addresses: list[Assigned] = []
        rows: Iterable[tuple[Link, str]] = [
            (
                Link(
                    index,
                    port.netdev,
                    port.mtu,
                    "up" if port.up else "down",
                    port.up,
                    f"02:00:00:00:00:{index:02x}",
                    "",
                ),
                port.address,
            )
            for index, port in enumerate(self.ports, start=2)
        ]
        lan = [
            (Link(90, "enP7s7", 1500, "up", True, "02:00:00:00:01:00", ""), self.lan)
        ]
        for link, address in [*rows, *(lan if self.lan else []), *self.extra]:
            links.append(link)
            if address:
                host, _, prefix = address.partition("/")
                addresses.append(Assigned(link.index, host, int(prefix or 24)))
        netdevs = (enrich(one, self.roots) for one in join(links, addresses))
        default = ("enP7s7",) if self.lan else ()
        verbs = len(self.ports)
        return FabricFacts(tuple(netdevs), read_rdma(self.roots), default, verbs)


def card(socket: int, first: str = "", second: str = "", **more: object) -> list[Port]:
    """The two functions of QSFP socket 0 or 1, with their addresses."""
    ports = [
        Port(
            f"enp1s0f{socket}np{socket}",
            f"rocep1s0f{socket}",
            f"0000:01:00.{socket}",
            first,
        ),
        Port(
            f"enP2p1s0f{socket}np{socket}",
            f"roceP2p1s0f{socket}",
            f"0002:01:00.{socket}",
            second,
        ),
    ]
    for port in ports:
        for name, value in more.items():
            setattr(port, name, value)
    return ports


GIB = 1 << 30


def spark_view(name: str, rank: int, fabric: FabricFacts, address: str) -> NodeView:
    """A healthy Spark with that fabric: memory, GPU, limits, paths to its peer."""
    facts = Facts(
        hostname=name,
        kernel="6.17.0-1014-nvidia",
        machine="aarch64",
        kernel_boot="b",
        page_bytes=4096,
        uid=1000,
        cores=20,
        memory={
            "MemTotal": 121 * GIB,
            "MemAvailable": 112 * GIB,
            "CmaTotal": GIB >> 5,
            "CmaFree": GIB >> 6,
        },
        memlock_bytes=resource.RLIM_INFINITY,
        listeners=(),
        strays=(),
        free_disk={"state": 100 * GIB, "cache": 100 * GIB},
        engine={"version vllm": "0.32.0"},
        gpus=("NVIDIA GB10",),
    )
    host = HostFacts(  # noqa: S604 - the login shell's name, nothing is run
        driver="580.95.05",
        gpus=(Gpu("NVIDIA GB10", "580.95.05", 208, 3003, 4.1, 0),),
        tools={"nix": "/usr/bin/nix", "podman": "/usr/bin/podman"},
        ip_forward=True,
        store=("views/brandonmusic--GLM-5.3-Flash-EXL3-4bpw--4739eb1bcfd4",),
        clock_synced=True,
        shell="/bin/bash",
        path="/usr/bin",
    )
    device = carrier(fabric, address)
    peer = "10.66.1.2" if address == "10.66.1.1" else "10.66.1.1"
    path = PathFacts(
        peer,
        device.name if device else "",
        address,
        device.mtu if device else 0,
        "",
        True,
        True,
        "",
        {29555: "refused", 61111: "refused"},
    )
    return NodeView(name, rank, address, facts, fabric, host, (path,))
