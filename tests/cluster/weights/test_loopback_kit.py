"""Weights end to end on the loopback kit: lock, fetch, link, serve, collect."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from glmspark import processes
from glmspark.weights import verify
from glmspark.weights.store import Store

from tests.cluster.kits import Done, TestKit
from tests.unit.weights import fakehub
from tests.unit.weights.conftest import REPO, REV, blob

SHARD = (2).to_bytes(8, "little") + b"{}" + blob(1, 300_000)  # its header is read
FILES = {"config.json": b"{}", "stub.json": b"{ }", "m.safetensors": SHARD}


class Weights:
    """A kit whose kit.toml names store and target; `glmspark weights` of that kit."""

    def __init__(self, root: Path, hub: fakehub.Hub, engine: str = "stub") -> None:
        self.root = root
        self.hub = hub
        self.store_root = root / "weights"
        settings = {
            "weights.store": f'"{self.store_root}"',
            "weights.target": f'"{REPO}@{REV}"',
        }
        if engine != "stub":
            settings |= {"paths.cache": f'"{root / "cache"}"', "timeouts.stop_s": "5"}
        self.kit = TestKit(root / "kit", engine=engine, settings=settings)
        self.lock = root / "model.lock.json"

    def run(self, *words: str | Path) -> Done:
        return self.kit.run("weights", *map(str, words), HF_ENDPOINT=self.hub.url)

    def ok(self, *words: str | Path) -> str:
        done = self.run(*words)
        assert done.code == 0, done.err
        return done.out

    def json(self, *words: str | Path) -> Any:
        return json.loads(self.ok(*words, "--json"))

    def bring(self) -> Path:
        """The weights from the Hub into a view, by the commands of the table."""
        subprocess.run(
            [*self.kit.argv("weights", "lock", REPO, "-o", str(self.lock))[:-2]],
            env=self.kit.env({"HF_ENDPOINT": self.hub.url}),
            check=True,
        )
        self.ok("fetch", self.lock)
        assert self.json("verify", "--deep")["ok"]
        (row,) = self.json("link")
        return Path(row["folder"])


@pytest.fixture
def hub() -> Iterator[fakehub.Hub]:
    with fakehub.running(fakehub.Hub()) as running:
        running.add(REPO, REV, FILES)
        yield running


Make = Callable[..., Weights]


@pytest.fixture
def weights(tmp_path: Path, hub: fakehub.Hub) -> Iterator[Weights]:
    made = Weights(tmp_path, hub)
    yield made
    made.kit.close()


def model_of(kit: TestKit, rank: int) -> str:
    words = processes.command_line(kit.state().ranks[rank].pid).split()
    return words[words.index("serve") + 1]


@pytest.mark.cases(51)
def test_the_kit_serves_out_of_the_store_and_gc_leaves_it_alone(
    weights: Weights,
) -> None:
    kit, hub = weights.kit, weights.hub
    folder = weights.bring()
    before = len(hub.seen)
    done = kit.run("start")
    assert done.code == 0, done.err
    assert kit.chat()[0] == 200
    assert len(hub.seen) == before  # a complete view needs no network
    assert [model_of(kit, rank) for rank in (0, 1)] == [str(folder)] * 2
    (row,) = weights.json("list")["manifests"]
    assert (row["in_use"], row["missing_files"]) == (True, 0)

    # Whatever is done to the store now, what runs keeps its files.
    refused = weights.run("forget", REPO)
    assert (refused.code, "a running rank uses" in refused.err) == (4, True)
    template = weights.root / "chat_template.jinja"
    template.write_text("{{ messages }}")
    weights.ok("pin", REPO, f"{template.name}={template}")
    (newer,) = weights.json("link")
    assert newer["folder"] != str(folder)
    assert weights.json("gc")["blobs"] == []
    assert {p.name for p in folder.iterdir()} == set(FILES)
    assert (folder / "m.safetensors").read_bytes() == FILES["m.safetensors"]

    # A start from now on opens the new view; the old one is nobody's any more.
    assert kit.run("restart").code == 0
    assert [model_of(kit, rank) for rank in (0, 1)] == [newer["folder"]] * 2
    assert [Path(path) for path in weights.json("gc")["views"]] == [folder]
    assert kit.run("stop").code == 0
    weights.ok("forget", REPO)
    assert len(weights.json("gc")["blobs"]) == len(FILES) + 1
    assert Store.open(weights.store_root).blobs() == []


def test_a_killed_kit_lets_go_of_its_view(weights: Weights) -> None:
    weights.bring()
    assert weights.kit.run("start").code == 0
    weights.kit.close()  # kill -9 of everything
    (row,) = weights.json("list")["manifests"]
    assert not row["in_use"]


@pytest.mark.cases(52)
def test_a_start_without_its_view_says_what_to_do_and_downloads_nothing(
    weights: Weights,
) -> None:
    done = weights.kit.run("start")
    assert done.code == 4, done.err
    assert f"glmspark weights fetch {REPO}@{REV} && " in done.err
    assert weights.kit.boots() == []
    weights.bring()
    assert weights.kit.run("start").code == 0
    before = len(weights.hub.seen)
    shutil.rmtree(weights.store_root / "views")
    done = weights.kit.run("restart")
    assert done.code == 4, done.err
    assert f"mend: glmspark weights link {REPO}@{REV}" in done.err
    assert weights.kit.ask("/health")[0] == 200  # what ran is still there
    assert len(weights.hub.seen) == before


def test_a_bundle_carries_the_kit_to_a_store_without_network(
    weights: Weights, tmp_path: Path
) -> None:
    weights.bring()
    weights.ok("export", tmp_path / "disk")
    weights.store_root.rename(tmp_path / "elsewhere")
    weights.hub.repos.clear()
    weights.ok("apply", tmp_path / "disk")
    weights.ok("link")
    assert verify.verify(Store.open(weights.store_root), deep=True).is_ok
    done = weights.kit.run("start")
    assert done.code == 0, done.err
    assert weights.kit.chat()[0] == 200


def test_share_has_nothing_to_send_on_a_kit_of_one_machine(weights: Weights) -> None:
    weights.bring()
    assert "already: the kit is this machine alone" in weights.ok("share")
    done = weights.run("share", "rank1")
    assert done.code == 3
    assert "rank1" in done.err


@pytest.mark.engine
@pytest.mark.full
@pytest.mark.timeout(600)
def test_real_ranks_serve_out_of_the_store(tmp_path: Path, hub: fakehub.Hub) -> None:
    pytest.importorskip("vllm.version", reason="the engine is not installed here")
    pytest.importorskip("vllm_exl3.loopback", reason="the EXL3 plugin is not here")
    from glmspark.loopback import exl3

    hub.add(REPO, REV, exl3.files())
    weights = Weights(tmp_path, hub, "vllm-cpu")
    try:
        folder = weights.bring()
        done = weights.kit.run("start", limit_s=500)
        assert done.code == 0, done.err
        assert weights.kit.chat()[0] == 200
        (row,) = weights.json("list")["manifests"]
        assert row["in_use"]
        assert model_of(weights.kit, 1) == str(folder)
        assert weights.json("gc")["blobs"] == []
        assert weights.kit.run("stop").code == 0
        weights.kit.assert_nothing_left()
    finally:
        weights.kit.close()
