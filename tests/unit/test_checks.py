"""The doctor's checks: two healthy Sparks have none; each fault fires its own check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from glmspark.checks import CHECKS, check_nodes, unreachable
from glmspark.checks.fabric import fabric_rails
from glmspark.doctor import examine, question
from glmspark.hostfacts import Consumer, GpuUser
from glmspark.imageside import ImageFacts
from glmspark.initkit import propose, render, require_cabling
from glmspark.nixside import StoreFacts
from glmspark.preflight import Finding, check_waivers, report
from glmspark.remoteerrors import RemoteError
from glmspark.schema import Kit
from glmspark.settings import load_settings
from glmspark.views import NodeView

from tests.sparks import GIB, Spark, card, spark_view

Views = list[NodeView]


def make_kit(**more: Any) -> Kit:
    data: dict[str, Any] = {
        "topology": "tp2",
        "runtime": "nix",
        "engine": "vllm-gb10",
        "nodes": [
            {"name": "a", "fabric": "10.66.1.1"},
            {"name": "b", "ssh": "b", "fabric": "10.66.1.2"},
        ],
    }
    return Kit.model_validate({**data, **more})


@pytest.fixture
def views(tmp_path: Path) -> Views:
    """Two healthy Sparks with two rails."""
    found = []
    for n, name in enumerate(("a", "b"), start=1):
        ports = card(0, f"10.66.1.{n}", f"10.66.2.{n}")
        fabric = Spark(tmp_path / name, ports, lan=f"192.168.9.{n}").write().facts()
        found.append(spark_view(name, n - 1, fabric, f"10.66.1.{n}"))
    return found


def b_facts(views: Views, **more: Any) -> Views:
    return [views[0], replace(views[1], facts=replace(views[1].facts, **more))]


def b_host(views: Views, **more: Any) -> Views:
    return [views[0], replace(views[1], host=replace(views[1].host, **more))]


def b_path(views: Views, **more: Any) -> Views:
    paths = (replace(views[1].paths[0], **more),)
    return [views[0], replace(views[1], paths=paths)]


def b_port(views: Views, number: int, **more: Any) -> Views:
    fabric = views[1].fabric
    devices = list(fabric.netdevs)
    devices[number] = replace(devices[number], **more)
    fabric = replace(fabric, netdevs=tuple(devices))
    return [views[0], replace(views[1], fabric=fabric)]


def b_fabric(views: Views, **more: Any) -> Views:
    return [views[0], replace(views[1], fabric=replace(views[1].fabric, **more))]


def b_memory(views: Views, **more: int) -> Views:
    return b_facts(views, memory={**views[1].facts.memory, **more})


# check -> (fault, words that the finding must say)
FAULTS: dict[str, tuple[Callable[[Views], Views], str]] = {
    "node.read": (lambda v: b_host(v, unread=("clock: denied",)), "clock: denied"),
    "fabric.link": (lambda v: b_port(v, 0, operstate="down"), "enp1s0f0np0 is down"),
    "fabric.route": (lambda v: b_path(v, netdev="enP7s7"), "leave by enP7s7"),
    "fabric.reach": (
        lambda v: b_path(v, answers=False, why="no answer"),
        "10.66.1.1 does not answer (no answer)",
    ),
    "fabric.mtu": (
        lambda v: b_path(v, full_size=False, why="no answer"),
        "9000 bytes to 10.66.1.1 do not pass",
    ),
    "fabric.firewall": (
        lambda v: b_path(v, ports={29555: "refused", 61111: "dropped"}),
        "port 61111 is dropped",
    ),
    "fabric.rdma": (lambda v: b_fabric(v, rdma=()), "no RDMA device"),
    "fabric.rails": (lambda v: b_port(v, 1, addresses=()), "no IPv4 address"),
    "fabric.gid-mode": (lambda v: b_port(v, 0, addr_gen_mode=2), "private IPv6"),
    "fabric.pcie": (lambda v: b_port(v, 1, pcie_width=2), "2 of 4 PCIe lanes"),
    "fabric.counters": (
        lambda v: b_fabric(
            v,
            rdma=tuple(
                replace(one, counters={"out_of_sequence": 7})
                for one in v[1].fabric.rdma
            ),
        ),
        "has counted out_of_sequence 7",
    ),
    "fabric.verbs": (lambda v: b_fabric(v, verbs_nodes=0), "/dev/infiniband"),
    "host.kernel": (lambda v: b_facts(v, kernel="7.0.0-31"), "kernel 7.0.0-31"),
    "host.cma": (lambda v: b_memory(v, CmaTotal=0), "out of 0 MiB"),
    "host.memlock": (lambda v: b_facts(v, memlock_bytes=8 << 20), "8 MiB"),
    "host.memory": (
        lambda v: b_host(
            b_memory(v, MemAvailable=60 * GIB),
            consumers=(Consumer(7, "jupyter", 40 * GIB),),
        ),
        "60.0 GiB available; largest: jupyter (pid 7) 40.0 GiB",
    ),
    "host.hugepages": (lambda v: b_host(v, hugepage_bytes=2 * GIB), "2.0 GiB"),
    "host.killers": (lambda v: b_host(v, killers=("earlyoom",)), "earlyoom runs"),
    "host.pages": (lambda v: b_facts(v, page_bytes=65536), "64 KiB"),
    "host.gpu": (lambda v: b_host(b_facts(v, gpus=()), gpus=()), "no NVIDIA GPU"),
    "host.gpu-users": (
        lambda v: b_host(v, gpu_users=(GpuUser(9, "python"),)),
        "python (pid 9)",
    ),
    "host.driver": (lambda v: b_host(v, driver="590.1"), "driver 590.1"),
    "host.clocks": (
        lambda v: b_host(v, gpus=(replace(v[1].host.gpus[0], clock_max_mhz=2100),)),
        "2100 MHz",
    ),
    "host.power": (
        lambda v: b_host(
            v,
            gpus=(
                replace(v[1].host.gpus[0], clock_mhz=805, power_w=19, busy_percent=96),
            ),
        ),
        "96 % busy at 805 MHz and 19 W",
    ),
    "host.clock": (
        lambda v: [v[0], replace(v[1], skew_s=(89.8, 90.3))],
        "90 s ahead of",
    ),
    "host.tools": (lambda v: b_host(v, tools={}), "no nix (login shell /bin/bash"),
    "engine.same": (
        lambda v: b_facts(v, engine={"version vllm": "0.31.0"}),
        "vllm=0.31.0",
    ),
    "weights.same": (
        lambda v: b_host(v, store=("views/x", *v[1].host.store)),
        "store has views/x",
    ),
    "weights.view": (
        lambda v: [replace(one, host=replace(one.host, store=())) for one in v],
        "no view of brandonmusic--GLM-5.3-Flash-EXL3-4bpw--4739eb1bcfd4",
    ),
    "engine.closure": (
        lambda v: [
            replace(v[0], store=StoreFacts("k:1", "/n/nix", has_closure=True)),
            replace(
                v[1], store=StoreFacts("k:1", "/n/nix", "2", "me", trusts_user=False)
            ),
        ],
        "takes unsigned paths from trusted users only; me is none",
    ),
    "engine.image": (
        lambda v: [v[0], replace(v[1], image=ImageFacts("/bin/docker", why="denied"))],
        "denied",
    ),
    "engine.cdi": (
        lambda v: [v[0], replace(v[1], image=ImageFacts("/bin/podman", "sha256:0"))],
        "no CDI specification",
    ),
}
# Faults that bring another finding with them, which says what follows.
FOLLOWING = {
    "fabric.link": {"fabric.rdma"},
    "host.gpu": {"host.clocks"},
    "fabric.rails": set(),
}
# Tested below, with kits or faults of their own.
ELSEWHERE = {"node.reach", "fabric.address", "fabric.forward"}


def checks_of(kit: Kit, views: Views) -> set[str]:
    return {one.check for one in check_nodes(kit, views)}


@pytest.mark.cases(32)
def test_two_healthy_sparks_have_no_finding(views: Views) -> None:
    assert check_nodes(make_kit(), views) == []


@pytest.mark.cases(
    *(11, 16, 18, 20, 21, 22, 29, 31, 34, 35),
    *(85, 87, 88, 125, 139),
)
@pytest.mark.parametrize("check", FAULTS)
def test_each_fault_fires_its_check_on_its_node(check: str, views: Views) -> None:
    fault, words = FAULTS[check]
    findings = check_nodes(make_kit(), fault(views))
    mine = [one for one in findings if one.check == check]
    assert {one.check for one in findings} - {check} <= FOLLOWING.get(check, set())
    assert any(words in one.seen and one.node == "b" for one in mine), findings
    assert all(one.remedy and one.needed for one in mine)


def test_every_check_has_a_fault() -> None:
    # The views are a check of preflight, which GPU kits' nodes go through here.
    assert set(FAULTS) | ELSEWHERE == set(CHECKS) | {"weights.view"}


@pytest.mark.cases(1, 2)
def test_the_fabric_address_must_be_on_the_named_device(views: Views) -> None:
    moved = [views[0], replace(views[1], address="10.66.1.9")]
    (one, *_) = check_nodes(make_kit(), moved)
    assert one.check == "fabric.address" and "no device has 10.66.1.9" in one.seen
    nodes = [one.model_dump() for one in make_kit().nodes]
    nodes[1]["netdev"] = "enp1s0f1np1"
    (one,) = check_nodes(make_kit(nodes=nodes), views)
    assert "is on enp1s0f0np0, kit.toml names enp1s0f1np1" in one.seen
    nodes[1]["netdev"] = "enp1s0f0np0"
    assert check_nodes(make_kit(nodes=nodes), views) == []


@pytest.mark.cases(18)
def test_different_mtus_of_the_ends_are_found_without_a_packet(views: Views) -> None:
    findings = check_nodes(make_kit(), b_port(views, 0, mtu=1500))
    (one,) = (one for one in findings if one.check == "fabric.mtu")
    assert one.seen == "MTUs differ (a 9000, b 1500)"
    assert "ip link set enp1s0f0np0 mtu 9000" in one.remedy


@pytest.mark.cases(85)
def test_too_little_memory_names_shortfall_and_largest_context(views: Views) -> None:
    short = b_memory(views, MemAvailable=106 * GIB)
    kit = make_kit(serve={"max_model_len": 1048576})
    found = [one for one in check_nodes(kit, short) if one.check == "host.memory"]
    one = next(one for one in found if one.node == "b")
    assert "GiB for a context of 1048576 tokens" in one.needed
    fits = int(one.needed.rpartition(" is ")[2].removesuffix(" tokens"))
    assert fits > 100_000 and f"--set serve.max_model_len={fits}" in one.remedy
    smaller = make_kit(serve={"max_model_len": fits})
    assert check_nodes(smaller, short) == []


def test_a_pool_that_the_kit_asks_for_must_be_there(views: Views) -> None:
    kit = make_kit(serve={"kv_cache_bytes": 60 * GIB})
    found = [one for one in check_nodes(kit, views) if one.check == "host.memory"]
    assert [one.node for one in found] == ["a", "b"]
    assert "lower serve.kv_cache_bytes" in found[0].remedy


def test_the_drafter_has_a_view_too(views: Views) -> None:
    kit = make_kit(weights={"drafter": "dflash2"})
    found = [one for one in check_nodes(kit, views) if one.check == "weights.view"]
    assert [one.node for one in found] == ["a", "b"]
    assert "GLM-5.3-Flash-DFlash2" in found[0].seen
    assert "weights fetch" in found[0].remedy and "share --to b" in found[1].remedy
    slug = "incoai--GLM-5.3-Flash-DFlash2--7d74cdd8"
    held = found[0].seen.removeprefix("the store has no view of ")
    assert held.startswith(slug)
    full = [
        replace(v, host=replace(v.host, store=(*v.host.store, f"views/{held}")))
        for v in views
    ]
    assert check_nodes(kit, full) == []


@pytest.mark.cases(27)
def test_nodes_of_a_ring_must_forward(tmp_path: Path) -> None:
    cables = {"a": (1, 4), "b": (2, 1), "c": (3, 2), "d": (4, 3)}
    nodes, views = [], []
    for rank, (name, (left, right)) in enumerate(cables.items()):
        # Cable k joins two nodes in 10.66.(10+k).0/24.
        ports = card(0, f"10.66.{10 + left}.1") + card(1, f"10.66.{10 + right}.2")
        spark = Spark(tmp_path / name, ports, lan=f"192.168.9.{rank + 1}")
        address = f"192.168.9.{rank + 1}"
        view = spark_view(name, rank, spark.write().facts(), address)
        views.append(replace(view, paths=()))
        nodes.append({"name": name, "ssh": name, "fabric": address})
    kit = make_kit(topology="tp4-ring", nodes=nodes)
    advice = {"fabric.rails"}  # the twins have no addresses here
    assert checks_of(kit, views) == advice
    rails, _, _ = fabric_rails(kit, views)
    assert {len(found) for found in rails.values()} == {2}
    views[2] = replace(views[2], host=replace(views[2].host, ip_forward=False))
    assert checks_of(kit, views) == advice | {"fabric.forward"}


@pytest.mark.cases(15)
def test_a_kit_on_one_machine_and_a_cpu_kit_are_asked_for_no_rdma(views: Views) -> None:
    loopback = load_settings(environ={"HOME": "/x"}).kit
    assert question(loopback, loopback.nodes[0], [])["peers"] == []
    bare = [replace(view, fabric=replace(view.fabric, rdma=())) for view in views]
    cpu = make_kit(engine="vllm-cpu", runtime="venv")
    assert check_nodes(cpu, bare) == []
    assert checks_of(make_kit(), bare) == {"fabric.rdma"}


@pytest.mark.cases(127)
def test_cannot_look_at_containers_is_not_no_containers(views: Views) -> None:
    tools = {"docker": "/usr/bin/docker"}
    denied = b_host(views, tools=tools, unread=("containers: Permission denied",))
    found = check_nodes(make_kit(runtime="oci"), denied)
    assert {one.check for one in found} == {"host.tools", "node.read"}
    assert check_nodes(make_kit(runtime="oci"), b_host(views, tools=tools)) == []


@pytest.mark.cases(43, 93)
def test_a_node_that_cannot_be_asked_is_a_finding_and_the_other_is_checked(
    views: Views,
) -> None:
    error = RemoteError("no key", kind="denied", hint="ssh-copy-id b", node="b")

    def ask(node: Any, arguments: Any) -> Any:
        raise error if node.name == "b" else RemoteError("x", kind="other", node="a")

    seen = examine(make_kit(), ask, [])
    assert [one.check for one in seen.errors] == ["node.reach", "node.reach"]
    (one,) = unreachable([error])
    assert (one.node, one.seen, one.remedy) == ("b", "no key", "ssh-copy-id b")


def test_warnings_do_not_keep_a_start_from_happening_and_waivers_are_known() -> None:
    check_waivers(["fabric.mtu", "port.api"])
    warning = Finding("host.kernel", "b", "x", "y", "z", "warning")
    assert report([warning], []) == []
    assert report([warning], ["host.kernel"]) == [warning]


def test_init_writes_a_kit_that_is_valid_and_names_what_it_saw(
    views: Views, tmp_path: Path
) -> None:
    text = render(propose(views, {"a": "local", "b": "me@b"}), "spark", "mtp")
    file = tmp_path / "kit.toml"
    file.write_text(text)
    kit = load_settings(str(file), environ={"HOME": "/x"}).kit
    assert (kit.topology, kit.runtime, kit.engine) == ("tp2", "nix", "vllm-gb10")
    assert [node.fabric for node in kit.nodes] == ["10.66.1.1", "10.66.1.2"]
    assert [node.ssh for node in kit.nodes] == ["local", "me@b"]
    assert kit.weights.drafter == "mtp"
    assert "# cabling: two rails (tp2)" in text and "enp1s0f0np0" in text
    asked = render(propose(views, {"a": "local", "b": "b"}), "s", "mtp", {}, "oci")
    assert 'runtime = "oci"' in asked


def test_init_gives_the_commands_for_ports_without_addresses(views: Views) -> None:
    bare = []
    for view in views:
        devices = tuple(
            replace(one, addresses=()) if one.driver else one
            for one in view.fabric.netdevs
        )
        bare.append(replace(view, fabric=replace(view.fabric, netdevs=devices)))
    with pytest.raises(Exception, match="no cabled ports in one subnet") as caught:
        require_cabling(propose(bare, {"a": "local", "b": "b"}))
    text = str(caught.value)
    for words in (
        "[a] netplan: sudo netplan set ethernets.enp1s0f0np0.addresses=[10.66.1.1/24]",
        "[b] netplan: sudo netplan set ethernets.enP2p1s0f0np0.addresses=[10.66.2.2/24",
        "[b] NetworkManager: sudo nmcli",
        'address = "10.66.2.2"',
    ):
        assert words in text
