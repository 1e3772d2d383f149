"""Which image a kit runs, and whether a node has it or can get it."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glmspark.errors import ConfigError, IntegrityError
from glmspark.imageside import ImageFacts, ImageId
from glmspark.paths import expand
from glmspark.preflight import Finding
from glmspark.schema import Kit, Runtime


def _json(archive: tarfile.TarFile, name: str) -> tuple[bytes, Any]:
    file = archive.extractfile(name)
    if file is None:
        raise KeyError(name)
    raw = file.read()
    return raw, json.loads(raw)


def _config_name(archive: tarfile.TarFile) -> str:
    """The member that is the image's config: of a docker archive or an OCI layout."""
    names = archive.getnames()
    if "manifest.json" in names:
        entries = _json(archive, "manifest.json")[1]
        if len(entries) != 1:
            raise KeyError(f"{len(entries)} images in it, one is needed")
        return str(entries[0]["Config"])
    index = _json(archive, "index.json")[1]
    manifest = index["manifests"][0]["digest"].replace(":", "/")
    config = _json(archive, f"blobs/{manifest}")[1]["config"]["digest"]
    return f"blobs/{config.replace(':', '/')}"


def read_archive(path: Path) -> ImageId:
    """The identity of the image in the archive ``path`` (docker or OCI, a tar file).

    Raises:
        ConfigError: it is not there, or no archive of one image.
    """
    try:
        with tarfile.open(path) as archive:
            raw, config = _json(archive, _config_name(archive))
        return ImageId(
            f"sha256:{hashlib.sha256(raw).hexdigest()}",
            tuple(config["rootfs"]["diff_ids"]),
            dict((config.get("config") or {}).get("Labels") or {}),
        )
    except (OSError, tarfile.TarError, KeyError, IndexError, ValueError) as error:
        raise ConfigError(
            f"image.archive is {path}, which is no archive of an image: {error}",
            hint="nix build .#image-archive makes one; `podman load -i` reads it",
        ) from error


def wanted_image(kit: Kit) -> ImageId | None:
    """The image that ``kit`` runs; None for a runtime that has none.

    Raises:
        ConfigError: runtime is oci, and the kit names no image.
        IntegrityError: the archive is not the image that the kit names.
    """
    if kit.runtime is not Runtime.OCI:
        return None
    if not kit.image.archive:
        if not kit.image.config:
            raise ConfigError(
                "runtime is oci, and the kit names no image",
                hint="nix build .#image-archive, then set image.archive to that file",
            )
        return ImageId(kit.image.config)
    found = read_archive(expand(kit.image.archive, "image.archive"))
    if kit.image.config not in {"", found.config}:
        raise IntegrityError(
            f"{kit.image.archive} holds {found.config}, image.config names "
            f"{kit.image.config}",
            hint="set image.config to the archive's, or fetch the right archive",
        )
    return found


def findings(kit: Kit, node: str, seen: ImageFacts) -> Iterator[Finding]:
    """What keeps the image from running on ``node`` or from getting there."""
    if seen.why:
        yield Finding(
            "engine.image",
            node,
            seen.why,
            "a container engine that this user may use",
            "apt install podman; for docker: sudo usermod -aG docker USER, new login",
        )
    elif not seen.found and not kit.image.archive:
        yield Finding(
            "engine.image",
            node,
            f"no image {kit.image.config} there",
            "the image on every node, or its archive on the head",
            "set image.archive to the archive's file; nothing is pulled",
        )
    if kit.engine.uses_gpu and not seen.cdi and Path(seen.tool).name == "podman":
        yield Finding(
            "engine.cdi",
            node,
            "podman has no CDI specification of the GPU",
            "a file in /etc/cdi that names nvidia.com/gpu",
            "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        )
