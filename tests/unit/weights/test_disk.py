"""Disks without room, in advance or meanwhile, and disks that cannot be written."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from glmspark.weights.store import Store

from tests.unit.weights import fakehub
from tests.unit.weights.conftest import (
    REPO,
    REV,
    Kit,
    blob,
    checkpoint,
    locked,
    manifest_of,
    wait_for,
    write_tree,
)


@pytest.mark.cases(56)
def test_missing_space_is_found_before_the_first_byte(
    kit: Kit, hub: fakehub.Hub, small_disk: Path
) -> None:
    hub.add(REPO, REV, {"big.safetensors": blob(7, 20 << 20)})
    lock = locked(kit, hub)
    ran = kit.run("fetch", lock, "--store", small_disk / "store")
    assert ran.code == 4
    assert "needs 20.00 MiB more" in ran.err
    assert "are free there; nothing was written" in ran.err
    assert not hub.gets("big.safetensors")


@pytest.mark.cases(56)
def test_a_disk_that_fills_meanwhile_is_told_apart_and_resumed(
    kit: Kit, hub: fakehub.Hub, small_disk: Path
) -> None:
    big = blob(7, 12 << 20)
    hub.add(REPO, REV, {"big.safetensors": big})
    lock = locked(kit, hub)
    hub.fail("big.safetensors", "drip")
    process = kit.start("fetch", lock, "--store", small_disk / "store")
    wait_for(lambda: hub.sent["big.safetensors"] > 2 << 20, "bytes flow")
    with (small_disk / "hog").open("wb") as hog:  # another program fills the disk
        try:
            while True:
                hog.write(b"\0" * (1 << 20))
                hog.flush()
        except OSError:
            pass
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 5, output
    assert "is full; what has arrived is kept" in output
    (small_disk / "hog").unlink()
    ran = kit.ok("fetch", lock, "--store", small_disk / "store", "--json")
    assert ran.json[0]["resumed_bytes"] > 0
    assert ran.json[0]["resumed_bytes"] + ran.json[0]["fetched_bytes"] == len(big)


def fill(folder: Path) -> Path:
    """Take what is free below ``folder``, to the last byte."""
    hog = folder / "hog"
    with hog.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with suppress(OSError):
                while True:
                    file.write(b"\0" * size)
    return hog


@pytest.mark.cases(56)
@pytest.mark.parametrize("command", ["link", "pin", "verify"])
def test_a_disk_without_room_for_a_name_is_told_apart_and_mended(
    kit: Kit, small_disk: Path, command: str
) -> None:
    files = checkpoint()
    source = write_tree(small_disk / "source", files)
    where = ("--store", small_disk / "store")
    kit.ok("import", source, kit.lock(manifest_of(files)), *where)
    template = kit.tmp / "t.jinja"
    template.write_text("{{ m }}" * 3000)
    words: tuple[str | Path, ...] = (command, *where)
    if command == "pin":
        words = ("pin", REPO, f"t.jinja={template}", *where)
    if command == "verify":
        words = ("verify", "--deep", *where)
    hog = fill(small_disk)
    ran = kit.run(*words)
    hog.unlink()
    if ran.code != 0:  # a name may still have fitted into the last page
        assert ran.code == 5, ran.err
        assert "is full" in ran.err
        assert "df -h" in ran.err
    kit.ok(*words)
    assert kit.ok("verify", "--deep", "--json", *where).json["ok"]
    kit.ok("gc", *where)
    assert kit.ok("verify", "--deep", "--json", *where).json["ok"]


def test_a_store_on_a_read_only_disk_is_said_so(kit: Kit, small_disk: Path) -> None:
    store = small_disk / "store"
    Store.open(store, create=True)
    remount = ["mount", "-o", "remount,ro", str(small_disk)]
    subprocess.run(remount, check=True)
    ran = kit.run("fetch", "--store", store)
    assert ran.code == 3
    assert "mounted read-only" in ran.err
