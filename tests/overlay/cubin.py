"""The GPU machine code in a host library, read from its fat binaries.

Layout as nvcc 13 writes it (NVIDIA documents none): a fat binary starts with the magic
0xBA55ED50, u16 version, u16 header size, u64 payload size; then entries of u16 kind (2
is machine code), u16, u32 header size, u64 size, ..., u32 architecture at offset 28 and
u64 flags at offset 40, of which bit 20 marks arch-specific code (the "a").
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

MAGIC = struct.pack("<I", 0xBA55ED50)
CUDA_MACHINE = 190


def entries(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """(kind, architecture, flags, payload) of every entry of every fat binary."""
    start = data.find(MAGIC)
    while start >= 0:
        version, header, size = struct.unpack_from("<HHQ", data, start + 4)
        end = start + header + size
        if (version, header) == (1, 16) and end <= len(data):
            at = start + header
            while at < end:
                kind, _, skip, length = struct.unpack_from("<HHIQ", data, at)
                (arch,) = struct.unpack_from("<I", data, at + 28)
                (flags,) = struct.unpack_from("<Q", data, at + 40)
                yield kind, arch, flags, data[at + skip : at + skip + length]
                at += skip + length
        start = data.find(MAGIC, start + 4)


def targets(data: bytes) -> set[str]:
    """The targets such as ``sm_121a`` that a library has machine code for."""
    found = set()
    for kind, arch, flags, payload in entries(data):
        if kind != 2:
            found.add(f"ptx_{arch}")
            continue
        assert payload[:4] == b"\x7fELF"
        assert struct.unpack_from("<H", payload, 18) == (CUDA_MACHINE,)
        assert struct.unpack_from("<I", payload, 48)[0] >> 8 & 0xFF == arch
        found.add(f"sm_{arch}{'a' if flags & 1 << 20 else ''}")
    return found
