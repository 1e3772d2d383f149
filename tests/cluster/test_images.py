"""Ranks in containers: the image by content, loaded where it lacks, nothing pulled."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import fakepodman
from tests.cluster.fakepodman import Store
from tests.cluster.kits import TestKit, wait_for
from tests.conftest import REPOSITORY

Make = Callable[..., TestKit]


class Boxed:
    """A kit of two ranks in containers, and what each host's engine was asked."""

    def __init__(self, pair_kit: Make, root: Path, tool: str, naming: str) -> None:
        self.root = root / "boxes"
        places = fakepodman.install(self.root, tool, naming)
        archive = root / "image.tar"
        self.config = fakepodman.make_archive(archive)
        program = root / "vllm"
        stub = REPOSITORY / "python/glmspark/stub.py"
        line = shlex.join([sys.executable, "-P", str(stub)])
        program.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        program.chmod(0o755)
        settings = {
            "runtime": '"oci"',
            "image.archive": f'"{archive}"',
            "image.tool": f'"{tool}"',
            "paths.engine": f'"{program}"',
            "paths.cache": f'"{root / "cache"}"',
        }
        path = f"{places}:{os.environ['PATH']}"
        self.kit = pair_kit(settings, env=f"PATH={path}")
        self.kit.environ = {"PATH": path}
        self.head, self.worker = Store(self.root / "head"), Store(self.root / "worker")


@pytest.fixture
def boxed(pair_kit: Make, tmp_path: Path) -> Callable[..., Boxed]:
    def make(tool: str = "podman", naming: str = "config") -> Boxed:
        return Boxed(pair_kit, tmp_path, tool, naming)

    return make


@pytest.mark.cases(20, 103, 118, 120, 122, 134)
@pytest.mark.parametrize(
    ("tool", "naming"),
    [
        ("podman", "config"),
        pytest.param("docker", "index", marks=pytest.mark.full),
    ],
)
def test_ranks_run_in_the_image_by_content_and_nothing_is_pulled(
    boxed: Callable[..., Boxed], tool: str, naming: str
) -> None:
    made = boxed(tool, naming)
    kit = made.kit
    done = kit.run("start", "--json")
    assert done.code == 0, done.err
    key = (kit.state_folder / "key").read_text().strip()
    assert kit.chat(key=key)[0] == 200
    for store, rank in ((made.head, 0), (made.worker, 1)):
        (argv,) = store.calls("run")
        (name,) = store.images()
        assert argv[argv.index("--boot") - 1] == f"sha256:{name}"
        assert argv[-2:] == ["--rank", str(rank)]
        assert {"--pull=never", "--network=host", "--ulimit=memlock=-1:-1"} <= set(argv)
        cache = made.kit.settings["paths.cache"].strip('"')
        assert f"--volume={cache}:{cache}:rw" in argv  # compiled kernels outlive it
        assert "--restart=no" in argv and key not in " ".join(argv)
        assert len(store.calls("load")) == 1 and not store.calls("pull")
    assert (name == made.config.removeprefix("sha256:")) is (naming == "config")
    boot = kit.state().boot
    assert {one.rank for one in kit.members() if "serve" in one.title} == {0, 1}
    assert kit.run("stop").code == 0
    kit.assert_nothing_left()
    assert made.head.alive() == made.worker.alive() == {}
    assert made.worker.calls("ps")[-1][-1] == f"--filter=label=glmspark.boot={boot}"
    # The second start finds the image by content and loads nothing.
    done = kit.run("start")
    assert done.code == 0 and done.err.count("has the image, nothing loaded") == 2
    assert len(made.worker.calls("load")) == 1


@pytest.mark.full
@pytest.mark.cases(90, 94)
def test_a_rank_that_dies_in_its_container_ends_the_kit(
    boxed: Callable[..., Boxed],
) -> None:
    made = boxed()
    kit = made.kit
    assert kit.run("start").code == 0
    os.kill(next(iter(made.worker.alive().values())), 9)
    wait_for(lambda: kit.state().phase == "failed")
    kit.assert_nothing_left()
    assert kit.run("start").code == 0


@pytest.mark.cases(56, 127)
def test_what_cannot_be_looked_at_or_loaded_stops_the_start(
    boxed: Callable[..., Boxed],
) -> None:
    made = boxed()
    kit = made.kit
    (made.root / "worker-denied").touch()
    done = kit.run("start")
    assert done.code == 4, done.err
    assert "[spark-2] engine.image: " in done.err and "permission denied" in done.err
    assert not made.head.calls("load")
    (made.root / "worker-denied").unlink()
    (made.root / "worker-full").touch()
    done = kit.run("start")
    assert done.code == 5 and "spark-2: exit status 1: Error: writing blob: no" in (
        done.err
    )
    kit.assert_nothing_left()
    (made.root / "worker-full").unlink()
    assert kit.run("start").code == 0


@pytest.mark.cases(118, 120)
def test_an_archive_of_another_image_than_the_kit_names_is_refused(
    boxed: Callable[..., Boxed], tmp_path: Path
) -> None:
    made = boxed()
    kit = made.kit
    kit.settings["image.config"] = f'"{made.config}"'
    kit.write()
    fakepodman.make_archive(tmp_path / "image.tar", "another build under its name")
    done = kit.run("start")
    assert done.code == 7 and "image.config names" in done.err
    assert not made.head.calls("load") and not made.worker.calls("load")


@pytest.mark.cases(121)
def test_an_image_that_is_nowhere_is_said_before_anything_starts(
    boxed: Callable[..., Boxed],
) -> None:
    made = boxed()
    del made.kit.settings["image.archive"]
    made.kit.settings["image.config"] = f'"{made.config}"'
    made.kit.write()
    done = made.kit.run("start")
    assert done.code == 4 and done.err.count(f"no image {made.config} there") == 2
    assert "set image.archive to the archive's file; nothing is pulled" in done.err
