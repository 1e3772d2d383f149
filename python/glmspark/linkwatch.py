"""Whether the fabric's device is up and memory is left, watched while a rank runs.

vLLM does not notice a cable that is gone: a request hangs until its time-out. The
standard library alone: it is sent to the node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from glmspark.facts import Roots, read_memory
from glmspark.netlink import Link, read_links

# A link that is down for longer does not come back before NCCL gives up; shorter ones
# (a switch's port that renegotiates) are none of our business.
DOWN_S = 5.0
DOWN = frozenset({"down", "lowerlayerdown", "notpresent", "dormant"})
VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def device_of(env: Mapping[str, str]) -> str:
    """The device that a rank's collectives are bound to; "" where none is named."""
    for name in VARIABLES:
        if value := env.get(name, "").lstrip("=").partition(",")[0]:
            return value
    return ""


class LinkWatch:
    """Says when a device has been down for too long; loopback never is."""

    def __init__(
        self, device: str, read: Callable[[], Sequence[Link]] = read_links
    ) -> None:
        self._device = device
        self._read = read
        self._up_s: float | None = None

    def broken(self, now_s: float) -> str:
        """What is wrong with the device at ``now_s``; "" while it is well.

        A device that was never seen up is not judged: nothing is known of it.
        """
        if not self._device or self._device == "lo":
            return ""
        try:
            links = [one for one in self._read() if one.name == self._device]
        except (OSError, ValueError):
            return ""
        if links and links[0].is_up and links[0].operstate not in DOWN:
            self._up_s = now_s
        if self._up_s is None or now_s - self._up_s < DOWN_S:
            return ""
        word = "is down" if links else "has gone"
        return f"the fabric: device {self._device} {word}"


class MemoryWatch:
    """Says when a host is about to run out of memory, before the kernel decides.

    A Spark whose memory is all gone answers pings and no ssh, until it is unplugged.
    Two looks in a row must agree.
    """

    def __init__(self, roots: Roots | None = None) -> None:
        self._roots = roots or Roots()
        self._low = 0

    def short(self) -> str:
        """What is wrong; "" while there is enough, or it cannot be read."""
        try:
            sizes = read_memory(self._roots)
            available, total = sizes["MemAvailable"], sizes["MemTotal"]
        except (OSError, ValueError, LookupError):
            return ""
        self._low = self._low + 1 if available < reserve(total) else 0
        if self._low < 2:
            return ""
        return (
            f"the memory: {available >> 20} MiB of {total >> 20} are left, "
            f"{reserve(total) >> 20} are kept (out of memory)"
        )


def reserve(total: int) -> int:
    """What must stay available of ``total`` bytes: a hundredth, at most 1 GiB."""
    return min(total // 100, 1 << 30)
