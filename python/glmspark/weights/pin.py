"""Pins: a file that is not part of the checkpoint, placed in its view by hash."""

from __future__ import annotations

from pathlib import Path

from glmspark.errors import ConfigError
from glmspark.weights import hashing, locks, part
from glmspark.weights.manifest import FileEntry, Manifest
from glmspark.weights.store import Store


def pin(
    store: Store, manifest: Manifest, path: str, file: Path, sha256: str = ""
) -> Manifest:
    """``manifest`` with ``file``'s bytes at ``path``, over the checkpoint's own if any.

    The bytes become a blob, so that ``share``, ``export`` and ``verify`` carry and
    check them like the rest. With ``sha256`` the file must hash to it.
    """
    if file.exists() and not file.is_file():
        raise ConfigError(f"{file} is no regular file")
    try:
        hashes = hashing.hash_file(file)
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    entry = FileEntry(path, hashes.size, sha256 or hashes.sha256, pinned=True)
    with locks.using(store):
        with part.claimed(store, entry, lambda: None) as grown:
            if grown is not None:
                grown.restart()
                with file.open("rb") as source:
                    while chunk := source.read(hashing.CHUNK_BYTES):
                        grown.write(chunk)
                grown.enter(grown.check(str(file)))
        others = [e for e in store.resolve(manifest).files if e.path != path]
        return store.register(manifest.with_files([*others, entry]))
