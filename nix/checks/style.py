"""Whitespace of Nix and shell files: style.py FOLDER. Exit 1 with a line a finding."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

WIDTH = (
    120  # comments may be wider than nixfmt's 100 for code; no line is wider than this
)


def findings(name: str, text: str) -> Iterator[str]:
    """``name:line: what`` for each line that breaks a rule."""
    for number, line in enumerate(text.split("\n"), start=1):
        if "\t" in line:
            yield f"{name}:{number}: tab"
        if line != line.rstrip():
            yield f"{name}:{number}: trailing space"
        if len(line) > WIDTH:
            yield f"{name}:{number}: {len(line)} columns, at most {WIDTH}"
    if not text.endswith("\n"):
        yield f"{name}: no newline at the end"


def main() -> int:
    """Check every file below the folder."""
    root = Path(sys.argv[1])
    files = sorted(f for ext in ("nix", "sh") for f in root.rglob(f"*.{ext}"))
    found = [
        f
        for file in files
        for f in findings(str(file.relative_to(root)), file.read_text())
    ]
    sys.stdout.writelines(f"{line}\n" for line in found)
    sys.stdout.write(f"{len(files)} files\n")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main())
