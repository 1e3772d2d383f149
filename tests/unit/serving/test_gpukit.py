"""From the /sys trees of fake Sparks to the plan of a start: argv, env of each rank."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from glmspark import doctor
from glmspark.cli import run
from glmspark.doctor import views_from_report
from glmspark.errors import ConfigError, PreflightError
from glmspark.fabrictypes import FabricFacts
from glmspark.paths import kit_paths
from glmspark.plan import Action, Goal, Plan, build_plan, without_verdict
from glmspark.rankexec import rank_alone
from glmspark.ranks import EnginePaths, RankSpec
from glmspark.schema import Kit
from glmspark.serving.gpukit import (
    kit_profile,
    render_kit,
    shape_alone,
    shape_of,
    shared_flags,
)
from glmspark.serving.memory import GIB
from glmspark.serving.model import shipped_config
from glmspark.serving.nccl import PER_NODE
from glmspark.settings import load_settings
from glmspark.views import NodeView

from tests.sparks import Spark, card, spark_view

GOLDEN = Path(__file__).parents[2] / "golden"
PATHS = EnginePaths(
    ("/nix/store/0123456789abcdfghijklmnpqrsvwxyz-vllm-gb10-0.32.0/bin/vllm",),
    "/store/views/target",
    "/cache/jit/0123",
    "/state/key",
    draft="/store/views/drafter",
    padded_draft="/cache/drafter-tp3",
)
# Cables as (node, node), each a subnet of its own; the first socket before the second.
CABLES = {
    "tp3": [(0, 1), (1, 2), (2, 0)],
    "tp4-ring": [(0, 1), (1, 2), (2, 3), (3, 0)],
}
TOPOLOGIES = ("tp2", "tp3", "tp4", "tp4-ring")


def fabrics(root: Path, topology: str) -> list[tuple[FabricFacts, str]]:
    """Each node's facts, and the address at which the ranks meet."""
    count = {"tp2": 2, "tp3": 3}.get(topology, 4)
    if topology not in CABLES:  # one cable with two rails, or a switch
        return [
            (
                Spark(root / str(n), card(0, f"10.66.1.{n}", f"10.66.2.{n}"))
                .write()
                .facts(),
                f"10.66.1.{n}",
            )
            for n in range(1, count + 1)
        ]
    held: dict[int, list[str]] = {n: [] for n in range(count)}
    for number, ends in enumerate(CABLES[topology]):
        for side, node in enumerate(ends, start=1):
            held[node].append(f"10.66.{10 + number}.{side}")
    found = []
    for node, addresses in held.items():
        ports = [port for i, one in enumerate(addresses) for port in card(i, one)]
        lan = f"192.168.9.{node + 1}"
        found.append((Spark(root / str(node), ports, lan=lan).write().facts(), lan))
    return found


def make_views(root: Path, topology: str) -> list[NodeView]:
    return [
        spark_view(f"spark-{n + 1}", n, facts, address)
        for n, (facts, address) in enumerate(fabrics(root, topology))
    ]


def make_kit(views: list[NodeView], topology: str, *sets: str, **more: Any) -> Kit:
    lines = [f'topology = "{topology}"']
    lines += [f"{key} = {json.dumps(value)}" for key, value in more.items()]
    for view in views:
        where = "local" if view.rank == 0 else f"me@{view.name}"
        lines += ["[[nodes]]", f'name = "{view.name}"', f'ssh = "{where}"']
        lines += [f'fabric = "{view.address}"']
    Path("kit.toml").write_text("\n".join(lines) + "\n")
    return load_settings("kit.toml", sets, environ={"HOME": "/x"}).kit


def make_plan(root: Path, topology: str, *sets: str, **more: Any) -> Plan:
    views = make_views(root, topology)
    kit = make_kit(views, topology, *sets, **more)
    return build_plan(kit, Goal.START, PATHS, shape_of(kit, views))


def value(rank: RankSpec, flag: str) -> str:
    return rank.argv[rank.argv.index(flag) + 1]


DRAFT = "weights.drafter=dflash2"


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_plan_of_each_topology(tmp_path: Path, topology: str) -> None:
    plan = make_plan(tmp_path, topology, DRAFT)
    text = json.dumps(plan.to_json(), indent=1) + "\n" + "\n".join(plan.lines()) + "\n"
    file = GOLDEN / f"plan-{topology}-start.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize("drafter", ["dflash2", "mtp", "none"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_pair_of_ranks_agrees(
    tmp_path: Path, topology: str, drafter: str
) -> None:
    plan = make_plan(tmp_path, topology, f"weights.drafter={drafter}")
    for a, b in itertools.combinations(plan.ranks, 2):
        assert a.shape == b.shape and len(a.shape) > 20
        assert shared_flags(a.argv) == shared_flags(b.argv)
        differ = {k for k in {*a.env, *b.env} if a.env.get(k) != b.env.get(k)}
        assert differ <= PER_NODE
        assert a.env["VLLM_HOST_IP"] != b.env["VLLM_HOST_IP"]


def test_a_flag_that_differs_would_be_seen(tmp_path: Path) -> None:
    one = make_plan(tmp_path / "a", "tp2").ranks[0]
    other = make_plan(tmp_path / "b", "tp2", "serve.max_num_seqs=2").ranks[1]
    unlike = {k for k in one.shape if one.shape[k] != other.shape.get(k)}
    assert "--max-num-seqs" in unlike and "--cudagraph-capture-sizes" in unlike


def test_each_node_has_its_own_devices(tmp_path: Path) -> None:
    head, worker = make_plan(tmp_path, "tp2").ranks
    assert head.env["NCCL_IB_HCA"] == "=rocep1s0f0:1,roceP2p1s0f0:1"
    assert head.env["NCCL_SOCKET_IFNAME"] == "=enp1s0f0np0"
    assert head.env["NCCL_IB_GID_INDEX"] == "3"
    assert worker.env["VLLM_HOST_IP"] == "10.66.1.2"
    assert value(worker, "--master-addr") == "10.66.1.1"
    assert worker.host == "me@spark-2" and "--headless" in worker.argv


def test_a_ring_meets_on_the_lan_and_talks_over_all_its_cables(tmp_path: Path) -> None:
    ranks = make_plan(tmp_path, "tp4-ring").ranks
    for n, rank in enumerate(ranks, start=1):
        assert rank.env["GLOO_SOCKET_IFNAME"] == "enP7s7"
        assert rank.env["VLLM_HOST_IP"] == f"192.168.9.{n}"
        assert rank.env["NCCL_IB_HCA"] == "=rocep1s0f0:1,rocep1s0f1:1"
        assert rank.env["NCCL_IB_SUBNET_PREFIX_LEN"] == "24"


def test_settings_of_the_kit_reach_the_lines(tmp_path: Path) -> None:
    plan = make_plan(
        tmp_path,
        "tp2",
        "serve.port=9001",
        "ports.master=29700",
        "serve.name=glm",
        "serve.max_model_len=65536",
        "serve.kv_cache_bytes=8589934592",
        'serve.extra_args=["--enforce-eager"]',
        "weights.drafter=none",
    )
    head, worker = plan.ranks
    assert value(head, "--port") == "9001" and value(worker, "--master-port") == "29700"
    assert value(head, "--served-model-name") == "glm"
    assert value(head, "--max-model-len") == "65536"
    assert 7 * GIB < int(value(head, "--kv-cache-memory-bytes")) <= 8 * GIB
    assert "--enforce-eager" in worker.argv
    assert "--speculative-config" not in head.argv
    assert head.secrets == {"VLLM_API_KEY": "/state/key"} and not worker.secrets
    assert head.argv[: len(PATHS.program)] == PATHS.program
    assert value(head, "serve") == PATHS.model


def test_the_profile_stands_below_the_kit_and_above_the_defaults(
    tmp_path: Path,
) -> None:
    views = make_views(tmp_path, "tp2")
    kit = make_kit(views, "tp2", profile="many-users")
    assert kit_profile(kit).engine.max_num_seqs == 8 == kit.serve.max_num_seqs
    settings = load_settings("kit.toml", environ={"HOME": "/x"})
    assert settings.origins["serve.max_num_seqs"] == "profile many-users"
    kit = make_kit(views, "tp2", "serve.max_num_seqs=2", profile="many-users")
    assert kit_profile(kit).engine.max_num_seqs == 2


def test_no_answer_about_the_licence_means_mtp(tmp_path: Path) -> None:
    head = make_plan(tmp_path, "tp2").ranks[0]
    assert json.loads(value(head, "--speculative-config"))["method"] == "mtp"


def test_an_unknown_profile_is_a_finding_of_the_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="profile 'fast' is not known"):
        make_kit(make_views(tmp_path, "tp2"), "tp2", profile="fast")


def test_a_profile_of_ones_own_is_named_by_its_path(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('extends = "default"\n[engine]\nmax_num_seqs = 3\n')
    kit = make_kit(make_views(tmp_path, "tp2"), "tp2", profile=str(own))
    assert kit.serve.max_num_seqs == 3


def test_three_ranks_make_the_padded_drafter_on_each_node(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, "tp3", DRAFT)
    steps = [step for step in plan.steps if step.action is Action.DRAFT]
    assert [step.node for step in steps] == ["spark-1", "spark-2", "spark-3"]
    assert steps[0].detail["changes"] == {
        "num_attention_heads": 36,
        "num_key_value_heads": 9,
    }
    drafting = json.loads(value(plan.ranks[0], "--speculative-config"))
    assert drafting["model"] == steps[0].detail["folder"]


@pytest.mark.parametrize(("topology", "drafter"), [("tp2", "dflash2"), ("tp3", "mtp")])
def test_others_make_none(tmp_path: Path, topology: str, drafter: str) -> None:
    plan = make_plan(tmp_path, topology, f"weights.drafter={drafter}")
    assert not [step for step in plan.steps if step.action is Action.DRAFT]


def test_fp8_at_three_ranks_is_refused_clearly(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('extends = "default"\n[engine]\ndense = "fp8"\n')
    with pytest.raises(ConfigError, match="does not work at three ranks"):
        make_plan(tmp_path, "tp3", profile=str(own))


def test_a_node_without_rdma_is_refused(tmp_path: Path) -> None:
    views = make_views(tmp_path, "tp2")
    bare = replace(views[1], fabric=replace(views[1].fabric, rdma=()))
    kit = make_kit(views, "tp2")
    with pytest.raises(PreflightError, match="share no RDMA rail") as error:
        shape_of(kit, [views[0], bare])
    assert error.value.node == "spark-2"
    with pytest.raises(PreflightError, match="has not answered"):
        shape_of(kit, views[:1])


def tight(views: list[NodeView], gib: int) -> list[NodeView]:
    memory = {**views[1].facts.memory, "MemAvailable": gib * GIB}
    return [views[0], replace(views[1], facts=replace(views[1].facts, memory=memory))]


def test_what_does_not_fit_is_refused_and_a_waiver_goes_on(tmp_path: Path) -> None:
    views = tight(make_views(tmp_path, "tp2"), 100)
    kit = make_kit(views, "tp2")
    shape = shape_of(kit, views)
    with pytest.raises(PreflightError, match="GiB short; the largest context"):
        build_plan(kit, Goal.START, PATHS, shape)
    plan = build_plan(kit, Goal.START, PATHS, shape, fit=False)
    needed = render_kit(kit, PATHS, shape, fit=False).memory.needed_bytes
    assert value(plan.ranks[0], "--kv-cache-memory-bytes") == str(needed)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_node_alone_renders_the_line_that_the_plan_has(
    tmp_path: Path, topology: str
) -> None:
    views = make_views(tmp_path, topology)
    kit = make_kit(views, topology)
    plan = render_kit(kit, PATHS, shape_of(kit, views))
    for rank, view in enumerate(views):
        alone = render_kit(kit, PATHS, shape_alone(kit, rank, view)).ranks[rank]
        assert alone.argv == plan.ranks[rank].argv
        assert alone.env == plan.ranks[rank].env


def test_warm_up_and_canary_are_part_of_the_plan(tmp_path: Path) -> None:
    plan = make_plan(tmp_path / "a", "tp2")
    assert plan.trial.judges and plan.trial.drafts and len(plan.trial.warm_up) > 10
    assert f"takes {len(plan.trial.warm_up)} warm-up shapes" in plan.steps[-1].title
    without = make_plan(
        tmp_path / "b", "tp2", "serve.warm_up=false", "weights.drafter=none"
    )
    assert without.trial.warm_up == () and without.trial.judges
    assert not without.trial.drafts and "warm-up" not in without.steps[-1].title
    assert not without_verdict(plan, ("canary.answers",)).trial.judges
    assert without_verdict(plan, ("fabric.mtu",)) == plan


def report(views: list[NodeView]) -> dict[str, Any]:
    nodes = {
        view.name: {
            "facts": view.facts.to_json(),
            "fabric": view.fabric.to_json(),
            "host": view.host.to_json(),
        }
        for view in views
    }
    return {"findings": [], "nodes": nodes}


def test_a_doctors_report_is_enough_for_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    views = make_views(tmp_path, "tp2")
    kit = make_kit(views, "tp2", runtime="oci")
    Path("report.json").write_text(json.dumps(report(views)))
    found = views_from_report(kit, report(views))
    assert [one.fabric for one in found] == [one.fabric for one in views]
    sets = ["--set", "paths.engine=/bin/true", "--facts", "report.json"]
    assert run(["plan", "--json", *sets]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["ranks"][1]["env"]["NCCL_IB_GID_INDEX"] == "3"
    assert run(["plan", "--memory", *sets]) == 0
    assert "rank 1 on spark-2: 112.00 GiB available" in capsys.readouterr().out


def test_a_report_of_another_kit_is_refused(tmp_path: Path) -> None:
    views = make_views(tmp_path, "tp2")
    kit = make_kit(views, "tp2")
    with pytest.raises(ConfigError, match="nothing usable of node spark-2"):
        views_from_report(kit, report(views[:1]))


def test_rendering_is_pure_enough_to_be_repeated(tmp_path: Path) -> None:
    views = make_views(tmp_path, "tp4")
    kit = make_kit(views, "tp4", DRAFT)
    shape = shape_of(kit, views)
    plans = [build_plan(kit, Goal.START, PATHS, shape) for _ in range(2)]
    assert plans[0] == plans[1] and plans[0].digest == plans[1].digest


@pytest.mark.parametrize(("topology", "rank"), [("tp2", 1), ("tp3", 2)])
def test_a_unit_runs_its_rank_from_its_own_node_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topology: str, rank: int
) -> None:
    views = make_views(tmp_path, topology)
    kit = make_kit(views, topology, DRAFT)
    monkeypatch.setattr(doctor, "look_here", lambda _kit, at, *_: views[at])
    draft = tmp_path / "drafter"
    draft.mkdir()
    (draft / "config.json").write_text(json.dumps(shipped_config("dflash2")))
    padded = tmp_path / "padded"
    paths = replace(PATHS, draft=str(draft), padded_draft=str(padded))
    spec = rank_alone(kit, rank, paths, kit_paths(kit, {"HOME": "/x"}))
    plan = build_plan(kit, Goal.START, paths, shape_of(kit, views))
    assert spec == plan.ranks[rank]
    assert padded.is_dir() is (topology == "tp3")


def test_a_look_at_this_machine_asks_no_peer(tmp_path: Path) -> None:
    views = make_views(tmp_path, "tp2")
    kit = make_kit(views, "tp2")
    seen = doctor.look_here(kit, 1, kit_paths(kit, {"HOME": "/x"}), ("vllm",))
    assert (seen.name, seen.rank, seen.address) == ("spark-2", 1, "10.66.1.2")
    assert seen.paths == () and seen.facts.memory["MemTotal"] > 0


def test_free_memory_alone_makes_no_other_plan(tmp_path: Path) -> None:
    views = make_views(tmp_path, "tp2")
    kit = make_kit(views, "tp2")
    less = tight(views, 107)
    plans = [
        build_plan(kit, Goal.START, PATHS, shape_of(kit, v)) for v in (views, less)
    ]
    pools = [value(plan.ranks[0], "--kv-cache-memory-bytes") for plan in plans]
    assert pools[0] != pools[1] and plans[0].digest == plans[1].digest
    asked = [
        make_plan(tmp_path / size, "tp2", f"serve.kv_cache_bytes={size}").digest
        for size in ("4294967296", "8589934592")
    ]
    assert len({*asked, plans[0].digest}) == 3
