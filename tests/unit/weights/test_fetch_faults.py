"""A Hub that misbehaves: what is resumed, what is said, and what never gets a name."""

from __future__ import annotations

import pytest
from glmspark.errors import IntegrityError
from glmspark.weights import manifest as manifests
from glmspark.weights import view
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
    view_of,
)

OTHER_REV = "f" * 40


@pytest.mark.parametrize("kind", ["truncate", "reset", "stall"])
@pytest.mark.cases(57)
def test_a_broken_transfer_is_resumed_at_the_byte(
    kit: Kit, hub: fakehub.Hub, kind: str
) -> None:
    big = blob(7, 6 << 20)
    hub.add(REPO, REV, {"big.safetensors": big})
    lock = locked(kit, hub)
    hub.fail("big.safetensors", kind)
    ran = kit.ok("fetch", lock, *FAST, "--json")
    first, second = [s for s in hub.gets("big.safetensors") if "/cdn/" in s.path]
    assert first.range == ""
    start = int(second.range.removeprefix("bytes=").rstrip("-"))
    assert start >= 2 << 20  # half was sent; less than a receive chunk of it is lost
    assert view_of(kit, lock) == {"big.safetensors": big}
    assert "hub:" in ran.err or "again in" in ran.err


@pytest.mark.cases(57)
def test_a_trickle_is_cut_and_what_came_is_kept(kit: Kit, hub: fakehub.Hub) -> None:
    """A byte now and then: each read is in time, and the file would never be done."""
    lock = locked(kit, hub)
    hub.fail(SHARD, "trickle")
    ran = kit.ok("fetch", lock, *FAST)
    assert "stalled: it trickled" in ran.err
    _, second = [s for s in hub.gets(SHARD) if "/cdn/" in s.path]
    assert int(second.range.removeprefix("bytes=").rstrip("-")) > 0
    assert view_of(kit, lock) == checkpoint()


def test_a_slow_line_is_no_trickle(kit: Kit, hub: fakehub.Hub) -> None:
    hub.add(REPO, REV, {"big.safetensors": blob(7, 3 << 20)})
    lock = locked(kit, hub)
    hub.fail("big.safetensors", "drip")  # 48 pieces, a twentieth of a second each
    kit.ok("fetch", lock, "--stall", "2")
    assert len([s for s in hub.gets("big.safetensors") if "/cdn/" in s.path]) == 1


def test_a_server_that_ignores_ranges_costs_a_restart_not_the_file(
    kit: Kit, hub: fakehub.Hub
) -> None:
    big = blob(7, 6 << 20)
    hub.add(REPO, REV, {"big.safetensors": big})
    lock = locked(kit, hub)
    hub.fail("big.safetensors", "truncate", "ignore-range")
    kit.ok("fetch", lock, *FAST)
    assert view_of(kit, lock) == {"big.safetensors": big}


@pytest.mark.cases(56)
def test_wrong_bytes_never_get_a_name(kit: Kit, hub: fakehub.Hub) -> None:
    lock = locked(kit, hub)
    hub.always[SHARD] = "wrong"
    ran = kit.run("fetch", lock, *FAST)
    assert ran.code == 7
    assert f"gave wrong bytes for {SHARD}" in ran.err
    store = Store.open(kit.store)
    assert fakehub.sha256(checkpoint()[SHARD]) not in store.blobs()
    assert all(
        fakehub.sha256(store.blob_path(b).read_bytes()) == b for b in store.blobs()
    )
    with pytest.raises(IntegrityError, match=SHARD):
        view.link(store, manifests.load(lock))


def test_wrong_bytes_of_a_small_file_are_caught_by_its_git_id(
    kit: Kit, hub: fakehub.Hub
) -> None:
    lock = locked(kit, hub)
    hub.always["config.json"] = "wrong"
    ran = kit.run("fetch", lock, *FAST)
    assert ran.code == 7
    assert "gave wrong bytes for config.json" in ran.err


def test_a_source_that_says_it_has_other_bytes_is_not_read(
    kit: Kit, hub: fakehub.Hub
) -> None:
    lock = locked(kit, hub)
    hub.repos[REPO, REV] = checkpoint() | {SHARD: blob(55, 300_001)}
    ran = kit.run("fetch", lock, *FAST)
    assert ran.code == 7
    assert "says that its" in ran.err
    assert not hub.gets(f"/cdn/{REPO}/{REV}/{SHARD}")


def test_a_part_longer_than_the_file_is_started_anew(
    kit: Kit, hub: fakehub.Hub
) -> None:
    lock = locked(kit, hub)
    store = Store.open(kit.store, create=True)
    store.part_path(fakehub.sha256(checkpoint()[SHARD])).write_bytes(b"x" * 400_000)
    kit.ok("fetch", lock)
    assert view_of(kit, lock) == checkpoint()


@pytest.mark.cases(56)
def test_a_wrong_part_is_found_out_and_fetched_again(
    kit: Kit, hub: fakehub.Hub
) -> None:
    lock = locked(kit, hub)
    store = Store.open(kit.store, create=True)
    part = store.part_path(fakehub.sha256(checkpoint()[SHARD]))
    part.write_bytes(b"\0" * len(checkpoint()[SHARD]))
    kit.ok("fetch", lock)
    assert view_of(kit, lock) == checkpoint()


def test_416_restarts_the_file(kit: Kit, hub: fakehub.Hub) -> None:
    lock = locked(kit, hub)
    store = Store.open(kit.store, create=True)
    part = store.part_path(fakehub.sha256(checkpoint()[SHARD]))
    part.write_bytes(checkpoint()[SHARD][:1000])
    hub.fail(SHARD, "416")
    ran = kit.ok("fetch", lock)
    assert "(416)" in ran.err
    assert view_of(kit, lock) == checkpoint()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("500", "failed on"),
        ("404", "(404)"),
        ("403", "may not read it (403)"),
        ("truncate", "closed|broke"),
        ("stall", "stalled: nothing came"),
        ("trickle", "stalled: it trickled"),
        ("long", "sends more than the"),
    ],
)
def test_a_lasting_failure_is_told_apart_and_ends(
    kit: Kit, hub: fakehub.Hub, kind: str, words: str
) -> None:
    lock = locked(kit, hub)
    hub.always[SHARD] = kind
    ran = kit.run("fetch", lock, *FAST)
    assert ran.code == (7 if kind == "long" else 5)
    last = [line for line in ran.err.splitlines() if line.startswith("error:")]
    assert any(word in last[0] for word in words.split("|")), ran.err
    store = Store.open(kit.store)
    assert all(
        fakehub.sha256(store.blob_path(b).read_bytes()) == b for b in store.blobs()
    )


@pytest.mark.cases(57)
def test_a_rate_limit_is_waited_out(kit: Kit, hub: fakehub.Hub) -> None:
    lock = locked(kit, hub)
    hub.fail(SHARD, "429")
    hub.retry_after = "2"
    ran = kit.ok("fetch", lock)
    assert "(429)" in ran.err
    assert "it asks to wait 2 s; again in 2 s" in ran.err
    assert view_of(kit, lock) == checkpoint()


@pytest.mark.cases(57)
def test_a_fault_of_the_service_is_tried_again(kit: Kit, hub: fakehub.Hub) -> None:
    lock = locked(kit, hub)
    hub.fail(SHARD, "503", "500")
    ran = kit.ok("fetch", lock)
    assert "again in" in ran.err


@pytest.mark.cases(64)
def test_401_says_that_the_token_was_not_accepted(kit: Kit, hub: fakehub.Hub) -> None:
    lock = locked(kit, hub)
    hub.token = "hf_right"
    ran = kit.run("fetch", lock, *FAST, HF_TOKEN="hf_wrong")
    assert ran.code == 5
    assert "the token was not accepted (401)" in ran.err
    assert "HF_TOKEN" in ran.err
    anonymous = kit.run("fetch", lock, *FAST)
    assert "a request without token was not accepted (401)" in anonymous.err


@pytest.mark.cases(64)
def test_403_says_that_the_terms_were_not_accepted(kit: Kit, hub: fakehub.Hub) -> None:
    lock = locked(kit, hub)
    hub.token = "hf_right"
    hub.gated.add(REPO)
    ran = kit.run("fetch", lock, *FAST, HF_TOKEN="hf_right")
    assert ran.code == 5
    assert "terms of kit/model were not accepted" in ran.err
    assert f"{hub.url}/{REPO}" in ran.err


@pytest.mark.cases(124)
def test_an_unreachable_hub_is_said_so(kit: Kit, hub: fakehub.Hub) -> None:
    lock = locked(kit, hub)
    ran = kit.run("fetch", lock, *FAST, HF_ENDPOINT="http://127.0.0.1:9")
    assert ran.code == 5
    assert "cannot reach http://127.0.0.1:9" in ran.err


def test_offline_mode_is_said_so(kit: Kit, hub: fakehub.Hub) -> None:
    lock = locked(kit, hub)
    ran = kit.run("fetch", lock, HF_HUB_OFFLINE="1")
    assert ran.code == 5
    assert "HF_HUB_OFFLINE" in ran.err
