"""NFS as the source of weights: what to export, and whether a mount will do."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmspark.errors import ConfigError, IntegrityError, PreflightError
from glmspark.weights import locks, view
from glmspark.weights.hashing import Hashes
from glmspark.weights.manifest import Manifest
from glmspark.weights.store import Store
from glmspark.weights.view import View

# 1 MiB is what the kernel's client and server agree on at most over TCP; below it a
# sequential read of shards pays one round trip more often.
_GOOD_RSIZE = 1 << 20


@dataclass(frozen=True)
class Mount:
    """A line of /proc/self/mountinfo."""

    point: Path
    fstype: str
    source: str
    options: dict[str, str]


def exports_line(store: Store, subnet: str, fabric: str) -> str:
    """The line for /etc/exports: the blobs alone, read-only, for the fabric only.

    The folder holds no token, no log and no cache: only blobs that anybody may read.
    ConfigError for a subnet that is empty, a wildcard, or not the fabric address's.
    """
    try:
        network = ipaddress.ip_network(subnet)
        address = ipaddress.ip_address(fabric)
    except ValueError as error:
        raise ConfigError(
            f"cannot tell who may mount: {error}; a subnet such as 192.168.100.0/24 is "
            "needed, never a wildcard",
            hint="ip -br addr",
        ) from error
    if address not in network or network.num_addresses > 1 << 16 or network.is_global:
        raise ConfigError(
            f"the subnet {subnet} is not the fabric's: it must hold {fabric}, be "
            "private and no larger than a /16",
            hint="ip -br addr",
        )
    options = "ro,all_squash,secure,sync,no_subtree_check"
    return f"{store.root / 'blobs'} {network}({options})"


def parse_mountinfo(text: str) -> list[Mount]:
    """The mounts in the text of /proc/self/mountinfo."""
    mounts = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, tail = before.split(), after.split()
        point = fields[4].encode().decode("unicode_escape")
        words = ",".join([fields[5], *tail[2:]]).split(",")
        options = {name: value for name, _, value in (w.partition("=") for w in words)}
        mounts.append(Mount(Path(point), tail[0], tail[1], options))
    return mounts


def mount_of(path: Path, mounts: list[Mount]) -> Mount:
    """The mount that ``path`` is on."""
    inside = [m for m in mounts if path == m.point or m.point in path.parents]
    return max(inside, key=lambda mount: len(mount.point.parts))


def check_mount(mount: Mount, subnet: str) -> list[str]:
    """Everything that speaks against ``mount``; empty if it will do."""
    if not mount.fstype.startswith("nfs"):
        return [f"{mount.point} is {mount.fstype}, not NFS: it is not mounted"]
    options = mount.options
    findings = []
    if "ro" not in options:
        findings.append("it is mounted read-write; needed is ro")
    if "soft" in options:
        findings.append(
            "it is soft: a slow answer becomes an I/O error; needed is hard"
        )
    if not options.get("vers", "").startswith("4"):
        findings.append(f"it is NFS {options.get('vers', '?')}; needed is vers=4.2")
    if int(options.get("rsize", "0")) < _GOOD_RSIZE:
        findings.append(f"rsize is {options.get('rsize', '?')}; needed is 1048576")
    if options.get("nconnect", "1") == "1":
        findings.append(
            "it has one connection; nconnect=8 is needed for the link's rate"
        )
    server = options.get("addr", mount.source.rpartition(":")[0])
    try:
        if ipaddress.ip_address(server) not in ipaddress.ip_network(subnet):
            findings.append(f"the server {server} is not in the fabric subnet {subnet}")
    except ValueError:
        findings.append(f"cannot tell whether the server {server} is on {subnet}")
    return findings


def mount_command(head: str, store: Path, point: Path) -> str:
    """The command that mounts the head's blobs on a node as they should be."""
    options = "ro,hard,vers=4.2,nconnect=8,rsize=1048576,noatime"
    return f"sudo mount -t nfs -o {options} {head}:{store / 'blobs'} {point}"


def check_blobs(blobs: Path, manifest: Manifest) -> int:
    """The bytes of ``manifest`` that a mounted blobs folder holds, all of them.

    By name and size: the reader cannot write, so a blob is what the head verified.
    IntegrityError naming what is missing or has another size.
    """
    wrong = []
    for entry in manifest.files:
        path = blobs / "sha256" / entry.sha256[:2] / entry.sha256
        try:
            if not entry.sha256 or path.stat().st_size != entry.size:
                wrong.append(entry.path)
        except OSError:
            wrong.append(entry.path)
    if wrong:
        raise IntegrityError(
            f"the mounted blobs {blobs} are not those of {manifest.ref}: "
            f"{len(wrong)} files are missing or differ in size, first {wrong[0]}",
            hint="on the head: glmspark weights verify, glmspark weights fetch",
        )
    return manifest.total_bytes


def adopt(store: Store, blobs: Path, manifest: Manifest) -> View:
    """The view of ``manifest`` in this node's ``store``, over the mounted ``blobs``.

    For a mount that passed :func:`check`: its blobs count as the head verified them,
    and none is read. ConfigError unless they are mounted as the store's own.
    """
    if blobs.resolve() != (store.root / "blobs").resolve():
        raise ConfigError(
            f"{blobs} is not the blobs folder of the store {store.root}",
            hint=mount_command("HEAD_FABRIC_ADDR", Path("STORE"), store.root / "blobs"),
        )
    with locks.using(store):
        for entry in manifest.files:
            store.know(Hashes(entry.size, entry.sha256, entry.git_oid))
    return view.link(store, manifest)


def check(
    blobs: Path, manifest: Manifest, subnet: str, mountinfo: str
) -> dict[str, Any]:
    """What a mount that will do is; PreflightError with all that speaks against."""
    mount = mount_of(blobs.resolve(), parse_mountinfo(mountinfo))
    findings = check_mount(mount, subnet)
    if findings:
        raise PreflightError(
            f"{blobs} cannot be the source of the weights: {'; '.join(findings)}",
            hint=mount_command("HEAD_FABRIC_ADDR", Path("STORE"), blobs),
        )
    size = check_blobs(blobs, manifest)
    return {"mount": mount.source, "bytes": size, "ok": True}
