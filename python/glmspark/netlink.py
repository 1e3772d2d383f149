"""Links, addresses, neighbours and routes from the kernel, over an AF_NETLINK socket.

The layouts are those of ``linux/netlink.h``, ``linux/rtnetlink.h``, ``if_link.h``,
``if_addr.h`` and ``neighbour.h``; a message is header, fixed part, then attributes of
(length, type) padded to four bytes. Parsing is pure, so recorded answers can be fed.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

RTM_NEWLINK, RTM_GETLINK = 16, 18
RTM_NEWADDR, RTM_GETADDR = 20, 22
RTM_NEWROUTE, RTM_GETROUTE = 24, 26
RTM_NEWNEIGH, RTM_GETNEIGH = 28, 30
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_DUMP = 1, 0x300
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_OPERSTATE, IFLA_LINKINFO = 1, 3, 4, 16, 18
IFLA_INFO_KIND = 1
IFA_ADDRESS, IFA_LOCAL = 1, 2
RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PREFSRC = 1, 4, 5, 7
NDA_DST, NDA_LLADDR = 1, 2
IFF_UP, IFF_LOOPBACK = 1, 8
# if.h's IF_OPER_*; a veth or dummy without carrier detection says "unknown".
OPERSTATES = (
    "unknown",
    "notpresent",
    "down",
    "lowerlayerdown",
    "testing",
    "dormant",
    "up",
)
ANSWER_S = 2.0


@dataclass(frozen=True)
class Link:
    """A network device: index, name, MTU in bytes, state, hardware address, kind.

    ``kind`` is the driver class of a virtual device (veth, bridge), "loopback" for lo,
    and empty for hardware.
    """

    index: int
    name: str
    mtu: int
    operstate: str
    is_up: bool
    mac: str
    kind: str


@dataclass(frozen=True)
class Assigned:
    """An address on a device: index of the device, address, length of its prefix."""

    index: int
    address: str
    prefix: int


@dataclass(frozen=True)
class Route:
    """How a packet to ``destination`` leaves: device index, gateway, source address."""

    destination: str
    index: int
    gateway: str
    source: str


@dataclass(frozen=True)
class Neighbour:
    """A host seen on a device: device index, its address, its hardware address."""

    index: int
    address: str
    mac: str


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Each message of ``data`` as (type, payload).

    Raises:
        OSError: the kernel answered with an error; its errno is kept.
        ValueError: a message is cut short.
    """
    offset = 0
    while offset + 16 <= len(data):
        size, kind = struct.unpack_from("=IH", data, offset)
        if size < 16 or offset + size > len(data):
            raise ValueError(f"netlink message of {size} bytes at {offset} is cut")
        payload = data[offset + 16 : offset + size]
        if kind == NLMSG_ERROR:
            (code,) = struct.unpack_from("=i", payload)
            if code:
                raise OSError(-code, f"netlink: {os.strerror(-code)}")
        yield kind, payload
        offset += (size + 3) & ~3


def attributes(data: bytes) -> dict[int, bytes]:
    """The attributes in ``data`` by type, without the nesting and byte-order flags."""
    found, offset = {}, 0
    while offset + 4 <= len(data):
        size, kind = struct.unpack_from("=HH", data, offset)
        if size < 4 or offset + size > len(data):
            raise ValueError(f"netlink attribute of {size} bytes at {offset} is cut")
        found[kind & 0x3FFF] = data[offset + 4 : offset + size]
        offset += (size + 3) & ~3
    return found


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")


def _host(raw: bytes) -> str:
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, raw) if len(raw) in {4, 16} else ""


def _mac(raw: bytes) -> str:
    return raw.hex(":") if raw else ""


def parse_links(data: bytes) -> list[Link]:
    """The devices in the answer to RTM_GETLINK."""
    found = []
    for kind, payload in messages(data):
        if kind != RTM_NEWLINK:
            continue
        _, _, index, flags, _ = struct.unpack_from("=BxHiII", payload)
        names = attributes(payload[16:])
        state = names.get(IFLA_OPERSTATE, b"\0")[0]
        info = attributes(names.get(IFLA_LINKINFO, b""))
        virtual = _text(info.get(IFLA_INFO_KIND, b""))
        found.append(
            Link(
                index,
                _text(names.get(IFLA_IFNAME, b"")),
                struct.unpack("=I", names.get(IFLA_MTU, bytes(4)))[0],
                OPERSTATES[state] if state < len(OPERSTATES) else "unknown",
                bool(flags & IFF_UP),
                _mac(names.get(IFLA_ADDRESS, b"")),
                "loopback" if flags & IFF_LOOPBACK else virtual,
            )
        )
    return found


def parse_addresses(data: bytes) -> list[Assigned]:
    """The addresses in the answer to RTM_GETADDR.

    IFA_LOCAL is this end of a point-to-point address, where IFA_ADDRESS is the peer.
    """
    found = []
    for kind, payload in messages(data):
        if kind != RTM_NEWADDR:
            continue
        _, prefix, _, _, index = struct.unpack_from("=BBBBI", payload)
        names = attributes(payload[8:])
        address = _host(names.get(IFA_LOCAL, names.get(IFA_ADDRESS, b"")))
        if address:
            found.append(Assigned(index, address, prefix))
    return found


def parse_routes(data: bytes) -> list[Route]:
    """The routes in the answer to RTM_GETROUTE; the default's destination is empty."""
    found = []
    for kind, payload in messages(data):
        if kind != RTM_NEWROUTE:
            continue
        names = attributes(payload[12:])
        found.append(
            Route(
                _host(names.get(RTA_DST, b"")),
                struct.unpack("=I", names.get(RTA_OIF, bytes(4)))[0],
                _host(names.get(RTA_GATEWAY, b"")),
                _host(names.get(RTA_PREFSRC, b"")),
            )
        )
    return found


def parse_neighbours(data: bytes) -> list[Neighbour]:
    """The neighbours in the answer to RTM_GETNEIGH that have answered."""
    found = []
    for kind, payload in messages(data):
        if kind != RTM_NEWNEIGH:
            continue
        (index,) = struct.unpack_from("=i", payload, 4)
        names = attributes(payload[12:])
        if NDA_LLADDR in names and NDA_DST in names:
            mac = _mac(names[NDA_LLADDR])
            found.append(Neighbour(index, _host(names[NDA_DST]), mac))
    return found


def _ask(kind: int, body: bytes, flags: int) -> bytes:
    """The kernel's whole answer to one request.

    Raises:
        OSError: netlink is refused here, or the kernel answered with an error.
    """
    request = struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body
    answer = b""
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE
    ) as wire:
        wire.settimeout(ANSWER_S)
        wire.bind((0, 0))
        wire.send(request)
        while True:
            part = wire.recv(1 << 18)
            kinds = [one for one, _ in messages(part)]
            answer += part
            if flags & NLM_F_DUMP != NLM_F_DUMP or NLMSG_DONE in kinds:
                return answer


def _dump(kind: int, body: bytes) -> bytes:
    return _ask(kind, body, NLM_F_REQUEST | NLM_F_DUMP)


def read_links() -> list[Link]:
    """Every device of this network namespace."""
    return parse_links(_dump(RTM_GETLINK, struct.pack("=BxHiII", 0, 0, 0, 0, 0)))


def read_addresses() -> list[Assigned]:
    """Every address of this network namespace, IPv4 and IPv6."""
    return parse_addresses(_dump(RTM_GETADDR, struct.pack("=BBBBI", 0, 0, 0, 0, 0)))


def read_default_routes() -> list[Route]:
    """The default routes of IPv4."""
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, 0, 0, 0, 0, 0)
    routes = parse_routes(_dump(RTM_GETROUTE, body))
    return [one for one in routes if not one.destination and one.gateway]


def read_route(destination: str) -> Route:
    """The route that a packet to ``destination`` takes now.

    Raises:
        OSError: there is none (errno says why: ENETUNREACH), or it is no address.
    """
    family = socket.AF_INET6 if ":" in destination else socket.AF_INET
    raw = socket.inet_pton(family, destination)
    body = struct.pack("=BBBBBBBBI", family, 8 * len(raw), 0, 0, 0, 0, 0, 0, 0)
    body += struct.pack("=HH", 4 + len(raw), RTA_DST) + raw
    return parse_routes(_ask(RTM_GETROUTE, body, NLM_F_REQUEST))[0]


def read_neighbours() -> list[Neighbour]:
    """The hosts that this machine's neighbour tables know."""
    return parse_neighbours(
        _dump(RTM_GETNEIGH, struct.pack("=BxxxiHBB", 0, 0, 0, 0, 0))
    )
