"""NFS: the exports line shares blobs alone, and a mount is judged by its options."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from glmspark.engine import engine_paths
from glmspark.errors import ConfigError, IntegrityError, PreflightError
from glmspark.paths import kit_paths
from glmspark.ranks import render_ranks
from glmspark.serving import nccl
from glmspark.settings import load_settings
from glmspark.weights import hashing, nfs, verify
from glmspark.weights.manifest import Manifest
from glmspark.weights.store import Store

from tests.unit.weights.conftest import Kit, contents

SUBNET = "192.168.100.0/24"
GOOD = (
    "rw,relatime shared:9 - nfs4 192.168.100.1:/store/blobs "
    "ro,vers=4.2,rsize=1048576,wsize=1048576,hard,proto=tcp,nconnect=8,"
    "addr=192.168.100.1"
).replace("rw,relatime", "ro,relatime")


def mountinfo(point: Path, text: str = GOOD) -> str:
    return f"29 1 8:1 / / rw - ext4 /dev/root rw\n99 29 0:55 / {point} {text}\n"


@pytest.mark.cases(68)
def test_only_the_blobs_are_exported_read_only_to_the_fabric(store: Store) -> None:
    line = nfs.exports_line(store, SUBNET, "192.168.100.1")
    path, _, rest = line.partition(" ")
    assert path == str(store.root / "blobs")
    assert rest == f"{SUBNET}(ro,all_squash,secure,sync,no_subtree_check)"


@pytest.mark.cases(68)
def test_no_token_can_stand_below_the_exported_folder(
    kit: Kit, filled: tuple[Store, Manifest, dict[str, bytes]]
) -> None:
    store, _, _ = filled
    names = {p.name for p in (store.root / "blobs" / "sha256").glob("*/*")}
    assert all(len(name) == 64 for name in names)
    assert {p.name for p in (store.root / "blobs").iterdir()} == {"sha256"}


@pytest.mark.cases(68)
@pytest.mark.parametrize(
    ("subnet", "address"),
    [
        ("", "192.168.100.1"),
        ("*", "192.168.100.1"),
        ("0.0.0.0/0", "192.168.100.1"),
        ("192.168.0.0/15", "192.168.0.1"),
        ("8.8.8.0/24", "8.8.8.8"),
        (SUBNET, "192.168.101.1"),
        (SUBNET, ""),
    ],
)
@pytest.mark.cases(68)
def test_nobody_but_the_fabric_may_be_named(
    store: Store, subnet: str, address: str
) -> None:
    with pytest.raises(ConfigError):
        nfs.exports_line(store, subnet, address)


@pytest.mark.cases(70)
def test_the_same_question_has_the_same_answer_and_exports_nothing(
    kit: Kit, store: Store
) -> None:
    words = ("nfs-exports", "--subnet", SUBNET, "--address", "192.168.100.1")
    before = sorted(store.root.rglob("*"))
    assert kit.ok(*words).out == kit.ok(*words).out
    assert sorted(store.root.rglob("*")) == before


def test_a_good_mount_passes() -> None:
    point = Path("/mnt/blobs")
    mount = nfs.mount_of(point / "sha256", nfs.parse_mountinfo(mountinfo(point)))
    assert mount.fstype == "nfs4"
    assert nfs.check_mount(mount, SUBNET) == []


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ("ro,", "rw,", "read-write"),
        ("hard", "soft", "soft"),
        ("vers=4.2", "vers=3", "needed is vers=4.2"),
        ("rsize=1048576", "rsize=65536", "rsize is 65536"),
        ("nconnect=8,", "", "one connection"),
        ("addr=192.168.100.1", "addr=10.0.0.1", "not in the fabric subnet"),
        ("nfs4", "ext4", "not NFS"),
    ],
)
@pytest.mark.cases(72)
def test_each_bad_option_is_named(old: str, new: str, finding: str) -> None:
    point = Path("/mnt/blobs")
    assert old in GOOD
    mounts = nfs.parse_mountinfo(mountinfo(point, GOOD.replace(old, new)))
    findings = nfs.check_mount(nfs.mount_of(point, mounts), SUBNET)
    assert any(finding in text for text in findings), findings


def test_the_mount_must_hold_the_same_manifest(
    filled: tuple[Store, Manifest, dict[str, bytes]], tmp_path: Path
) -> None:
    store, manifest, _ = filled
    blobs = tmp_path / "mounted"
    shutil.copytree(store.root / "blobs", blobs)
    info = mountinfo(blobs)
    assert nfs.check(blobs, manifest, SUBNET, info)["bytes"] == manifest.total_bytes
    victim = next((blobs / "sha256").glob("*/*"))
    victim.chmod(0o644)
    victim.write_bytes(b"")
    with pytest.raises(IntegrityError, match="missing or differ"):
        nfs.check(blobs, manifest, SUBNET, info)


def test_a_node_links_over_the_mount_and_reads_nothing(
    filled: tuple[Store, Manifest, dict[str, bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head, manifest, files = filled
    store = Store.open(tmp_path / "node", create=True)
    with pytest.raises(ConfigError, match="is not the blobs folder"):
        nfs.adopt(store, head.root / "blobs", manifest)
    shutil.rmtree(store.root / "blobs")
    (store.root / "blobs").symlink_to(head.root / "blobs")  # as if it were mounted
    monkeypatch.setattr(hashing, "hash_fd", None)
    made = nfs.adopt(store, store.root / "blobs", manifest)
    assert contents(made.folder) == files
    assert verify.verify(store, [manifest]).is_ok


@pytest.mark.cases(71)
def test_compiled_kernels_are_never_below_what_the_nodes_share(
    tmp_path: Path,
) -> None:
    shared = tmp_path / "shared"
    file = tmp_path / "kit.toml"
    text = 'topology = "loopback"\nengine = "stub"\n[weights]\nsource = "nfs"\n'
    file.write_text(f'{text}store = "{shared}"\ntarget = "a/b@{"0" * 40}"\n')
    kit = load_settings(str(file), ()).kit
    paths = engine_paths(kit, kit_paths(kit))
    assert paths.model.startswith(str(shared))
    assert paths.cache.endswith("engine-stub")  # each engine has its own
    cpu = [dict(rank.env) for rank in render_ranks(kit, paths)]
    for env in [*cpu, nccl._cache_env(paths.cache)]:
        caches = {n: v for n, v in env.items() if "CACHE" in n or "WORKSPACE" in n}
        assert "VLLM_CACHE_ROOT" in caches
        for value in caches.values():
            assert value.startswith(paths.cache)
            assert not value.startswith(str(shared))


def test_a_folder_that_is_not_mounted_is_refused_with_the_mount_command(
    kit: Kit, filled: tuple[Store, Manifest, dict[str, bytes]]
) -> None:
    store, manifest, _ = filled
    ran = kit.run("nfs-check", store.root / "blobs", manifest.slug, "--subnet", SUBNET)
    assert ran.code == 4
    assert "not NFS" in ran.err
    assert "mount -t nfs -o ro,hard,vers=4.2" in ran.err


def test_escaped_mount_points_are_read(tmp_path: Path) -> None:
    text = mountinfo(Path("/mnt/my\\040blobs"))
    (_, mount) = nfs.parse_mountinfo(text)
    assert mount.point == Path("/mnt/my blobs")
    with pytest.raises(PreflightError):
        nfs.check(
            tmp_path,
            Manifest("a/b", "0" * 40, ()),
            SUBNET,
            text,
        )
