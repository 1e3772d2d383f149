"""The engine's closure on its way to another host's store, and ranks that run it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.hosts import Account, Lab
from tests.cluster.kits import wait_for
from tests.cluster.nixhosts import NixHosts, mount_point, nix_spread
from tests.cluster.spread import Spread
from tests.cluster.users import User
from tests.conftest import REPOSITORY
from tests.nix.check import (
    default_cache,
    find_pythons,
    python_folders,
    snapshot,
    workshop,
)
from tests.nix.get_nix import NixUnavailableError

pytestmark = [pytest.mark.netns, pytest.mark.timeout(300)]


@pytest.fixture
def kit(open_folder: Path, spread: Callable[..., Spread]) -> Iterator[Spread]:
    with nix_spread(open_folder, spread) as made:
        yield made


def closure_of(kit: Spread, host: str) -> set[str]:
    done = kit.on(host, "nix-store", "--query", "--requisites", kit.closure)
    return set(done.out.split()) if done.code == 0 else set()


@pytest.mark.cases(47, 129)
def test_start_brings_the_closure_once_and_both_ranks_run_it(kit: Spread) -> None:
    assert closure_of(kit, "spark-2") == set()
    done = kit.run("start", "--json")
    assert done.code == 0, done.err
    # Over the cable, since sshd answers there, too.
    assert "spark-2: engine brought over 10.66.1.2 (trusted), 3 MB" in done.err
    assert closure_of(kit, "spark-2") == closure_of(kit, "spark-1") != set()
    for host, rank in ((kit.head, 0), (kit.worker, 1)):
        pids = kit.ranks(host)[rank]
        words = [Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in pids]
        assert f"{kit.closure}/stub.py".encode() in words[0], words
    # A collection of garbage there leaves it alone.
    assert kit.on("spark-2", "nix-store", "--gc").code == 0
    assert closure_of(kit, "spark-2") == closure_of(kit, "spark-1")
    assert kit.run("stop").code == 0
    done = kit.run("start")
    assert done.code == 0 and "spark-2: has the engine, nothing sent" in done.err
    kit.run("stop")
    kit.assert_nothing_left()


@pytest.fixture
def untrusted(kit: Spread, open_folder: Path) -> Iterator[Spread]:
    """The kit with a user on spark-2 whom its Nix daemon does not trust."""
    name = f"gha{secrets.token_hex(3)}"
    user = Account(name, "/bin/sh", open_folder / name).create()
    # As systemd sets it: a user may ping.
    kit.worker.run("sysctl", "-qw", "net.ipv4.ping_group_range=0 2147483647")
    config = kit.lab.client.config
    text = config.read_text()
    config.write_text(f"{text}Host admin-2\n{text.partition('Host spark-2')[2]}")
    text = config.read_text()
    first, second = text.split("Host spark-2\n")
    second = second.replace("User root", f"User {name}", 1)
    config.write_text(f"{first}Host spark-2\n{second}")
    # Each user's own home, as on two machines.
    home = Path(os.environ["HOME"])
    shutil.copytree(kit.root / "state", home / "state")
    kit.write(paths__state='"~/state"', paths__cache='"~/cache"')
    kit.user_home = user.home
    yield kit
    user.delete()


@contextmanager
def daemon(kit: Spread) -> Iterator[None]:
    """The Nix daemon of spark-2, while the block runs."""
    nix = str(kit.nix.program.parent / "nix-daemon")
    argv = kit.shell("admin-2", nix)
    client = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    socket = kit.nix.folder("spark-2") / "nix/var/nix/daemon-socket/socket"
    wait_for(socket.exists)
    try:
        yield
    finally:
        client.kill()
        client.wait()
        socket.unlink()
        kit.on("admin-2", "pkill", "-x", "nix-daemon")


@pytest.mark.cases(39, 71, 129)
def test_a_store_that_trusts_neither_user_nor_key_says_what_to_add(
    untrusted: Spread,
) -> None:
    kit = untrusted
    done = kit.run("start")
    assert done.code == 4 and "no Nix daemon runs there" in done.err, done.err
    with daemon(kit):
        add_the_key_that_it_asks_for(kit)
        # The daemon reads its settings when it starts: the remedy says so.
        done = kit.run("start")
        assert done.code == 5, done.err
        assert "lacks a signature by a trusted key" in done.err
        assert "sudo systemctl restart nix-daemon" in done.err
    with daemon(kit):
        ranks_run_from_the_signed_closure(kit)


def add_the_key_that_it_asks_for(kit: Spread) -> None:
    done = kit.run("start")
    assert done.code == 4, done.err
    assert "takes unsigned paths from trusted users only" in done.err, done.err
    doctor = json.loads(kit.run("doctor", "--json").out)
    (found,) = [one for one in doctor["findings"] if one["check"] == "engine.closure"]
    line = found["needed"].removeprefix("in /etc/nix/nix.conf there: ")
    assert closure_of(kit, "spark-2") == set()  # nothing was sent in vain
    conf = kit.nix.conf("spark-2")
    conf.write_text(conf.read_text() + line + "\n")


def ranks_run_from_the_signed_closure(kit: Spread) -> None:
    done = kit.run("start")
    assert done.code == 0, done.err
    assert "(signed)" in done.err
    assert closure_of(kit, "spark-2") == closure_of(kit, "spark-1")
    # What a rank compiles goes to its own node's home, not to the head's.
    environ = Path(f"/proc/{min(kit.ranks(kit.worker)[1])}/environ").read_bytes()
    assert f"VLLM_CACHE_ROOT={kit.user_home}/cache/".encode() in environ
    assert kit.run("stop").code == 0
    kit.assert_nothing_left()


@pytest.mark.full
@pytest.mark.engine
@pytest.mark.timeout(3600)
def test_two_bare_hosts_with_a_store_each_end_in_two_real_ranks(
    open_folder: Path, lab: Callable[..., Lab]
) -> None:
    """init and start: the real CPU engine, from one store into the other, serves."""
    if "3.11" not in find_pythons(python_folders()):
        pytest.skip("the loopback engine's lock is for Python 3.11, which is missing")
    try:
        with workshop(default_cache()) as shop, mount_point():
            hosts = NixHosts(open_folder, shop.nix)
            made = lab("spark-1", "spark-2", prepare=hosts.prepare)
            made.cable("spark-1", "c0", "10.66.1.1/24", "spark-2", "c7", "10.66.1.2/24")
            flake = snapshot(REPOSITORY, open_folder / "flake")
            kit = f"{flake}#legacyPackages.x86_64-linux.full-checks.loopback-kit"
            (path,) = shop.build(kit)
            root = f"local?root={hosts.folder('spark-1')}"
            shop.result("copy", "--no-check-sigs", "--to", root, str(path))
            hosts.adopt_lab(made)
            serves_for_a_user(made, hosts, shop.file(path / "bin/vllm").readlink())
    except NixUnavailableError as error:
        pytest.skip(f"Nix cannot be had here: {error}")


def serves_for_a_user(made: Lab, hosts: NixHosts, program: Path) -> None:
    user = User(made, {**hosts.env("spark-1"), "GLMSPARK_PATHS_ENGINE": str(program)})
    done = user.init("--runtime", "nix")
    assert done.code == 0, done.err
    kit = ("--kit", str(user.kit), "--set", "serve.max_model_len=2048")
    done = user.run("start", "--json", *kit, limit_s=900)
    assert done.code == 0, done.err
    # `start` has had a real completion, which needs both ranks for every token.
    assert json.loads(done.out)["result"] == "live"
    assert set(user.serving_ranks()) == {"spark-1", "spark-2"}
    assert user.run("stop", *kit).code == 0
    assert user.serving_ranks() == {}
