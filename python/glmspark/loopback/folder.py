"""A folder of generated files that is either whole and right, or made again."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

MANIFEST = "glmspark-manifest.json"


@dataclass(frozen=True)
class ModelFile:
    """One file: its name in the folder, its size in bytes, its sha256 in hex."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class GeneratedModel:
    """A folder that vLLM opens, and the files that it holds, sorted by name."""

    path: Path
    files: tuple[ModelFile, ...]

    def manifest(self) -> list[dict[str, object]]:
        """``path``, ``size`` and ``sha256`` of each file, for a fingerprint."""
        return [asdict(file) for file in self.files]

    @property
    def content_hash(self) -> str:
        """sha256 over the manifest: equal exactly where all bytes are equal."""
        text = json.dumps(self.manifest(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def ensure(
    directory: Path, recipe: str, make_files: Callable[[], Mapping[str, bytes]]
) -> GeneratedModel:
    """The folder ``directory`` with the files that ``make_files`` gives.

    A folder that is whole and was made by the same ``recipe`` (any text that changes
    when the files do) is kept. Anything else that we made there is replaced by rename,
    so a reader sees the old files or the new ones. Two callers wait for each other.
    Raises OSError where the folder cannot be written, and FileExistsError where it
    holds something that we did not make.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _locked(directory.parent / f".{directory.name}.lock"):
        kept = _read(directory, recipe)
        if kept is not None:
            return kept
        _refuse_foreign(directory)
        draft = directory.parent / f".{directory.name}.draft"
        _remove(draft)
        _write(draft, recipe, make_files())
        old = directory.parent / f".{directory.name}.old"
        _remove(old)
        if directory.exists():
            directory.rename(old)
        draft.rename(directory)
        _sync(directory.parent)
        _remove(old)
        made = _read(directory, recipe)
    if made is None:
        raise OSError(f"{directory} does not hold what was just written into it")
    return made


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read(directory: Path, recipe: str) -> GeneratedModel | None:
    """The folder's content where each file has the hash in its manifest, else None."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text())
        files = tuple(ModelFile(**entry) for entry in manifest["files"])
        right = manifest["recipe"] == recipe and all(
            _describe(file.path, (directory / file.path).read_bytes()) == file
            for file in files
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return GeneratedModel(directory, files) if right else None


def _refuse_foreign(directory: Path) -> None:
    if not directory.exists() or (directory / MANIFEST).exists():
        return
    if any(directory.iterdir()):
        raise FileExistsError(f"{directory} holds files that glmspark did not make")


def _describe(name: str, content: bytes) -> ModelFile:
    return ModelFile(name, len(content), hashlib.sha256(content).hexdigest())


def _write(draft: Path, recipe: str, files: Mapping[str, bytes]) -> None:
    """Write all files, then the manifest, each to the disk before the next step."""
    draft.mkdir()
    entries = [asdict(_describe(name, files[name])) for name in sorted(files)]
    text = json.dumps({"recipe": recipe, "files": entries}, indent=1)
    for name, content in [*files.items(), (MANIFEST, text.encode())]:
        with (draft / name).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    _sync(draft)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
