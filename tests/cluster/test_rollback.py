"""Restart that can go back: what served before serves again."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.cluster.kits import TestKit


@pytest.mark.cases(107)
def test_a_restart_that_fails_can_go_back_to_what_served(
    stub_kit: Callable[..., TestKit],
) -> None:
    kit = stub_kit({"serve.max_model_len": "2048"})
    assert kit.run("start").code == 0
    # Settings that pass every check, and ranks that then do not come up.
    kit.settings["serve.max_model_len"] = "4096"
    kit.scripts["1"] = {"exit_after_s": 0.3, "mute": True}
    kit.write()
    done = kit.run("restart")
    assert done.code == 5, done.err
    assert "glmspark rollback brings generation 1 back" in done.err
    kit.assert_nothing_left()
    kit.scripts.clear()
    target = (kit.model / "stub.json").write_text("{}")
    assert target
    shown = kit.run("rollback", "--dry-run").out
    assert "--max-model-len 2048" in shown and "stop every rank" in shown
    done = kit.run("rollback", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["result"] == "live"
    assert "kit.toml is as it was" in done.err and "back to generation 1" in done.err
    assert kit.chat(" ".join(["word"] * 3000))[0] == 400  # the older limit holds
    assert "other settings than now" in kit.run("start").err
    assert kit.run("restart").code == 0
    assert kit.chat(" ".join(["word"] * 3000))[0] == 200
    lines = kit.run("rollback", "--list").out.splitlines()
    assert [line.split()[0] for line in lines] == ["1", "2"]


@pytest.mark.cases(107)
def test_nothing_is_stopped_for_a_way_back_that_is_none(
    stub_kit: Callable[..., TestKit],
) -> None:
    kit = stub_kit()
    assert kit.run("rollback").code == 3
    assert kit.run("start").code == 0
    boot = kit.state().boot
    done = kit.run("rollback")
    assert done.code == 3 and "no other generation" in done.err
    (kit.model / "config.json").write_text('{"other": 1}')
    done = kit.run("rollback", "--to", "1")
    assert done.code == 7 and "is another model" in done.err
    assert kit.state().boot == boot and kit.chat()[0] == 200
