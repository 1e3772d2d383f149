"""NCCL's device selector (NCCL_IB_HCA, NCCL_SOCKET_IFNAME), read as NCCL reads it."""

from __future__ import annotations

from dataclasses import dataclass

# NCCL reads at most this many names and ignores the rest without a word.
MAX_NAMES = 32


@dataclass(frozen=True)
class Selector:
    """A parsed selector: names with an optional port, and how they are compared.

    Without ``exact`` a name selects every device that begins with it; ``excludes``
    turns the choice round.
    """

    names: tuple[tuple[str, int | None], ...]
    exact: bool = False
    excludes: bool = False

    def selects(self, device: str, port: int = 1) -> bool:
        """Whether NCCL would use this port of ``device``; an empty list is all."""
        listed = not self.names or any(
            (device == name if self.exact else device.startswith(name))
            and (wanted is None or wanted == port)
            for name, wanted in self.names
        )
        return listed != self.excludes


def parse_selector(text: str) -> Selector:
    """The selector that NCCL understands by ``text``: ``^`` first, then ``=``.

    A port is what stands behind a colon; as in NCCL, text that is no number is port 0,
    which no device has.
    """
    excludes = text.startswith("^")
    text = text.removeprefix("^")
    exact = text.startswith("=")
    names: list[tuple[str, int | None]] = []
    for item in text.removeprefix("=").split(","):
        name, colon, port = item.partition(":")
        if name:
            number = int(port) if port.isdecimal() else 0
            names.append((name, number if colon else None))
    return Selector(tuple(names[:MAX_NAMES]), exact, excludes)
