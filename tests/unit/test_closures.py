"""Closures: which one, by which way, with which words; Nix's log as bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from glmspark import closures
from glmspark.closures import Progress, Way, way_to
from glmspark.errors import ConfigError
from glmspark.nixside import StoreFacts, falls_back, look, parse_info
from glmspark.plan import Action, Goal, build_plan
from glmspark.ranks import EnginePaths
from glmspark.schema import Kit

KEY = "glmspark-home-1:AAAA="
CLOSURE = "/nix/store/0123-vllm"


def kit(runtime: str = "nix") -> Kit:
    nodes = [
        {"name": "a", "fabric": "10.66.1.1", "netdev": "c0"},
        {"name": "b", "fabric": "10.66.1.2", "netdev": "c7", "ssh": "me@b"},
    ]
    return Kit.model_validate(
        {"topology": "tp2", "engine": "stub", "runtime": runtime, "nodes": nodes}
    )


def store(**more: object) -> StoreFacts:
    return StoreFacts(KEY, "/bin/nix", "2.26.3", "me", **more)  # type: ignore[arg-type]


@pytest.mark.cases(129)
@pytest.mark.parametrize(
    ("seen", "way"),
    [
        (store(has_closure=True), Way.THERE),
        (store(trusts_user=True), Way.TRUSTED),
        (store(trusts_user=False, trusts_key=True), Way.SIGNED),
        (store(trusts_user=None, trusts_key=True), Way.SIGNED),
        (store(trusts_user=False), Way.REFUSED),
        (store(trusts_user=None), Way.REFUSED),
    ],
)
def test_whom_a_store_trusts_decides_before_anything_is_sent(
    seen: StoreFacts, way: Way
) -> None:
    assert way_to(seen) is way
    found = list(closures.findings("b", seen, head=False))
    assert bool(found) is (way is Way.REFUSED)
    for one in found:
        if seen.trusts_user is None:
            assert "nix-daemon" in one.remedy
            continue
        assert f"extra-trusted-public-keys = {KEY}" in one.needed
        assert f"'extra-trusted-public-keys = {KEY}' | sudo tee -a" in one.remedy
    sign_checks_off = "--no-check-sigs" in closures.copy_argv(
        "/n/nix", "b", "/n/nix-daemon", CLOSURE, way
    )
    assert sign_checks_off is (way is Way.TRUSTED)


def test_a_head_without_its_own_closure_and_a_node_without_nix_are_findings() -> None:
    (head,) = closures.findings("a", store(trusts_user=True), head=True)
    assert "nix build" in head.remedy
    bare = StoreFacts(KEY, why="there is no nix program")
    (node,) = closures.findings("b", bare, head=False)
    assert node.seen == "there is no nix program" and "install Nix" in node.remedy


def test_a_plan_brings_the_closure_to_the_other_nodes_before_it_stops_any() -> None:
    program = ("/nix/store/0123-vllm/bin/vllm",)
    paths = EnginePaths(program, "/m", "/c", "/k")
    plan = build_plan(kit(), Goal.RESTART, paths)
    steps = [step for step in plan.steps if step.action is Action.ENGINE]
    assert [(s.node, s.detail) for s in steps] == [("b", {"closure": CLOSURE})]
    actions = [step.action for step in plan.steps]
    assert actions.index(Action.ENGINE) < actions.index(Action.STOP)
    assert {rank.argv[0] for rank in plan.ranks} == {program[0]}
    with pytest.raises(ConfigError, match="in no Nix store"):
        closures.require_closure(kit(), ("/bin/sh",))
    venv = build_plan(kit("venv"), Goal.START, paths)
    assert not [step for step in venv.steps if step.action is Action.ENGINE]


def test_the_log_of_nix_adds_up_to_bytes() -> None:
    progress = Progress()
    events = [
        {"action": "start", "id": 1, "type": 103, "level": 5, "text": ""},
        {"action": "result", "id": 1, "type": 106, "fields": [100, 3000]},
        {"action": "start", "id": 2, "type": 100, "level": 3, "text": "copying"},
        {"action": "result", "id": 2, "type": 105, "fields": [1000, 2000, 0, 0]},
        {"action": "start", "id": 3, "type": 100, "level": 3, "text": "copying"},
        {"action": "result", "id": 3, "type": 105, "fields": [500, 1000, 0, 0]},
        {"action": "result", "id": 1, "type": 105, "fields": [1, 2, 1, 0]},
        {"action": "msg", "level": 0, "msg": "error: lacks a signature"},
        {"action": "msg", "level": 3, "msg": "copying 2 paths..."},
    ]
    for event in events:
        progress.feed("@nix " + json.dumps(event) + "\n")
    progress.feed("@nix {cut\n")
    progress.feed("ssh: connection lost\n")
    assert (progress.bytes_done, progress.expected) == (1500, 3000)
    assert progress.errors == ["error: lacks a signature", "ssh: connection lost"]
    assert closures.show([("b", Progress(2_000_000, {1: 1_000_000}))]).endswith(
        "b 1 of 2 MB"
    )


def test_the_ssh_configuration_of_a_copy_lets_nix_see_the_connection() -> None:
    text = closures.ssh_config(
        Path("/s t/known"), None, "/home/me", {"HostName": "10.0.0.2"}
    )
    lines = text.splitlines()
    assert lines[0] == "HostName 10.0.0.2"
    assert 'UserKnownHostsFile "/s t/known"' in lines and "BatchMode yes" in lines
    assert "PermitLocalCommand" not in text
    assert lines[-2:] == [
        'Include "/home/me/.ssh/config"',
        'Include "/etc/ssh/ssh_config"',
    ]


@pytest.mark.parametrize(
    ("said", "trusted"),
    [
        ('{"trusted":1,"url":"daemon"}', (True, "daemon")),
        ('{"trusted":false,"url":"daemon"}', (False, "daemon")),
        ("{}", (None, "")),
        ("", (None, "")),
    ],
)
def test_trust_is_read_from_the_daemons_own_word(said: str, trusted: object) -> None:
    assert parse_info(said) == trusted


def test_a_user_without_a_daemon_gets_a_store_at_home_which_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nix = tmp_path / "nix"
    nix.write_text(
        "#!/bin/sh\n"
        'case "$*" in --version) echo "nix (Nix) 2.26.3" ;;\n'
        '*info*) echo \'{"trusted":1,"url":"local"}\' ;; esac\n'
    )
    monkeypatch.setattr("os.getuid", lambda: 65534)
    nix.chmod(0o755)
    (tmp_path / "nix-store").symlink_to(nix)
    seen = look(str(nix), CLOSURE, KEY)
    assert (seen.has_closure, seen.trusts_user) == (False, None)
    (found,) = closures.findings("b", seen, head=False)
    assert "no Nix daemon runs there" in found.seen
    assert not falls_back("daemon", 65534) and not falls_back("local", 0)
    assert not falls_back("local", 65534, tmp_path)  # an installation of one user
    assert look("", CLOSURE, KEY).why == "there is no nix program"
    assert look(str(tmp_path / "none"), CLOSURE, KEY).why
