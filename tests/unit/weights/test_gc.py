"""gc, forget, list and leases: what goes, and what running ranks keep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from glmspark.errors import CommandError, ConfigError, PreflightError
from glmspark.weights import gc, lease, locks, pin, verify, view
from glmspark.weights.manifest import Manifest
from glmspark.weights.store import Store

from tests.unit.weights.conftest import (
    REPO,
    REV,
    SHARD,
    Kit,
    at_once,
    contents,
)
from tests.unit.weights.fakehub import sha256

Filled = tuple[Store, Manifest, dict[str, bytes]]


# -- gc and leases -------------------------------------------------------------


def test_gc_takes_what_no_manifest_needs_and_nothing_else(
    kit: Kit, filled: Filled
) -> None:
    store, manifest, files = filled
    view.link(store, manifest)
    stray = sha256(b"stray")
    store.mkdir(store.blob_path(stray).parent)
    store.blob_path(stray).write_bytes(b"stray")
    store.part_path("f" * 64).write_bytes(b"part")
    before = contents(store.root)
    dry = kit.ok("gc", "--dry-run", "--json").json
    assert contents(store.root).keys() == before.keys()
    assert [b["blob"] for b in dry["blobs"]] == [stray]
    real = kit.ok("gc", "--json").json
    assert real == dry | {"dry_run": False}
    assert set(store.blobs()) == {sha256(d) for d in files.values()}
    assert not list((store.root / "partial").iterdir())
    assert verify.verify(store, [manifest], deep=True).is_ok


def test_gc_keeps_the_part_of_a_wanted_blob(filled: Filled) -> None:
    store, _, files = filled
    name = sha256(files[SHARD])
    store.blob_path(name).unlink()
    store.part_path(name).write_bytes(b"the first bytes")
    gc.collect(store)
    assert store.part_path(name).exists()


def test_a_running_ranks_view_is_never_collected(kit: Kit, filled: Filled) -> None:
    store, manifest, files = filled
    made = view.link(store, manifest)
    script = (
        "import os, sys\nfrom pathlib import Path\n"
        "from glmspark.weights import lease\nfrom glmspark.weights.store import Store\n"
        "lease.hold(Store.open(Path(sys.argv[1])), Path(sys.argv[2]))\n"
        "os.execv('/bin/sh', ['sh', '-c', 'echo up; read line'])\n"  # as the rank does
    )
    argv = [sys.executable, "-c", script, str(store.root), str(made.folder)]
    with subprocess.Popen(
        argv, env=kit.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "up\n"
        with pytest.raises(PreflightError, match="running rank"):
            gc.forget(store, manifest.slug)
        store.manifest_path(manifest.slug).unlink()
        assert gc.collect(store).blobs == []
        assert contents(made.folder) == files
        rank.send_signal(signal.SIGKILL)
    assert {b for b, _ in gc.collect(store).blobs} == {
        sha256(data) for data in files.values()
    }


def test_what_a_killed_link_left_keeps_no_view_alive(
    filled: Filled, tmp_path: Path
) -> None:
    store, manifest, _ = filled
    old = view.link(store, manifest)
    left = store.root / "views" / f".{manifest.slug}.4711.tmp"
    left.symlink_to(old.path.readlink())
    template = tmp_path / "t.jinja"
    template.write_text("new")
    new = view.link(store, pin.pin(store, manifest, template.name, template))
    assert gc.collect(store).views == [old.folder]
    assert not os.path.lexists(left)
    assert new.path.resolve() == new.folder


def test_what_a_kill_left_beside_the_names_goes(filled: Filled) -> None:
    store, _, _ = filled
    left = [store.root / ".marker.0.tmp", store.root / "manifests" / ".m.0.tmp"]
    for path in left:
        path.write_text("half")
    gc.collect(store)
    assert not any(path.exists() for path in left)


def test_gc_refuses_beside_a_command_that_adds(filled: Filled) -> None:
    store, _, _ = filled
    with locks.using(store), pytest.raises(CommandError, match="another glmspark"):
        gc.collect(store)
    gc.collect(store)


def test_gc_refuses_while_a_manifest_cannot_be_read(filled: Filled) -> None:
    store, manifest, files = filled
    store.manifest_path(manifest.slug).write_text('{"format": 1')
    with pytest.raises(ConfigError):
        gc.collect(store)
    assert len(store.blobs()) == len(files)


def test_kill_9_during_gc_leaves_a_store_that_verifies(
    kit: Kit, filled: Filled
) -> None:
    store, manifest, _ = filled
    for number in range(40):
        data = b"stray %d" % number
        path = store.blob_path(sha256(data))
        store.mkdir(path.parent)
        path.write_bytes(data)
    script = (
        "import sys, os, signal\nfrom pathlib import Path\n"
        "from glmspark.weights import gc\nfrom glmspark.weights.store import Store\n"
        "steps = iter(range(15))\n"
        "def step():\n"
        "    if next(steps, None) is None: os.kill(os.getpid(), signal.SIGKILL)\n"
        "gc.collect(Store.open(Path(sys.argv[1])), on_step=step)\n"
    )
    argv = [sys.executable, "-c", script, str(store.root)]
    killed = subprocess.run(argv, env=kit.env, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert 0 < len(gc.plan(store, store.manifests()).blobs) < 40
    assert verify.verify(store, [manifest], deep=True).is_ok
    gc.collect(store)
    assert gc.plan(store, store.manifests()).blobs == []


def test_forget_then_gc_frees_the_blobs(kit: Kit, filled: Filled) -> None:
    store, manifest, _ = filled
    view.link(store, manifest)
    kit.ok("forget", manifest.repo)
    kit.ok("gc")
    assert store.blobs() == []
    assert not os.path.lexists(store.root / "views" / manifest.slug)


@pytest.mark.cases(66)
def test_list_says_what_is_there_and_at_which_revision(
    kit: Kit, filled: Filled
) -> None:
    store, _, files = filled
    store.blob_path(sha256(files[SHARD])).unlink()
    ran = kit.ok("list", "--json").json
    (row,) = ran["manifests"]
    assert (row["repo"], row["revision"]) == (REPO, REV)
    assert (row["files"], row["missing_files"]) == (len(files), 1)
    assert row["missing_bytes"] == len(files[SHARD])


@pytest.mark.parametrize("how", ["name", "folder"])
def test_a_view_is_held_by_its_name_and_by_its_folder(filled: Filled, how: str) -> None:
    store, manifest, _ = filled
    made = view.link(store, manifest)
    held = lease.hold(store, made.path if how == "name" else made.folder)
    assert lease.held_views(store) == {made.folder.name}
    for fd in held:
        os.close(fd)
    assert lease.held_views(store) == set()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for two users")
def test_a_rank_of_another_user_holds_its_view_too(kit: Kit, filled: Filled) -> None:
    """It may read the store and not write a lease into it."""
    store, manifest, files = filled
    made = view.link(store, manifest)
    for base in (store.root, *store.root.parents[:3]):
        base.chmod(0o755)
    script = (
        "import os, sys; from pathlib import Path\n"
        "from glmspark import viewlease\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "folder, held = viewlease.hold(Path(sys.argv[1]))\n"
        "print(folder, len(held), flush=True); sys.stdin.read()\n"
    )
    argv = [sys.executable, "-c", script, str(made.path)]
    with subprocess.Popen(
        argv, env=kit.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == f"{made.folder} 1\n"
        store.manifest_path(manifest.slug).unlink()
        made.path.unlink()
        assert gc.collect(store).blobs == []
        assert contents(made.folder) == files
        rank.kill()
    assert len(gc.collect(store).blobs) == len(files)


def test_those_who_ask_for_leases_do_not_see_each_other(filled: Filled) -> None:
    store = filled[0]
    left = store.root / "leases" / "4711-0a.json"  # of a rank that is gone
    left.write_text('{"view": "x", "pid": 4711}')
    seen = at_once(lambda _: [alive for *_, alive in lease.leases(store)] * 20, 4)
    assert not any(alive for one in seen for alive in one)
