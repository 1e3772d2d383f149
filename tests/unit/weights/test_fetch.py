"""Lock and fetch against a local Hub over real HTTP, by the real huggingface_hub."""

from __future__ import annotations

import shutil
import signal

import pytest
from glmspark.weights import manifest as manifests
from glmspark.weights.store import Store

from tests.unit.weights import fakehub
from tests.unit.weights.conftest import (
    FAST,
    REPO,
    REV,
    SHARD,
    Kit,
    blob,
    checkpoint,
    locked,
    manifest_of,
    view_of,
    wait_for,
)

OTHER_REV = "f" * 40


# -- lock ----------------------------------------------------------------------


def test_lock_names_a_commit_and_every_file(kit: Kit, hub: fakehub.Hub) -> None:
    hub.page = 2  # the tree comes in pages, as it does for many files
    lock = kit.tmp / "asked.lock.json"
    kit.ok("lock", REPO, "-o", lock)
    manifest = manifests.load(lock)
    assert manifest == manifests.load(locked(kit, hub))
    files = checkpoint()
    assert (manifest.repo, manifest.revision) == (REPO, REV)
    assert {e.path: e.size for e in manifest.files} == {
        p: len(d) for p, d in files.items()
    }
    shard = next(e for e in manifest.files if e.path == SHARD)
    config = next(e for e in manifest.files if e.path == "config.json")
    assert shard.sha256 == fakehub.sha256(files[SHARD])
    assert (config.sha256, config.git_oid) == (
        "",
        fakehub.git_oid(files["config.json"]),
    )


@pytest.mark.cases(51)
def test_a_moved_branch_changes_nothing_that_is_locked(
    kit: Kit, hub: fakehub.Hub
) -> None:
    lock = locked(kit, hub)
    hub.add(REPO, OTHER_REV, checkpoint(shards=2))
    kit.ok("fetch", lock)
    assert view_of(kit, lock) == checkpoint()
    assert all(REV in s.path for s in hub.gets() if "/resolve/" in s.path)


@pytest.mark.cases(57)
def test_lock_waits_as_long_as_a_rate_limit_asks(kit: Kit, hub: fakehub.Hub) -> None:
    hub.fail("tree", "429")
    hub.retry_after = "1"
    assert "Rate limited" in kit.ok("lock", REPO).err


@pytest.mark.cases(51)
def test_an_absent_revision_fails_closed(kit: Kit, hub: fakehub.Hub) -> None:
    ran = kit.run("lock", f"{REPO}@{OTHER_REV}")
    assert ran.code == 5
    assert "has no revision" in ran.err


@pytest.mark.cases(52)
def test_an_unknown_revision_says_which_are_known_and_downloads_nothing(
    kit: Kit, hub: fakehub.Hub
) -> None:
    kit.ok("fetch", locked(kit, hub))
    before = len(hub.seen)
    ran = kit.run("fetch", f"{REPO}@{OTHER_REV[:8]}")
    assert ran.code == 3
    assert f"{REPO}@{REV}" in ran.err
    assert "weights lock" in ran.err
    assert len(hub.seen) == before


# -- fetch ---------------------------------------------------------------------


def test_fetch_brings_every_file_and_writes_nothing_but_the_store(
    kit: Kit, hub: fakehub.Hub
) -> None:
    lock = locked(kit, hub)
    before = {p for p in kit.tmp.rglob("*") if kit.store not in p.parents}
    ran = kit.ok("fetch", lock, "--json").json
    assert ran[0]["fetched"] == len(checkpoint())
    assert view_of(kit, lock) == checkpoint()
    after = {p for p in kit.tmp.rglob("*") if kit.store not in p.parents}
    assert after - before == {kit.store}
    assert list(kit.home.rglob("*")) == []
    assert list((kit.store / "partial").iterdir()) == []


def test_blobs_are_read_only_and_group_readable(kit: Kit, hub: fakehub.Hub) -> None:
    kit.ok("fetch", locked(kit, hub))
    store = Store.open(kit.store)
    modes = {store.blob_path(b).stat().st_mode & 0o777 for b in store.blobs()}
    assert modes == {0o444}


@pytest.mark.cases(48)
def test_a_complete_store_needs_no_downloader_and_no_network(
    kit: Kit, hub: fakehub.Hub
) -> None:
    lock = locked(kit, hub)
    kit.ok("fetch", lock)
    before = len(hub.seen)
    poison = kit.tmp / "poison" / "huggingface_hub"
    poison.mkdir(parents=True)
    (poison / "__init__.py").write_text("raise SystemExit('imported')")
    path = f"{poison.parent}:{kit.env['PYTHONPATH']}"
    ran = kit.ok("fetch", lock, PYTHONPATH=path, HF_ENDPOINT="http://127.0.0.1:9")
    assert "already complete" in ran.out
    assert len(hub.seen) == before
    # The guard can fire: with a blob missing, the library is what fails now.
    shutil.rmtree(kit.store / "blobs" / "sha256")
    (kit.store / "blobs" / "sha256").mkdir()
    assert "imported" in kit.run("fetch", lock, PYTHONPATH=path).err


def test_only_missing_blobs_travel(kit: Kit, hub: fakehub.Hub) -> None:
    lock = locked(kit, hub)
    kit.ok("fetch", lock)
    store = Store.open(kit.store)
    store.blob_path(fakehub.sha256(checkpoint()[SHARD])).unlink()
    hub.sent.clear()
    kit.ok("fetch", lock)
    assert hub.sent == {SHARD: len(checkpoint()[SHARD])}


def test_two_repositories_with_the_same_bytes_cost_one_copy(
    kit: Kit, hub: fakehub.Hub
) -> None:
    hub.add("kit/mirror", OTHER_REV, {"renamed.safetensors": checkpoint()[SHARD]})
    kit.ok("fetch", locked(kit, hub))
    hub.sent.clear()
    ran = kit.ok("fetch", locked(kit, hub, "kit/mirror"))
    assert "already complete" in ran.out
    assert not hub.sent


def test_the_mirror_is_taken_when_the_origin_is_gone(
    kit: Kit, hub: fakehub.Hub
) -> None:
    origin = manifest_of(
        checkpoint(),
        "kit/gone",
        OTHER_REV,
        mirrors=(manifests.Mirror(REPO, REV, "same bytes"),),
    )
    lock = kit.lock(origin)
    ran = kit.ok("fetch", lock, HF_TOKEN="hf_any")
    assert f"trying the mirror {REPO}@" in ran.err
    assert view_of(kit, lock) == checkpoint()


def test_a_mirror_with_other_bytes_is_not_taken(kit: Kit, hub: fakehub.Hub) -> None:
    files = checkpoint()
    origin = manifest_of(
        files,
        "kit/gone",
        OTHER_REV,
        mirrors=(manifests.Mirror(REPO, REV, "same bytes?"),),
    )
    hub.repos[REPO, REV] = files | {SHARD: blob(3, len(files[SHARD]))}
    assert kit.run("fetch", kit.lock(origin), *FAST, HF_TOKEN="hf_any").code == 5
    assert fakehub.sha256(files[SHARD]) not in Store.open(kit.store).blobs()


# -- secrets -------------------------------------------------------------------


@pytest.mark.parametrize("how", ["variable", "file"])
def test_the_token_goes_to_the_hub_alone(kit: Kit, hub: fakehub.Hub, how: str) -> None:
    secret = "hf_S3cretS3cret"
    hub.token = secret
    if how == "file":
        (kit.home / "token").write_text(secret)
        env = {"HF_TOKEN_PATH": str(kit.home / "token")}
    else:
        env = {"HF_TOKEN": secret}
    lock = kit.tmp / "kit.lock.json"
    ran = kit.run("lock", REPO, "-o", lock, **env)
    assert ran.code == 0, ran.err
    hub.fail(SHARD, "500")
    ran = kit.run("fetch", lock, **env)
    assert ran.code == 0, ran.err
    at_hub = [s for s in hub.seen if "/cdn/" not in s.path]
    at_cdn = [s for s in hub.seen if "/cdn/" in s.path]
    assert at_hub and all(s.authorization == f"Bearer {secret}" for s in at_hub)
    assert at_cdn and not any(s.authorization for s in at_cdn)
    assert secret not in ran.out + ran.err
    assert "Sig=" not in ran.out + ran.err  # signed addresses are keys as well
    for path in kit.tmp.rglob("*"):
        if path.is_file() and kit.home not in path.parents:
            assert secret.encode() not in path.read_bytes(), path


# -- crashes and company -------------------------------------------------------


def test_kill_9_loses_at_most_the_part(kit: Kit, hub: fakehub.Hub) -> None:
    big = blob(7, 8 << 20)
    files = checkpoint() | {"big.safetensors": big}
    hub.add(REPO, REV, files)
    lock = locked(kit, hub)
    hub.fail("big.safetensors", "drip")
    process = kit.start("fetch", lock)
    part = kit.store / "partial" / f"{fakehub.sha256(big)}.part"
    wait_for(
        lambda: (
            part.exists()
            and part.stat().st_size > 3 << 20
            and len(Store.open(kit.store).blobs()) == len(files) - 1
        ),
        "the large file is under way and the others are in",
    )
    process.send_signal(signal.SIGKILL)
    process.communicate()
    store = Store.open(kit.store)
    for name in store.blobs():
        assert fakehub.sha256(store.blob_path(name).read_bytes()) == name
    kept = part.stat().st_size
    hub.sent.clear()
    kit.ok("fetch", lock)
    assert hub.sent == {"big.safetensors": len(big) - kept}
    assert view_of(kit, lock) == files


def test_two_fetches_at_once_do_one_download(kit: Kit, hub: fakehub.Hub) -> None:
    big = blob(7, 4 << 20)
    hub.add(REPO, REV, {"big.safetensors": big})
    lock = locked(kit, hub)
    hub.fail("big.safetensors", "drip")
    both = [kit.start("fetch", lock) for _ in range(2)]
    for process in both:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
    assert hub.sent["big.safetensors"] == len(big)
    assert view_of(kit, lock) == {"big.safetensors": big}


def test_interrupt_ends_at_once_with_130(kit: Kit, hub: fakehub.Hub) -> None:
    hub.add(REPO, REV, {"big.safetensors": blob(7, 40 << 20)})
    lock = locked(kit, hub)
    hub.fail("big.safetensors", "drip")
    process = kit.start("fetch", lock)
    wait_for(lambda: hub.sent["big.safetensors"] > 1 << 20, "bytes flow")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "interrupted" in output
