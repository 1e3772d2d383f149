"""Fixtures: the two hosts, slow cables between them, a head with weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.weights import hosts
from tests.cluster.weights.cluster import (
    FILES,
    Cluster,
)
from tests.cluster.weights.hosts import (
    Hosts,
    slow_cables,
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    if reason := hosts.why_not():
        pytest.skip(reason)
    with hosts.two_hosts(tmp_path_factory.mktemp("hosts")) as made:
        yield made


@pytest.fixture
def slow() -> Iterator[None]:
    with slow_cables(megabits=80):
        yield


@pytest.fixture
def cluster(pair: Hosts, tmp_path: Path) -> Cluster:
    return Cluster(pair, tmp_path, FILES)
