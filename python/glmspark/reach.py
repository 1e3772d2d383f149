"""Whether this node reaches its peers over the fabric: ARP, route, full-size, ports.

Sends a few packets and changes nothing but the neighbour table, which it warms: RoCE
spends its retries where an address is not resolved yet.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from glmspark import netlink

ECHO, ECHO_REPLY = 8, 0
ECHO_V6, REPLY_V6, ALL_NODES = 128, 129, "ff02::1"
IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2
ICMP_HEADERS = 20 + 8
SHORT = 56
LARGEST = 65535 - ICMP_HEADERS
WAIT_S = 1.0
TRIES = 3


@dataclass(frozen=True)
class PathFacts:
    """How a node reaches ``peer``.

    ``netdev`` and ``source`` are the route's. ``answers`` and ``full_size`` say whether
    a short and an MTU-size unfragmented ping came back (None: not tried), ``why`` what
    was in the way. ``ports`` maps a TCP port to open, refused (nothing listens, the
    way is free), dropped, or the error.
    """

    peer: str
    netdev: str = ""
    source: str = ""
    mtu: int = 0
    gateway: str = ""
    answers: bool | None = None
    full_size: bool | None = None
    why: str = ""
    ports: Mapping[int, str] = field(default_factory=dict)


def checksum(data: bytes) -> int:
    """The Internet checksum of ``data`` (RFC 1071)."""
    data += bytes(len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total


def _socket() -> socket.socket:
    """A socket for echo requests: the unprivileged kind, or a raw one for root.

    Raises:
        OSError: this user may have neither (net.ipv4.ping_group_range).
    """
    try:
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    except PermissionError:
        return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)


def ping(peer: str, source: str, payload_bytes: int, wait_s: float = WAIT_S) -> bool:
    """Whether one unfragmented echo of ``payload_bytes`` came back in ``wait_s``.

    Raises:
        OSError: it could not be sent; EMSGSIZE where it is too big for this end.
    """
    token = os.urandom(8)
    body = token + bytes(max(0, payload_bytes - len(token)))
    head = struct.pack("!BBHHH", ECHO, 0, 0, os.getpid() & 0xFFFF, 1)
    packet = head[:2] + struct.pack("!H", checksum(head + body)) + head[4:] + body
    with _socket() as wire:
        wire.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        wire.bind((source, 0))
        wire.sendto(packet, (peer, 0))
        deadline_s = time.monotonic() + wait_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            if not select.select([wire], [], [], left_s)[0]:
                return False
            answer, sender = wire.recvfrom(1 << 16)
            if sender[0] == peer and token in answer and _is_reply(answer):
                return True
    return False


def _is_reply(answer: bytes) -> bool:
    """Whether it is an echo reply; a raw socket's answers begin with the IP header."""
    header = (answer[0] & 0x0F) * 4 if answer[0] >> 4 == 4 else 0
    return len(answer) > header and answer[header] == ECHO_REPLY


def tcp_way(peer: str, source: str, port: int, wait_s: float = WAIT_S) -> str:
    """Open, refused, dropped, or the error of a TCP connection to ``port``."""
    try:
        with socket.create_connection((peer, port), wait_s, (source, 0)):
            return "open"
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "dropped"
    except OSError as error:
        return error.strerror or str(error)


def _try_ping(peer: str, source: str, payload_bytes: int) -> tuple[bool, str]:
    for _ in range(TRIES):
        try:
            if ping(peer, source, payload_bytes):
                return True, ""
        except OSError as error:
            if error.errno in {errno.EMSGSIZE, errno.EPERM, errno.EACCES}:
                return False, error.strerror or str(error)
            last = error.strerror or str(error)
        else:
            last = "no answer"
    return False, last


def look_at(peer: str, ports: Sequence[int], names: Mapping[int, str]) -> PathFacts:
    """The path to ``peer``; ``names`` maps the indexes of devices to their names."""
    try:
        route = netlink.read_route(peer)
        mtus = {link.index: link.mtu for link in netlink.read_links()}
    except OSError as error:
        return PathFacts(peer, why=f"no route: {error.strerror or error}")
    mtu, source = mtus.get(route.index, 0), route.source
    answers, why = _try_ping(peer, source, SHORT)
    full: bool | None = None
    if answers:
        full, why = _try_ping(peer, source, min(mtu - ICMP_HEADERS, LARGEST))
    with ThreadPoolExecutor(max(1, len(ports))) as pool:
        ways = list(pool.map(lambda port: tcp_way(peer, source, port), ports))
    netdev = names.get(route.index, "")
    found = dict(zip(ports, ways, strict=True))
    return PathFacts(
        peer, netdev, source, mtu, route.gateway, answers, full, why, found
    )


def look(peers: Sequence[str], ports: Sequence[int]) -> list[dict[str, Any]]:
    """The paths to all ``peers`` as plain data, tried at the same time."""
    if not peers:
        return []
    names = {link.index: link.name for link in netlink.read_links()}
    with ThreadPoolExecutor(len(peers)) as pool:
        found = pool.map(lambda peer: look_at(peer, ports, names), peers)
        return [asdict(one) for one in found]


def _socket_v6() -> socket.socket:
    """A socket for IPv6 echo requests, as :func:`_socket`."""
    try:
        return socket.socket(socket.AF_INET6, socket.SOCK_DGRAM, socket.IPPROTO_ICMPV6)
    except PermissionError:
        return socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)


def hear(netdevs: Sequence[str], wait_s: float = WAIT_S) -> dict[str, list[str]]:
    """Who answers on each device: the link-local addresses at the other end.

    Works where no address is set: every port that is up has a link-local one. The
    device's own address may be among the answers.

    Raises:
        OSError: this user may not send echo requests.
    """
    indexes = {link.name: link.index for link in netlink.read_links()}
    heard: dict[str, set[str]] = {name: set() for name in netdevs}
    names = {indexes[name]: name for name in netdevs if name in indexes}
    token = os.urandom(8)
    packet = struct.pack("!BBHHH", ECHO_V6, 0, 0, os.getpid() & 0xFFFF, 1) + token
    with _socket_v6() as wire:
        for _ in range(2):  # the first may be lost while addresses are made certain
            for index in names:
                with suppress(OSError):  # IPv6 is off on this device
                    wire.sendto(packet, (ALL_NODES, 0, 0, index))
            deadline_s = time.monotonic() + wait_s / 2
            while (left_s := deadline_s - time.monotonic()) > 0:
                if not select.select([wire], [], [], left_s)[0]:
                    break
                answer, (address, _, _, index) = wire.recvfrom(1 << 12)
                if answer[:1] == bytes([REPLY_V6]) and token in answer:
                    heard[names[index]].add(address.partition("%")[0])
    return {name: sorted(found) for name, found in heard.items()}
