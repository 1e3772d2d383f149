"""Look into ELF files: ``elf.py resolve TREE DIRS --allow PATTERN...`` and others.

``resolve`` lists what the loader would not find for each ELF file of TREE, by run
paths and the folders of DIRS (separated by colons), and fails unless all of it is
allowed. With ``--inside``, a library that lies anywhere in TREE counts as found:
autoPatchelf, which sets the run paths to it, has not been there yet.
``undefined TREE PATTERN`` lists undefined symbols by name. ``machine-code FILE`` lists
the GPU architectures in FILE's fat binary. Only 64-bit little-endian ELF is read.
"""

from __future__ import annotations

import argparse
import fnmatch
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# elf.h: section types and dynamic tags
SHT_DYNAMIC, SHT_DYNSYM = 6, 11
DT_NEEDED, DT_SONAME, DT_RPATH, DT_RUNPATH = 1, 14, 15, 29
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


@dataclass(frozen=True)
class Section:
    """Name, type, the link to another section, and the bytes."""

    name: str
    kind: int
    link: int
    data: bytes


@dataclass(frozen=True)
class Dynamic:
    """What a loader needs to know of a file."""

    needed: tuple[str, ...]
    search: tuple[str, ...]


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def sections(data: bytes) -> list[Section]:
    """The sections of an ELF file's bytes; empty for what is not 64-bit ELF."""
    if data[:6] != b"\x7fELF\x02\x01":
        return []
    (start,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    rows = [_SECTION.unpack_from(data, start + i * size) for i in range(count)]
    if not rows:
        return []
    strings = data[rows[names][4] : rows[names][4] + rows[names][5]]
    return [
        Section(_text(strings, name), kind, link, data[at : at + length])
        for name, kind, _, _, at, length, link, *_ in rows
    ]


def dynamic(data: bytes) -> Dynamic:
    """NEEDED names and run path of an ELF file's bytes."""
    all_sections = sections(data)
    needed: list[str] = []
    search: list[str] = []
    for section in (s for s in all_sections if s.kind == SHT_DYNAMIC):
        strings = all_sections[section.link].data
        for tag, value in struct.iter_unpack("<qQ", section.data):
            if tag == DT_NEEDED:
                needed.append(_text(strings, value))
            elif tag in {DT_RPATH, DT_RUNPATH}:
                search += _text(strings, value).split(":")
    return Dynamic(tuple(needed), tuple(search))


def undefined_symbols(data: bytes) -> set[str]:
    """Names that an ELF file expects from elsewhere."""
    all_sections = sections(data)
    found: set[str] = set()
    for section in (s for s in all_sections if s.kind == SHT_DYNSYM):
        strings = all_sections[section.link].data
        for name, _, _, index, _, _ in _SYMBOL.iter_unpack(section.data):
            if index == 0 and name:
                found.add(_text(strings, name))
    return found


def gpu_architectures(data: bytes) -> set[str]:
    """``sm_121a``, ``compute_90`` and such of a file's fat binaries.

    Source: the layout that nvcc 13 writes, read from its output for sm_90, 120 and 121
    with and without "a" and "f": a region starts with magic 0xBA55ED50, version (u16),
    header size (u16) and length (u64); an entry holds kind (u16: 1 PTX, 2 machine code),
    header size at 4 (u32), length at 8 (u64), the architecture at 28 (u32) and flags
    at 40 (u64), of which bit 20 marks an "a" and bit 21 an "f" variant.
    """
    found: set[str] = set()
    for section in sections(data):
        if section.name == ".nv_fatbin":
            found |= set(_fatbin_entries(section.data))
    return found


def _fatbin_entries(data: bytes) -> Iterator[str]:
    at = data.find(b"\x50\xed\x55\xba")
    while at >= 0:
        header, length = struct.unpack_from("<HQ", data, at + 6)
        entry, end = at + header, at + header + length
        while entry < end:
            kind, _, entry_header, entry_length = struct.unpack_from(
                "<HHIQ", data, entry
            )
            (arch,) = struct.unpack_from("<I", data, entry + 28)
            (flags,) = struct.unpack_from("<Q", data, entry + 40)
            variant = "a" if flags >> 20 & 1 else "f" if flags >> 21 & 1 else ""
            yield f"{'compute' if kind == 1 else 'sm'}_{arch}{variant}"
            entry += entry_header + entry_length
        at = data.find(b"\x50\xed\x55\xba", end)


def elf_files(tree: Path) -> Iterator[tuple[Path, bytes]]:
    """Each ELF file below ``tree``, links left out."""
    for file in sorted(tree.rglob("*")):
        if file.is_file() and not file.is_symlink():
            with file.open("rb") as stream:
                if stream.read(4) == b"\x7fELF":
                    yield file, b"\x7fELF" + stream.read()


def missing_libraries(
    file: Path, facts: Dynamic, folders: list[Path], known: frozenset[str]
) -> list[str]:
    """NEEDED names that are neither ``known`` nor in the run path or ``folders``."""
    own = [Path(p.replace("$ORIGIN", str(file.parent))) for p in facts.search if p]
    return [
        name
        for name in facts.needed
        if name not in known and not any((d / name).exists() for d in [*own, *folders])
    ]


def resolve(
    tree: Path, folders: list[Path], allowed: list[str], *, inside: bool = False
) -> int:
    """Print what is not found; 1 where that is not allowed."""
    status, count = 0, 0
    known = frozenset(f.name for f in tree.rglob("*.so*")) if inside else frozenset()
    unfound: dict[str, list[str]] = {}
    for file, data in elf_files(tree):
        count += 1
        for name in missing_libraries(file, dynamic(data), folders, known):
            unfound.setdefault(name, []).append(str(file.relative_to(tree)))
    for name, files in sorted(unfound.items()):
        is_allowed = any(fnmatch.fnmatchcase(name, pattern) for pattern in allowed)
        status |= not is_allowed
        word = "allowed" if is_allowed else "MISSING"
        sys.stdout.write(f"{word} {name}: {', '.join(sorted(files)[:5])}\n")
    sys.stdout.write(f"{count} ELF files\n")
    return status if count else 1


def main() -> int:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("resolve")
    verb.add_argument("tree", type=Path)
    verb.add_argument("folders")
    verb.add_argument("--allow", nargs="*", default=[])
    verb.add_argument("--inside", action="store_true")
    verb = verbs.add_parser("undefined")
    verb.add_argument("tree", type=Path)
    verb.add_argument("pattern")
    verb = verbs.add_parser("machine-code")
    verb.add_argument("file", type=Path)
    args = parser.parse_args()
    if args.verb == "resolve":
        folders = [Path(p) for p in args.folders.split(":") if p]
        return resolve(args.tree, folders, args.allow, inside=args.inside)
    if args.verb == "undefined":
        names = set[str]().union(
            *(undefined_symbols(d) for _, d in elf_files(args.tree))
        )
        wanted = sorted(n for n in names if fnmatch.fnmatchcase(n, args.pattern))
    else:
        wanted = sorted(gpu_architectures(args.file.read_bytes()))
    sys.stdout.writelines(f"{n}\n" for n in wanted)
    return 0 if wanted else 1


if __name__ == "__main__":
    sys.exit(main())
