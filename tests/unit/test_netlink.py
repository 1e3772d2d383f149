"""Netlink: recorded answers are parsed, damaged ones refused; real namespaces agree."""

from __future__ import annotations

import errno
import json
import shutil
import socket
import struct
import subprocess

import pytest
from glmspark import netlink
from glmspark.fabricfacts import join, read_fabric
from glmspark.facts import Roots


def attribute(kind: int, raw: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(raw), kind) + raw + bytes(-len(raw) % 4)


def message(kind: int, payload: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(payload), kind, 2, 1, 0) + payload


def link(name: str, *, flags: int = 1, state: int = 6, kind: bytes = b"") -> bytes:
    info = attribute(18, attribute(1, kind)) if kind else b""
    return message(
        16,
        struct.pack("=BxHiII", 0, 1, 5, flags, 0)
        + attribute(3, name.encode() + b"\0")
        + attribute(4, struct.pack("=I", 9000))
        + attribute(16, bytes([state]))
        + attribute(1, bytes.fromhex("020000000001"))
        + info,
    )


def test_a_link_has_name_mtu_state_and_kind() -> None:
    (one,) = netlink.parse_links(link("enp1s0f0np0") + message(3, bytes(4)))
    assert one == netlink.Link(
        5, "enp1s0f0np0", 9000, "up", True, "02:00:00:00:00:01", ""
    )
    (veth,) = netlink.parse_links(link("v", flags=0, state=2, kind=b"veth\0"))
    assert (veth.kind, veth.operstate, veth.is_up) == ("veth", "down", False)
    (lo,) = netlink.parse_links(link("lo", flags=9))
    assert lo.kind == "loopback" and join([lo], []) == ()


def test_the_local_end_of_a_point_to_point_address_counts() -> None:
    raw = struct.pack("=BBBBI", socket.AF_INET, 30, 0, 0, 5)
    peer, own = socket.inet_aton("10.66.0.1"), socket.inet_aton("10.66.0.2")
    data = message(20, raw + attribute(1, peer) + attribute(2, own))
    assert netlink.parse_addresses(data) == [netlink.Assigned(5, "10.66.0.2", 30)]


def test_a_route_has_device_gateway_and_source() -> None:
    raw = struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 3, 0, 1, 0)
    data = message(
        24,
        raw
        + attribute(4, struct.pack("=I", 7))
        + attribute(5, socket.inet_aton("10.66.0.9")),
    )
    assert netlink.parse_routes(data) == [netlink.Route("", 7, "10.66.0.9", "")]


def test_an_error_of_the_kernel_keeps_its_number() -> None:
    data = message(2, struct.pack("=i", -errno.EPERM) + bytes(16))
    with pytest.raises(OSError, match="not permitted") as caught:
        list(netlink.messages(data))
    assert caught.value.errno == errno.EPERM


@pytest.mark.parametrize("cut", [30, 40, 60])
def test_a_cut_answer_is_refused(cut: int) -> None:
    with pytest.raises(ValueError, match="cut"):
        netlink.parse_links(link("enp1s0f0np0")[:cut])
    data = bytearray(link("e"))
    data[32:34] = struct.pack("=H", 900)  # the first attribute claims 900 bytes
    with pytest.raises(ValueError, match="cut"):
        netlink.parse_links(bytes(data))


def test_the_kernels_own_answers_agree_with_ip() -> None:
    if not shutil.which("ip"):
        pytest.skip("needs ip of iproute2 to compare with")
    said = json.loads(
        subprocess.run(["ip", "-j", "addr"], capture_output=True, check=True).stdout
    )
    links = {one.name: one for one in netlink.read_links()}
    addresses = netlink.read_addresses()
    for row in said:
        one = links[row["ifname"]]
        assert (one.index, one.mtu) == (row["ifindex"], row["mtu"])
        assert one.operstate == row["operstate"].lower()
        held = {(a.address, a.prefix) for a in addresses if a.index == one.index}
        assert held == {(a["local"], a["prefixlen"]) for a in row["addr_info"]}


def test_a_route_to_this_host_leaves_by_loopback() -> None:
    assert netlink.read_route("127.0.0.1").index == 1
    with pytest.raises(OSError, match="illegal"):
        netlink.read_route("not-an-address")


def test_a_refused_socket_is_named_as_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> list[netlink.Link]:
        raise OSError(errno.EPERM, "netlink: Operation not permitted")

    monkeypatch.setattr(netlink, "read_links", refuse)
    facts = read_fabric(Roots())
    assert facts.netdevs == ()
    assert any(line.startswith("network devices: ") for line in facts.unread)
