"""Read the network and RDMA devices of this node from netlink and /sys; no decisions.

Everything here runs with the standard library alone: it is sent to nodes that have
nothing of this tool installed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from glmspark import netlink
from glmspark.fabrictypes import Address, FabricFacts, Gid, Netdev, RdmaPort
from glmspark.facts import Roots

_PCI = re.compile(r"^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
EMPTY_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
# Packets lost or repeated on the fabric, as mlx5 counts them.
COUNTERS = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "implied_nak_seq_err",
)
# Room that the kernel leaves for GRH, UDP, BTH, XRC, atomic and ICRC headers when it
# turns a netdev's MTU into the RDMA port's (rdma_core's iboe_get_mtu).
ROCE_HEADERS = 40 + 8 + 12 + 4 + 28 + 4


def roce_mtu(netdev_mtu: int) -> int:
    """The RDMA MTU that the kernel derives from a netdev's MTU, in bytes; 0: none."""
    room = netdev_mtu - ROCE_HEADERS
    return next((size for size in (4096, 2048, 1024, 512, 256) if size <= room), 0)


def _text(path: Path) -> str:
    """The content of a /sys file; "" where the kernel has no value for it."""
    try:
        return path.read_text(errors="replace").strip()
    except PermissionError:
        raise  # could not look is not the same as nothing there
    except OSError:
        return ""  # many attributes answer EINVAL while a link is down


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.lstrip("-").isdigit() else 0


def _pci(device: Path) -> str:
    name = device.resolve().name if device.exists() else ""
    return name if _PCI.match(name) else ""


def _driver(device: Path) -> str:
    link = device / "driver"
    return link.resolve().name if link.exists() else ""


def enrich(netdev: Netdev, roots: Roots) -> Netdev:
    """``netdev`` with what /sys and /proc know of its hardware."""
    folder = roots.sys / "class/net" / netdev.name
    device = folder / "device"
    mode = _text(roots.proc / "sys/net/ipv6/conf" / netdev.name / "addr_gen_mode")
    return replace(
        netdev,
        speed_mbps=max(0, _number(folder / "speed")),
        port_name=_text(folder / "phys_port_name"),
        driver=_driver(device),
        pci=_pci(device),
        pcie_width=_number(device / "current_link_width"),
        pcie_width_max=_number(device / "max_link_width"),
        pcie_speed=_text(device / "current_link_speed"),
        pcie_speed_max=_text(device / "max_link_speed"),
        addr_gen_mode=int(mode) if mode.isdigit() else -1,
    )


def join(
    links: Sequence[netlink.Link], addresses: Sequence[netlink.Assigned]
) -> tuple[Netdev, ...]:
    """The devices with their addresses, loopback left out."""
    return tuple(
        Netdev(
            link.name,
            link.index,
            link.mtu,
            link.operstate,
            link.is_up,
            link.mac,
            link.kind,
            tuple(
                Address(one.address, one.prefix)
                for one in addresses
                if one.index == link.index
            ),
        )
        for link in links
        if link.kind != "loopback"
    )


def _gids(port: Path) -> tuple[Gid, ...]:
    """The entries of a port's table that are set; empty slots are left out."""
    found = []
    for file in (port / "gids").iterdir():
        gid = _text(file)
        if not gid or gid == EMPTY_GID:
            continue
        kind = _text(port / "gid_attrs/types" / file.name)
        netdev = _text(port / "gid_attrs/ndevs" / file.name)
        found.append(Gid(int(file.name), gid, kind, netdev))
    return tuple(sorted(found, key=lambda one: one.index))


def _port_netdev(device: Path, port: int, gids: tuple[Gid, ...]) -> str:
    """The netdev of an RDMA port: what its GIDs say, else its place on the card."""
    named = sorted({gid.netdev for gid in gids if gid.netdev})
    if named:
        return named[0]
    folder = device / "device/net"
    names = sorted(one.name for one in folder.iterdir()) if folder.is_dir() else []
    matching = [n for n in names if _number(folder / n / "dev_port") == port - 1]
    return (matching or names or [""])[0]


def read_rdma(roots: Roots) -> tuple[RdmaPort, ...]:
    """Every port of every RDMA device; none where the kernel has none.

    Raises:
        OSError: a port is there and its GID table cannot be read.
    """
    found = []
    for device in sorted((roots.sys / "class/infiniband").glob("*")):
        for folder in sorted((device / "ports").iterdir()):
            gids = _gids(folder)
            counters = {
                name: _number(folder / "hw_counters" / name)
                for name in COUNTERS
                if (folder / "hw_counters" / name).exists()
            }
            found.append(
                RdmaPort(
                    device.name,
                    int(folder.name),
                    _text(folder / "state").rpartition(" ")[2],
                    _text(folder / "link_layer"),
                    _text(folder / "rate"),
                    _port_netdev(device, int(folder.name), gids),
                    _pci(device / "device"),
                    gids,
                    counters,
                )
            )
    return tuple(found)


def growth(before: Sequence[RdmaPort], after: Sequence[RdmaPort]) -> list[str]:
    """What the ports' error counters have grown by, one line a counter (pure)."""
    old = {(one.device, one.port): one.counters for one in before}
    return [
        f"{one.device} port {one.port} {name} +{count - was}"
        for one in after
        for name, count in one.counters.items()
        if (was := old.get((one.device, one.port), {}).get(name, 0)) < count
    ]


def read_counters(roots: Roots) -> tuple[RdmaPort, ...]:
    """The RDMA ports for :func:`growth`; none where they cannot be read."""
    try:
        return read_rdma(roots)
    except OSError:
        return ()


def read_fabric(roots: Roots, dev: Path = Path("/dev")) -> FabricFacts:
    """The fabric of this node; what cannot be read is named, never left out."""
    unread: list[str] = []

    def attempt(what: str, read: Callable[[], Any], empty: Any) -> Any:
        try:
            return read()
        except (OSError, ValueError) as error:
            unread.append(f"{what}: {error}")
            return empty

    links = attempt("network devices", netlink.read_links, [])
    addresses = attempt("addresses", netlink.read_addresses, [])
    routes = attempt("routes", netlink.read_default_routes, [])
    names = {link.index: link.name for link in links}
    netdevs = [
        attempt(one.name, partial(enrich, one, roots), one)
        for one in join(links, addresses)
    ]
    return FabricFacts(
        tuple(netdevs),
        attempt("RDMA devices", lambda: read_rdma(roots), ()),
        tuple(sorted({names.get(one.index, "") for one in routes} - {""})),
        len(list(dev.glob("infiniband/uverbs*"))),
        tuple(unread),
    )
