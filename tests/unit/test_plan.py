"""The plan: pure, exact, ordered, without secrets; compared with golden files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from glmspark.errors import ConfigError
from glmspark.plan import Action, Goal, Plan, api_url, build_plan
from glmspark.ranks import EnginePaths, RankSpec, render_ranks, scrub
from glmspark.settings import load_settings

GOLDEN = Path(__file__).parents[1] / "golden"
PATHS = EnginePaths(("/opt/engine/bin/vllm",), "/data/model", "/data/cache", "/k/key")


def make(goal: Goal = Goal.START, *sets: str, kit: str | None = None) -> Plan:
    settings = load_settings(kit, sets, environ={"HOME": "/nonexistent"})
    return build_plan(settings.kit, goal, PATHS)


def compare(name: str, plan: Plan) -> None:
    """``plan`` against tests/golden/NAME; GLMSPARK_TEST_GOLDEN=1 writes it anew."""
    text = json.dumps(plan.to_json(), indent=1) + "\n" + "\n".join(plan.lines()) + "\n"
    file = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN") == "1":
        file.write_text(text)
    assert text == file.read_text()


def two_hosts(tmp_path: Path) -> str:
    path = tmp_path / "kit.toml"
    path.write_text(
        "name = 'pair'\ntopology = 'tp2'\nengine = 'vllm-cpu'\n"
        "serve = { host = '0.0.0.0' }\n"
        "nodes = [\n"
        " { name = 'a', ssh = 'local', fabric = '10.77.0.1', netdev = 'cve0' },\n"
        " { name = 'b', ssh = 'me@b', fabric = '10.77.0.2', netdev = 'cve1' },\n"
        "]\n"
    )
    return str(path)


def test_loopback_start() -> None:
    compare("plan-loopback-start.txt", make())


@pytest.mark.cases(95)
def test_loopback_restart_checks_before_it_stops() -> None:
    plan = make(Goal.RESTART)
    actions = [step.action for step in plan.steps]
    assert actions.index(Action.CHECK) < actions.index(Action.STOP)
    assert actions.index(Action.STOP) < actions.index(Action.LAUNCH)
    compare("plan-loopback-restart.txt", plan)


def test_two_cpu_hosts_with_a_key(tmp_path: Path) -> None:
    compare("plan-two-hosts-start.txt", make(kit=two_hosts(tmp_path)))


def test_stop_launches_nothing() -> None:
    plan = make(Goal.STOP)
    assert [step.action for step in plan.steps] == [Action.STOP]
    assert plan.ranks == ()


def test_workers_are_launched_first_and_the_head_last() -> None:
    launches = [s for s in make().steps if s.action is Action.LAUNCH]
    assert [step.detail["rank"] for step in launches] == [1, 0]


@pytest.mark.cases(110)
def test_shape_is_the_same_on_every_rank_and_stands_in_argv() -> None:
    first, second = make().ranks
    assert first.shape == second.shape
    for name, value in first.shape.items():
        if name.startswith("--"):
            for rank in (first, second):
                at = rank.argv.index(name)
                assert not value or rank.argv[at + 1] == value


def test_only_the_address_differs_in_the_environment() -> None:
    first, second = make().ranks
    unlike = {k for k in first.env if first.env[k] != second.env[k]}
    assert unlike == {"VLLM_HOST_IP"}


@pytest.mark.cases(134)
def test_the_key_is_named_by_file_only_and_only_on_the_head(tmp_path: Path) -> None:
    plan = make(kit=two_hosts(tmp_path))
    assert [rank.secrets for rank in plan.ranks] == [{"VLLM_API_KEY": "/k/key"}, {}]
    assert all("--api-key" not in rank.argv for rank in plan.ranks)


def test_digest_follows_what_runs_and_nothing_else() -> None:
    assert make().digest == make(Goal.RESTART).digest
    assert make().digest != make(Goal.START, "serve.port=9000").digest


def test_ranks_survive_json() -> None:
    for rank in make().ranks:
        assert RankSpec.from_json(json.loads(json.dumps(rank.to_json()))) == rank


def test_a_node_off_loopback_needs_its_netdev(tmp_path: Path) -> None:
    path = Path(two_hosts(tmp_path))
    path.write_text(path.read_text().replace(", netdev = 'cve1'", ""))
    with pytest.raises(ConfigError, match=r"10\.77\.0\.2 and no netdev"):
        make(kit=str(path))


def test_gb10_is_not_rendered_from_guesses(tmp_path: Path) -> None:
    path = Path(two_hosts(tmp_path))
    text = path.read_text().replace("vllm-cpu", "vllm-gb10")
    path.write_text(text + "runtime = 'nix'\n")
    kit = load_settings(str(path), environ={"HOME": "/x"}).kit
    with pytest.raises(ConfigError, match="fabric facts"):
        render_ranks(kit, PATHS)


@pytest.mark.cases(2, 111)
def test_inherited_variables_that_would_steer_a_rank_are_dropped() -> None:
    dropped = {
        "NCCL_SOCKET_IFNAME": "eth9",
        "GLOO_SOCKET_IFNAME": "eth9",
        "VLLM_HOST_IP": "1.2.3.4",
        "PYTHONPATH": "/other",
        "OMP_NUM_THREADS": "64",
        "MASTER_ADDR": "x",
        "RANK": "7",
        "HF_TOKEN": "secret",
        "GLMSPARK_SERVE_PORT": "1",
    }
    assert scrub({"PATH": "/bin", "RANKLE": "kept", **dropped}) == {
        "PATH": "/bin",
        "RANKLE": "kept",
    }


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8888/v1"),
        ("0.0.0.0", "http://127.0.0.1:8888/v1"),
        ("::", "http://[::1]:8888/v1"),
        ("fd00::1", "http://[fd00::1]:8888/v1"),
        ("localhost", "http://localhost:8888/v1"),
    ],
)
def test_url(host: str, url: str) -> None:
    kit = load_settings(sets=(f"serve.host={host}",), environ={"HOME": "/x"}).kit
    assert api_url(kit) == url
