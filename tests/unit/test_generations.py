"""Generations: kept when they serve, picked by what they are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from glmspark import generations
from glmspark.errors import CommandError, ConfigError, IntegrityError
from glmspark.generations import Generation, pick, read_generations, record
from glmspark.paths import KitPaths
from glmspark.plan import Goal, Plan
from glmspark.ranks import RankSpec
from glmspark.settings import load_settings

KIT = load_settings(environ={"HOME": "/nonexistent"}).kit


def plan(word: str, goal: Goal = Goal.START) -> Plan:
    return Plan("k", goal, (), (RankSpec(0, "a", "local", (word,), {}),))


@pytest.fixture
def paths(tmp_path: Path) -> KitPaths:
    return KitPaths(tmp_path, tmp_path / "c", tmp_path / "key", tmp_path / "store")


def keep(paths: KitPaths, word: str, closure: str = "") -> Generation:
    return record(paths, KIT, plan(word), "boot", (closure, ""))


def test_the_last_three_that_served_are_kept_and_the_same_again_is_no_new_one(
    paths: KitPaths,
) -> None:
    numbers = [keep(paths, word).number for word in "aabcd"]
    assert numbers == [1, 1, 2, 3, 4]
    kept = read_generations(paths)
    assert [one.number for one in kept] == [2, 3, 4]
    assert kept[0].settings() == KIT
    (paths.state / "generations/0003/generation.json").write_text("{cut")
    assert [one.number for one in read_generations(paths)] == [2, 4]


def test_what_is_gone_back_to_is_the_last_that_is_not_what_runs(
    paths: KitPaths,
) -> None:
    for word in "abc":
        keep(paths, word, f"/nix/store/{word}")
    kept = read_generations(paths)
    assert pick(kept, plan("c").digest).number == 2
    assert pick(kept, plan("unheard of").digest).number == 3
    assert pick(kept, "", asked=1).number == 1
    with pytest.raises(ConfigError, match="no generation 9"):
        pick(kept, "", asked=9)
    with pytest.raises(ConfigError, match="no other generation"):
        pick(kept[:1], plan("a").digest)
    assert generations.closures_of(kept)["generation-2"] == "/nix/store/b"


def test_a_failed_restart_names_the_way_back(paths: KitPaths) -> None:
    keep(paths, "a")
    error = CommandError("it failed", hint="look")
    said = generations.with_way_back(error, paths, plan("b", Goal.RESTART)).hint
    assert said == "look; glmspark rollback brings generation 1 back"
    error = CommandError("it failed", hint="look")
    assert generations.with_way_back(error, paths, plan("b")).hint == "look"


@pytest.mark.cases(66)
def test_another_model_under_the_same_name_is_no_way_back(
    paths: KitPaths, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    made = keep(paths, "a")
    generations.check_model(made, tmp_path / "model")  # nothing was stated
    with pytest.raises(IntegrityError, match="is another model"):
        generations.check_model(
            replace(made, stated={"model": "0" * 64}), tmp_path / "model"
        )


def test_settings_that_this_version_does_not_know_are_refused(paths: KitPaths) -> None:
    made = replace(keep(paths, "a"), kit={"new": 1}, tool="9.9")
    with pytest.raises(ConfigError, match=r"written by glmspark 9\.9"):
        made.settings()
