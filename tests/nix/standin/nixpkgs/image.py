"""A docker-archive of store paths: ``conf ATTRS OUT`` plans, ``stream CONF`` writes.

One layer a store path (the last takes what is over ``maxLayers``), then one layer of
links for the contents and of the files that extraCommands made. Times and owners
are fixed.
"""

import hashlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def _plan(attrs: Path, out: Path) -> None:
    data = json.loads(attrs.read_text())
    image = data["image"]
    graph = sorted(data["graph"], key=lambda p: (p["closureSize"], p["path"]))
    paths = [p["path"] for p in graph if not p["path"].endswith("-config.json")]
    single = max(1, image["maxLayers"] - 2)
    rest = paths[single:]
    image["layers"] = [[p] for p in paths[:single]] + ([rest] if rest else [])
    out.write_text(json.dumps(image))


def _fixed(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mtime = 1
    return entry


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _walk(top: Path) -> Iterator[Path]:
    yield top
    if _is_folder(top):
        for path in sorted(top.iterdir()):
            yield from _walk(path)


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    entry = _fixed(tar.gettarinfo(path, arcname=name))
    if (
        entry.islnk()
    ):  # hard links of an optimised store: the image must not depend on it
        entry.type = tarfile.REGTYPE
        entry.size = path.stat().st_size
    if entry.isreg():
        with path.open("rb") as file:
            tar.addfile(entry, file)
    else:
        tar.addfile(entry)


def _add_links(tar: tarfile.TarFile, contents: list[str], custom: str) -> None:
    """The merged tree of ``contents`` as links into the store, then custom files."""
    seen: set[str] = set()
    for root in contents:
        for path in _walk(Path(root)):
            name = os.path.relpath(path, root)
            if name in seen or name == ".":
                continue
            seen.add(name)
            entry = _fixed(tarfile.TarInfo(name))
            if _is_folder(path):
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            else:
                entry.type, entry.linkname = tarfile.SYMTYPE, str(path)
            tar.addfile(entry)
    with tarfile.open(custom) as made:
        for entry in made:
            entry.name = os.path.normpath(entry.name)
            if entry.name not in seen and entry.name != ".":
                tar.addfile(_fixed(entry), made.extractfile(entry))


def _layer(paths: list[str], contents: list[str], custom: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for top in paths:
            for path in _walk(Path(top)):
                _add(tar, path, str(path).lstrip("/"))
        if custom:
            _add_links(tar, contents, custom)
    return buffer.getvalue()


def _put(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = _fixed(tarfile.TarInfo(name))
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


def _config(image: dict[str, Any], digests: list[str]) -> bytes:
    return json.dumps(
        {
            "created": image["created"],
            "architecture": image["architecture"],
            "os": "linux",
            "config": image["config"],
            "rootfs": {"type": "layers", "diff_ids": digests},
        }
    ).encode()


def _stream(conf: Path) -> None:
    image = json.loads(conf.read_text())
    layers: list[tuple[list[str], list[str], str]] = [
        (paths, [], "") for paths in image["layers"]
    ]
    layers.append(([], image["contents"], image["custom"]))
    names, digests = [], []
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as out:
        for layer in layers:
            data = _layer(*layer)
            digest = hashlib.sha256(data).hexdigest()
            if f"{digest}/layer.tar" not in names:
                _put(out, f"{digest}/layer.tar", data)
            names.append(f"{digest}/layer.tar")
            digests.append(f"sha256:{digest}")
        config = _config(image, digests)
        config_name = f"{hashlib.sha256(config).hexdigest()}.json"
        _put(out, config_name, config)
        tags = [f"{image['name']}:{image['tag']}"]
        entry = {"Config": config_name, "RepoTags": tags, "Layers": names}
        _put(out, "manifest.json", json.dumps([entry]).encode())


if __name__ == "__main__":
    if sys.argv[1] == "conf":
        _plan(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        _stream(Path(sys.argv[2]))
