"""Manifests: which files a repository has at one commit, with sizes and hashes."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from glmspark.errors import ConfigError

FORMAT = 1
_HEX40 = re.compile(r"[0-9a-f]{40}")
_HEX64 = re.compile(r"[0-9a-f]{64}")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)


@dataclass(frozen=True)
class FileEntry:
    """One file: its path in the view, size in bytes, and what its bytes must hash to.

    The Hub tells the sha256 of large files only. A small file has ``git_oid``, the
    git blob id, until its bytes were seen once; then it has both. ``pinned`` marks a
    file that the repository does not have and that the user placed in the view.
    """

    path: str
    size: int
    sha256: str = ""
    git_oid: str = ""
    pinned: bool = False

    @property
    def key(self) -> str:
        """The bytes' name: the sha256, or ``git-<oid>`` while only that is known."""
        return self.sha256 or f"git-{self.git_oid}"

    def to_json(self) -> dict[str, Any]:
        """The entry with its empty fields left out."""
        fields = {"path": self.path, "size": self.size, "sha256": self.sha256}
        fields |= {"git_oid": self.git_oid, "pinned": self.pinned}
        return {k: v for k, v in fields.items() if v or k == "size"}


@dataclass(frozen=True)
class Mirror:
    """A repository that is declared to hold the same bytes under the same paths."""

    repo: str
    revision: str
    note: str = ""

    def to_json(self) -> dict[str, str]:
        """The mirror as a mapping."""
        return {"repo": self.repo, "revision": self.revision, "note": self.note}


@dataclass(frozen=True)
class Manifest:
    """The files of ``repo`` at commit ``revision``, in byte order of their paths."""

    repo: str
    revision: str
    files: tuple[FileEntry, ...]
    mirrors: tuple[Mirror, ...] = ()
    license: str = ""

    @property
    def slug(self) -> str:
        """The manifest's name in the store, fit for a file name."""
        return f"{self.repo.replace('/', '--')}--{self.revision[:12]}"

    @property
    def ref(self) -> str:
        """``repo@revision`` with the whole commit."""
        return f"{self.repo}@{self.revision}"

    @property
    def total_bytes(self) -> int:
        """The sum of the files' sizes."""
        return sum(entry.size for entry in self.files)

    @property
    def is_resolved(self) -> bool:
        """Whether the sha256 of every file is known."""
        return all(entry.sha256 for entry in self.files)

    def digest(self) -> str:
        """sha256 over all hashes, sizes and paths: equal where views are equal."""
        digest = hashlib.sha256()
        for entry in self.files:
            digest.update(f"{entry.key} {entry.size} {entry.path}\n".encode())
        return digest.hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The manifest as it is written to a lock file."""
        return {
            "format": FORMAT,
            "repo": self.repo,
            "revision": self.revision,
            "license": self.license,
            "mirrors": [mirror.to_json() for mirror in self.mirrors],
            "files": [entry.to_json() for entry in self.files],
        }

    def dumps(self) -> str:
        """The text of the lock file."""
        return json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n"

    def with_pins_of(self, before: Manifest) -> Manifest:
        """The same manifest with the files that were pinned into ``before``."""
        new = {entry.path for entry in self.files if entry.pinned}
        pins = [e for e in before.files if e.pinned and e.path not in new]
        hidden = {pin.path for pin in pins}
        files = [entry for entry in self.files if entry.path not in hidden]
        return self.with_files(files + pins)

    def check_agrees(self, other: Manifest) -> None:
        """Raise ConfigError if ``other`` has other bytes for a file of this commit."""
        theirs = {e.path: e for e in other.files if not e.pinned}
        for entry in self.files:
            their = theirs.get(entry.path)
            if entry.pinned or their is None or their.key == entry.key:
                continue
            if (entry.sha256 and their.sha256) or their.size != entry.size:
                raise ConfigError(
                    f"two lists of {self.ref} disagree on {entry.path}: {their.key} "
                    f"({their.size} bytes) is known, {entry.key} ({entry.size}) is new",
                    hint=f"if the known one is wrong: weights forget {self.slug}",
                )

    def with_files(self, files: list[FileEntry]) -> Manifest:
        """The same manifest with ``files``, sorted and checked."""
        return replace(self, files=_checked_files(files, self.ref))


def sort_key(entry: FileEntry) -> bytes:
    """Paths sort by their bytes, so that no locale can make two lists differ."""
    return entry.path.encode()


def _check_path(path: str, where: str) -> None:
    pure = PurePosixPath(path)
    unsafe = (
        not pure.parts
        or pure.is_absolute()
        or ".." in pure.parts
        or str(pure) != path
        or any(ord(char) < 32 or 0xD800 <= ord(char) < 0xE000 for char in path)
    )
    if unsafe:
        raise ConfigError(
            f"the manifest of {where} names the path {path!r}, which would leave the "
            "view; paths must be relative and plain",
            hint="take the lock file from its publisher again",
        )


def _checked_files(files: list[FileEntry], where: str) -> tuple[FileEntry, ...]:
    seen: set[str] = set()
    for entry in files:
        _check_path(entry.path, where)
        if entry.path in seen:
            raise ConfigError(f"the manifest of {where} names {entry.path!r} twice")
        seen.add(entry.path)
        has_sha = _HEX64.fullmatch(entry.sha256)
        has_git = _HEX40.fullmatch(entry.git_oid)
        has_size = type(entry.size) is int and entry.size >= 0
        if not has_size or not (has_sha or (has_git and not entry.sha256)):
            raise ConfigError(
                f"the manifest of {where} has no usable size or hash for {entry.path!r}"
            )
    sizes = {entry.key: entry.size for entry in files}
    for entry in files:
        if sizes[entry.key] != entry.size:
            raise ConfigError(
                f"the manifest of {where} gives {entry.key} two sizes: {entry.size} "
                f"and {sizes[entry.key]} bytes"
            )
    for path in seen:
        clash = next((p for p in PurePosixPath(path).parents if str(p) in seen), None)
        if clash is not None:
            raise ConfigError(
                f"the manifest of {where} names {str(clash)!r} both as file and folder"
            )
    return tuple(sorted(files, key=sort_key))


def check_name(repo: str) -> None:
    """Raise ConfigError unless ``repo`` is the name of a repository."""
    if not _REPO.fullmatch(repo) or ".." in repo or "--" in repo:
        raise ConfigError(f"{repo!r} is not a repository name such as owner/name")


def check_repo(repo: str, revision: str) -> None:
    """Raise ConfigError unless ``repo`` and the 40-hex ``revision`` name a commit."""
    check_name(repo)
    if not _HEX40.fullmatch(revision):
        raise ConfigError(
            f"{repo}@{revision} does not name a commit: 40 hex digits are needed",
            hint=f"glmspark weights lock {repo}",
        )


def make_manifest(
    repo: str, revision: str, files: list[FileEntry], **more: Any
) -> Manifest:
    """The checked manifest of ``repo`` at ``revision``; ``more``: its other fields."""
    check_repo(repo, revision)
    return Manifest(repo, revision, _checked_files(files, f"{repo}@{revision}"), **more)


def from_json(data: Any, where: str = "the lock file") -> Manifest:
    """The manifest in ``data``; ConfigError says what is wrong with it, and where."""
    try:
        if data["format"] != FORMAT:
            raise ConfigError(
                f"{where} has format {data['format']!r}; this version reads {FORMAT}",
                hint="use the version of glmspark that wrote it",
            )
        files = [FileEntry(**entry) for entry in data["files"]]
        mirrors = tuple(Mirror(**mirror) for mirror in data.get("mirrors", ()))
        for mirror in mirrors:
            check_repo(mirror.repo, mirror.revision)
        repo, revision = str(data["repo"]), str(data["revision"])
        return make_manifest(
            repo, revision, files, mirrors=mirrors, license=data.get("license", "")
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{where} is not a weights lock: {type(error).__name__}: {error}",
            hint="glmspark weights lock REPO",
        ) from error


def load(path: Path) -> Manifest:
    """The manifest in the lock file ``path``; ConfigError where it cannot be read."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read the lock file {path}: {error}") from error
    return from_json(data, str(path))
