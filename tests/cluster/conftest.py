"""Fixtures: stub kits, and the real cluster that a file's tests share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from glmspark.boot import scratch_folder
from glmspark.hostkeys import ask_key, keep
from glmspark.remote import Remote

from tests.cluster.hosts import Client, Lab, Sshd, need_namespaces, need_sshd
from tests.cluster.kits import TestKit
from tests.cluster.spread import Spread
from tests.conftest import take_port


@pytest.fixture
def stub_kit(tmp_path: Path) -> Iterator[Callable[..., TestKit]]:
    """Makes a stub kit: settings as TOML by key, scripts by rank."""
    made: list[TestKit] = []

    def make(settings: dict[str, str] | None = None, **scripts: Any) -> TestKit:
        by_rank = {name.removeprefix("rank"): value for name, value in scripts.items()}
        root = tmp_path / f"kit{len(made)}"
        made.append(TestKit(root, settings=settings or {}, scripts=by_rank))
        return made[-1]

    yield make
    for kit in made:
        kit.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other accounts may enter; pytest's own are closed to them."""
    with tempfile.TemporaryDirectory(prefix="gha-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def spread(open_folder: Path) -> Iterator[Callable[..., Spread]]:
    need_namespaces()
    labs: list[Lab] = []

    def make(
        engine: str = "stub",
        prepare: Callable[[str], str] = lambda _name: "",
        **settings: str,
    ) -> Spread:
        folder = open_folder / "lab"
        folder.mkdir()
        lab = Lab(folder, Client(folder / "client"), prepare=prepare)
        labs.append(lab)
        lab.open(["spark-1", "spark-2"])
        return Spread(
            lab, engine, {k.replace("__", "."): v for k, v in settings.items()}
        )

    yield make
    for lab in labs:
        lab.close()
        for boot in lab.folder.glob("state/*/boots/*"):  # of hosts that never came back
            for left in scratch_folder(boot.name).parent.glob(f"*{boot.name}*"):
                shutil.rmtree(left, ignore_errors=True)


@pytest.fixture
def pair_kit(
    tmp_path: Path, stub_kit: Callable[..., TestKit]
) -> Iterator[Callable[..., TestKit]]:
    """Makes a stub kit whose rank 1 is reached by an sshd of this machine."""
    need_sshd()
    client = Client(tmp_path / "client")
    servers: list[Sshd] = []

    def make(
        settings: dict[str, str] | None = None, env: str = "", **scripts: Any
    ) -> TestKit:
        sshd = Sshd(tmp_path / "sshd", client.key, take_port())
        sshd.options = (f"SetEnv {env}",) if env else ()
        servers.append(sshd.start())
        client.alias("worker", "127.0.0.1", sshd.port)
        kit = stub_kit({}, **scripts)
        kit.worker = "worker"
        kit.settings = {"paths.ssh_config": f'"{client.config}"', **(settings or {})}
        kit.write()
        known = kit.root / "state" / "known_hosts"
        remote = Remote("worker", "worker", known, client.config)
        keep(remote, ask_key(remote))
        return kit

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def lab(open_folder: Path) -> Iterator[Callable[..., Lab]]:
    """Makes a lab of the given hosts, each reachable over a management network."""
    need_namespaces()
    made: list[Lab] = []

    def make(*names: str, prepare: Callable[[str], str] = lambda _: "") -> Lab:
        folder = open_folder / "lab"
        folder.mkdir()
        made.append(Lab(folder, Client(folder / "client"), prepare=prepare))
        return made[-1].open(names)

    yield make
    for one in made:
        one.close()


@pytest.fixture
def two_hosts(lab: Callable[..., Lab]) -> Lab:
    """Two hosts with one cable between them."""
    made = lab("n1", "n2")
    made.cable("n1", "c0", "10.66.1.1/24", "n2", "c7", "10.66.1.2/24")
    return made


@pytest.fixture
def three_hosts_ring(lab: Callable[..., Lab]) -> Lab:
    """Three hosts, each with a cable to both others, one subnet a cable."""
    made = lab("n1", "n2", "n3")
    for number, (a, b) in enumerate((("n1", "n2"), ("n2", "n3"), ("n3", "n1"))):
        near, far = f"10.66.{20 + number}.1/24", f"10.66.{20 + number}.2/24"
        made.cable(a, f"p{number}a", near, b, f"p{number}b", far)
    return made


@pytest.fixture
def four_hosts_switch(lab: Callable[..., Lab]) -> Lab:
    """Four hosts with a port each on one switch."""
    made = lab("n1", "n2", "n3", "n4")
    made.switch("p0", "10.66.30")
    return made
