"""Find the line of a key in a TOML text, so that an error can point at it.

The standard library's parser keeps no positions. This looks for the key textually: it
is exact for the layout that people write (one key a line, ``[table]`` and ``[[list]]``
headers, dotted keys, inline tables) and falls back to the table's header.
"""

from __future__ import annotations

import re

_HEADER = re.compile(r"^\s*(\[\[?)\s*([A-Za-z0-9_.\"' -]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"^\s*([A-Za-z0-9_.\"' -]+?)\s*=")


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in text.split("."))


def line_of(text: str, key: tuple[str | int, ...]) -> int:
    """The 1-based line of ``key`` in ``text``; the nearest enclosing table's, else 1.

    ``key`` is a path such as ``("serve", "port")`` or ``("nodes", 1, "fabric")``.
    """
    prefix: tuple[str | int, ...] = ()
    seen: dict[tuple[str, ...], int] = {}
    best, best_depth = 1, 0
    for number, line in enumerate(text.split("\n"), start=1):
        header = _HEADER.match(line)
        if header:
            name = _parts(header[2])
            prefix = name
            if header[1] == "[[":
                seen[name] = seen.get(name, -1) + 1
                prefix = (*name, seen[name])
            here = prefix
        elif match := _KEY.match(line):
            here = (*prefix, *_parts(match[1]))
        else:
            continue
        if here == key:
            return number
        if len(here) > best_depth and key[: len(here)] == here:
            best, best_depth = number, len(here)
    return best
