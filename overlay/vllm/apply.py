"""Apply the patches of this folder to a tree that holds ``vllm/``, with zero fuzz.

``python apply.py TREE`` where TREE is site-packages of vLLM 0.32.0 (or a copy).
``--check`` changes nothing; ``--reverse`` takes the patches back; ``--link SITE`` first
makes TREE of links into the installed SITE/vllm, so that PYTHONPATH=TREE runs a patched
engine and nothing installed changes. Every hunk must match at its very line: a tree of
another version is refused, not half patched. Exit status 0 done, 7 a patch does not
match, 2 usage.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
HEADER = ("Why:", "Upstream:", "Delete when:", "Proved by:")


class PatchError(Exception):
    """A patch that is malformed or does not match the tree; the text says where."""


@dataclass(frozen=True)
class Hunk:
    """Lines to find at ``start`` (1-based, in the old file) and what replaces them."""

    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True)
class FilePatch:
    """All hunks of one file; ``path`` is relative to the tree."""

    patch: str
    path: str
    hunks: tuple[Hunk, ...]

    @property
    def makes(self) -> bool:
        """Whether the patch makes a new file."""
        return self.hunks[0].start == 0

    def reversed(self) -> FilePatch:
        """The patch that undoes this one."""
        hunks, shift = [], 0
        for hunk in self.hunks:
            hunks.append(Hunk(hunk.start + shift, hunk.new, hunk.old))
            shift += len(hunk.new) - len(hunk.old)
        return FilePatch(self.patch, self.path, tuple(hunks))


def patch_files(folder: Path = HERE) -> list[Path]:
    """The patches in the order of their numbers."""
    return sorted(folder.glob("[0-9][0-9][0-9][0-9]-*.patch"))


def _hunk(lines: list[str], at: int, match: re.Match[str], name: str) -> Hunk:
    want_old, want_new = (int(match[i]) if match[i] else 1 for i in (2, 4))
    old: list[str] = []
    new: list[str] = []
    for line in lines[at:]:
        if len(old) == want_old and len(new) == want_new:
            break
        kind, text = line[:1] or " ", line[1:]
        if kind not in " +-":
            break
        if kind in " -":
            old.append(text)
        if kind in " +":
            new.append(text)
    if (len(old), len(new)) != (want_old, want_new):
        raise PatchError(f"{name}: hunk at line {at} is cut short or miscounted")
    return Hunk(int(match[1]), tuple(old), tuple(new))


def parse(path: Path) -> list[FilePatch]:
    """The file patches of one .patch; PatchError without its four header lines."""
    lines = path.read_text("utf-8").split("\n")
    head = lines[: next((i for i, x in enumerate(lines) if x.startswith("--- ")), 0)]
    for word in HEADER:
        if not any(line.startswith(word) for line in head):
            raise PatchError(f"{path.name}: header has no '{word}' line")
    found: list[FilePatch] = []
    hunks: list[Hunk] = []
    for at, line in enumerate(lines):
        if line.startswith("+++ b/"):
            hunks = []
            found.append(FilePatch(path.name, line[6:].split("\t")[0], ()))
        elif match := HUNK.match(line):
            hunks.append(_hunk(lines, at + 1, match, path.name))
            found[-1] = FilePatch(path.name, found[-1].path, tuple(hunks))
    return found


def patched(text: str, patch: FilePatch) -> str:
    """``text`` with every hunk replaced at its very place; PatchError otherwise."""
    lines = text.split("\n")
    out: list[str] = []
    done = 0
    for hunk in patch.hunks:
        first = max(hunk.start - 1, 0)
        have = tuple(lines[first : first + len(hunk.old)])
        if have != hunk.old:
            raise PatchError(
                f"{patch.patch}: {patch.path}:{hunk.start} is not what the patch "
                "expects; it is for vLLM 0.32.0"
            )
        out += [*lines[done:first], *hunk.new]
        done = first + len(hunk.old)
    return "\n".join(out + lines[done:])


def plan(tree: Path, patches: Sequence[Path], *, reverse: bool) -> dict[Path, str]:
    """New texts by file, for all patches in order; nothing is written."""
    texts: dict[Path, str] = {}
    for path in reversed(patches) if reverse else patches:
        files = parse(path)
        for file in reversed(files) if reverse else files:
            target = tree / file.path
            if target not in texts:
                texts[target] = _read(target, file, reverse=reverse)
            texts[target] = patched(texts[target], file.reversed() if reverse else file)
    return texts


def _read(target: Path, file: FilePatch, *, reverse: bool) -> str:
    """The file's text; empty for one that the patch makes, which must not be there."""
    if target.is_file() == (file.makes and not reverse):
        state = "exists already" if target.is_file() else "does not exist"
        raise PatchError(f"{file.patch}: {target} {state}")
    return target.read_text("utf-8") if target.is_file() else ""


def apply(tree: Path, *, reverse: bool = False, check: bool = False) -> list[Path]:
    """Patch ``tree`` and give the files changed: all of them, or none at an error."""
    texts = plan(tree, patch_files(), reverse=reverse)
    if not check:
        for target, text in texts.items():
            target.unlink(missing_ok=True)  # never write through a link of a test tree
            if text:
                target.write_text(text, "utf-8")
    return sorted(texts)


def link_tree(source: Path, target: Path) -> None:
    """Make ``target``: every folder of ``source`` anew, every file a link into it.

    Folders of byte code are linked whole, so readers find it. Run with
    PYTHONDONTWRITEBYTECODE=1, or patched files would leave theirs among it.
    """
    target.mkdir(parents=True)
    for item in source.iterdir():
        if item.is_dir() and item.name != "__pycache__":
            link_tree(item, target / item.name)
        else:
            (target / item.name).symlink_to(item.resolve())


def touched() -> Iterator[str]:
    """Paths that the patches change, relative to the tree."""
    for path in patch_files():
        for file in parse(path):
            yield file.path


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", type=Path, help="folder that holds vllm/")
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("--reverse", action="store_true", help="take patches back")
    parser.add_argument("--link", type=Path, metavar="SITE", help="make TREE of links")
    args = parser.parse_args(argv)
    try:
        if args.link:
            link_tree(args.link / "vllm", args.tree / "vllm")
        files = apply(args.tree, reverse=args.reverse, check=args.check)
    except PatchError as error:
        sys.stderr.write(f"error: {error}\n")
        return 7
    sys.stderr.write(f"{len(patch_files())} patches, {len(files)} files\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
