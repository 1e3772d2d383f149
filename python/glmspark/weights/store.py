"""The store: one folder that holds every blob once, and the manifests that use them.

    blobs/sha256/ab/<hex>   the bytes, read-only           manifests/<slug>.json
    git/ab/<oid>            link to the blob with that git id    journal.jsonl
    views/<slug>            link to the current view in views/.gen/
    partial/<key>.part      files that grow        quarantine/   blobs that went bad
    leases/                 views in use           store.lock

Nothing outside the root is ever written. A blob gets its name by rename, after its
hash was found right and its bytes were synced, and never otherwise.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from pathlib import Path

from glmspark.errors import ConfigError
from glmspark.weights import manifest as manifests
from glmspark.weights.files import (
    DIR_MODE,
    OwnedFolder,
    fsync_dir,
    give,
    one_at_a_time,
)
from glmspark.weights.hashing import Hashes
from glmspark.weights.journal import Journal, Record
from glmspark.weights.manifest import FileEntry, Manifest

MARKER = "glmspark-store.json"
_FORMAT = 1
_MARK = json.dumps({"format": _FORMAT})
_is_hash = re.compile(r"[0-9a-f]{64}").fullmatch
_FOLDERS = (
    *("blobs/sha256", "git", "manifests", "views/.gen"),
    *("partial", "quarantine", "leases"),
)
_BLOB_MODE = 0o444


class BlobState(Enum):
    """What the store knows of a blob without reading its bytes."""

    PRESENT = "present"
    ABSENT = "absent"
    TOUCHED = "touched"  # there, but its stat is not the one that was hashed


def _nearest_existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _check_format(marker: Path) -> None:
    try:
        found = json.loads(marker.read_bytes())["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{marker} is damaged, so it is not known what this store is",
            hint=f"if it is a store of this version: echo '{_MARK}' > {marker}",
        ) from error
    if found != _FORMAT:
        raise ConfigError(
            f"the store {marker.parent} has format {found!r}; this version knows "
            f"{_FORMAT}",
            hint="use the version of glmspark that made it",
        )


class Store(OwnedFolder):
    """An opened store; see the module for its layout."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.journal = Journal(root / "journal.jsonl", self.adopt)

    @classmethod
    def open(cls, root: Path, *, create: bool = False) -> Store:
        """The store at ``root``; with ``create`` an empty one where there is nothing.

        ConfigError for a folder with other things in it, so that ``gc`` can never run
        over somebody's files, and for a root that this user cannot write.
        """
        root = root.expanduser().absolute()
        if (root / MARKER).is_file():
            _check_format(root / MARKER)
        else:
            if not create:
                raise ConfigError(
                    f"there is no weights store at {root}",
                    hint=f"glmspark weights fetch --store {root}",
                )
            cls._create(root)
        if create and not os.access(root, os.W_OK):
            stat = root.stat()
            if os.statvfs(root).f_flag & os.ST_RDONLY:
                raise ConfigError(
                    f"the store {root} is on a file system that is mounted read-only",
                    hint=f"findmnt -T {root}",
                )
            raise ConfigError(
                f"the store {root} belongs to uid {stat.st_uid} and cannot be written "
                f"by uid {os.geteuid()}; it was perhaps made by root or a container",
                hint=f"sudo chown -R {os.geteuid()}:{os.getegid()} {root}",
            )
        store = cls(root)
        for name in _FOLDERS if create else ():
            store.mkdir(root / name)
        return store

    @classmethod
    def _create(cls, root: Path) -> None:
        # A maker beside this one, or one that was killed, has left its marker's
        # temporary file at most: the marker comes before everything else.
        names = [p.name for p in root.iterdir()] if root.is_dir() else []
        if [name for name in names if not name.startswith(f".{MARKER}.")]:
            if MARKER in names:
                return
            raise ConfigError(
                f"{root} is not empty and not a weights store; it is left alone",
                hint="name an empty or new folder with --store",
            )
        base = _nearest_existing(root)
        owner = base.stat()
        try:
            for folder in [*reversed(root.parents), root]:
                if not folder.exists():
                    folder.mkdir(exist_ok=True)
                    give(folder, (owner.st_uid, owner.st_gid))
        except OSError as error:
            raise ConfigError(
                f"cannot make the store {root}: {error.strerror} on {base}, which "
                f"belongs to uid {owner.st_uid}; this is uid {os.geteuid()}",
                hint="name a folder of yours with --store",
            ) from error
        root.chmod(DIR_MODE)
        store = cls(root)
        store.write_text(root / MARKER, _MARK + "\n")

    # -- blobs --------------------------------------------------------------------

    def blob_path(self, sha256: str) -> Path:
        """Where the blob with that hash is or would be."""
        return self.root / "blobs" / "sha256" / sha256[:2] / sha256

    def part_path(self, key: str) -> Path:
        """Where the blob with that key grows."""
        return self.root / "partial" / f"{key}.part"

    def blobs(self) -> list[str]:
        """The hashes of all blobs, sorted."""
        base = self.root / "blobs" / "sha256"
        names: list[str] = []
        for folder in os.scandir(base):
            if len(folder.name) == 2 and folder.is_dir():
                found = [item.name for item in os.scandir(folder)]
                names += [n for n in found if n[:2] == folder.name and _is_hash(n)]
        return sorted(names)

    def state(self, sha256: str) -> BlobState:
        """What is known of a blob by its stat alone."""
        try:
            stat = self.blob_path(sha256).stat()
        except (FileNotFoundError, NotADirectoryError):
            return BlobState.ABSENT
        known = self.journal.records().get(sha256)
        same = known == Record.of(sha256, stat)
        return BlobState.PRESENT if same else BlobState.TOUCHED

    def enter(self, part: Path, fd: int, hashes: Hashes, *, private: bool) -> None:
        """Turn ``part``, open as ``fd`` with right ``hashes``, into a blob.

        ``private`` says that the inode is the store's alone: it is made read-only and
        given to the store's owner. A hard link's inode belongs to its source as well
        and is left as it is.
        """
        if private:
            os.fchmod(fd, _BLOB_MODE)
            self.adopt(fd)
            os.fsync(fd)
        else:
            os.fdatasync(fd)  # its new link is metadata, and no reason to wait
        target = self.blob_path(hashes.sha256)
        self.mkdir(target.parent)
        with one_at_a_time(self._quarantine):
            if os.path.lexists(target):  # it changed since it was hashed
                self._move_aside(hashes.sha256)
            part.replace(target)
        self._unsynced |= {target.parent, target.parent.parent}
        self.know(hashes)

    def know(self, hashes: Hashes, stat: os.stat_result | None = None) -> None:
        """Record that the blob's bytes hash to ``hashes``, and its stat of that time.

        Without ``stat`` the stat as it is now; give it where another program may have
        changed the blob meanwhile.
        """
        stat = stat or self.blob_path(hashes.sha256).stat()
        self.journal.add(Record.of(hashes.sha256, stat))
        if hashes.git_oid:
            link = self._git_path(hashes.git_oid)
            blob = self.blob_path(hashes.sha256)
            self.symlink(link, os.path.relpath(blob, link.parent))

    @property
    def _quarantine(self) -> Path:
        return self.mkdir(self.root / "quarantine")

    def quarantine(self, sha256: str, ino: int) -> Path | None:
        """Move a bad blob aside, to the path that is returned; nothing is deleted.

        None if the file of that name is no longer the one with inode ``ino`` that was
        found bad: another process was first, and the blob may be right by now.
        """
        with one_at_a_time(self._quarantine):
            try:
                if self.blob_path(sha256).lstat().st_ino != ino:
                    return None
            except FileNotFoundError:
                return None
            return self._move_aside(sha256)

    def _move_aside(self, sha256: str) -> Path:
        folder, number = self._quarantine, 1
        while os.path.lexists(target := folder / f"{sha256}.{number}"):
            number += 1
        self.blob_path(sha256).rename(target)
        fsync_dir(folder)
        self.journal.remove(sha256)
        return target

    # -- git ids ------------------------------------------------------------------

    def _git_path(self, oid: str) -> Path:
        return self.root / "git" / oid[:2] / oid

    def sha256_of_git(self, oid: str) -> str:
        """The hash of the blob whose git id is ``oid``; empty where it is not known."""
        try:
            return self._git_path(oid).readlink().name
        except OSError:
            return ""

    def resolve(self, manifest: Manifest) -> Manifest:
        """``manifest`` with the sha256 of every small file that was seen before."""
        files = [
            entry
            if entry.sha256
            else replace(entry, sha256=self.sha256_of_git(entry.git_oid))
            for entry in manifest.files
        ]
        return replace(manifest, files=tuple(files))

    def missing(self, manifest: Manifest) -> list[FileEntry]:
        """One entry for each blob of ``manifest`` that is not known to be right."""
        wanted = {entry.key: entry for entry in self.resolve(manifest).files}
        return [
            entry
            for entry in wanted.values()
            if not entry.sha256 or self.state(entry.sha256) is not BlobState.PRESENT
        ]

    # -- manifests ----------------------------------------------------------------

    def manifest_path(self, slug: str) -> Path:
        """Where the manifest of that name is kept."""
        return self.root / "manifests" / f"{slug}.json"

    def manifests(self) -> dict[str, Manifest]:
        """Name -> manifest, resolved, of all that are registered."""
        paths: Iterable[Path] = sorted((self.root / "manifests").glob("[!.]*.json"))
        return {path.stem: self.resolve(manifests.load(path)) for path in paths}

    def register(self, manifest: Manifest) -> Manifest:
        """Keep ``manifest``: its blobs are wanted from now on; resolved, as returned.

        Files that were pinned into an earlier one of the same name stay pinned.
        """
        resolved = self.resolve(manifest)
        path = self.manifest_path(resolved.slug)
        with one_at_a_time(self.mkdir(path.parent)):
            if path.is_file():
                before = manifests.load(path)
                resolved.check_agrees(before)
                resolved = resolved.with_pins_of(before)
            if not path.is_file() or before != resolved:
                self.write_text(path, resolved.dumps())
        return resolved
