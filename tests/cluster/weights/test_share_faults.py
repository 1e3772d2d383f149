"""Share between two hosts, and what keeps it from working: said, with its node."""

from __future__ import annotations

import shlex
import subprocess
import time

import pytest
from glmspark.weights import verify, view

from tests.cluster.weights.cluster import (
    FILES,
    PYTHON,
    PYTHON_PATH,
    Cluster,
)
from tests.cluster.weights.hosts import (
    HEAD,
    RAILS,
    inside,
)
from tests.unit.weights.fakehub import sha256

pytestmark = pytest.mark.netns


def test_a_full_disk_on_the_node_is_said_with_its_name(cluster: Cluster) -> None:
    mount = cluster.tmp / "node"
    mount.mkdir()
    # On the node: its sshd has a mount namespace of its own.
    on_node = inside(HEAD, [*cluster.pair.ssh, f"root@{RAILS[0][1]}"])
    argv = [*on_node, f"mount -t tmpfs -o size=65m none {mount}"]
    subprocess.run(argv, check=True)
    try:
        code, _, err = cluster.share()
        assert code == 4
        assert "error: [spark-2] receiving the weights needs 4.00 MiB more" in err
    finally:
        subprocess.run([*on_node, f"umount {mount}"], check=True)


@pytest.mark.cases(41)
def test_a_talkative_login_and_another_locale_change_nothing(
    cluster: Cluster,
) -> None:
    noisy = cluster.tmp / "noisy"
    noisy.write_text(
        '#!/bin/sh\necho \'Welcome! {"glmspark": 3} {}\'\necho "[1]"\nexec env '
        f'LC_ALL=C PYTHONPATH={PYTHON_PATH} {PYTHON} -m glmspark "$@"\n'
    )
    noisy.chmod(0o755)
    cluster.remote = ("--remote-program", str(noisy))
    assert cluster.ok()["received"] == len(FILES)


@pytest.mark.cases(43)
def test_an_unknown_host_key_is_refused_not_asked_about(cluster: Cluster) -> None:
    strange = cluster.tmp / "known_hosts"
    strange.write_text("")
    ssh = f"{shlex.join(cluster.pair.ssh)} -oUserKnownHostsFile={strange}"
    code, _, err = cluster.share(ssh=ssh)
    assert code == 4
    assert "host key is unknown or changed" in err
    assert strange.read_text() == ""


def test_a_denied_login_is_told_apart(cluster: Cluster) -> None:
    config = cluster.pair.config.read_text().replace("user_key", "stranger_key")
    path = cluster.tmp / "ssh_config"
    path.write_text(config)
    ssh = f"ssh -F {path}"
    code, _, err = cluster.share(ssh=ssh)
    assert code == 4
    assert "ssh login was denied" in err


@pytest.mark.cases(45)
def test_a_program_that_is_not_on_the_path_is_said_so(cluster: Cluster) -> None:
    cluster.remote = ("--remote-program", "glmspark-is-not-here")
    code, _, err = cluster.share()
    assert code == 4
    assert "glmspark-is-not-here is not on the PATH" in err
    assert "--remote-program" in err


@pytest.mark.cases(47)
def test_an_address_without_route_is_found_before_anything_starts(
    cluster: Cluster,
) -> None:
    words = cluster.argv()
    at = next(i for i, w in enumerate(words) if w.startswith("spark-2="))
    words[at] = f"spark-2=root@{RAILS[0][1]},10.99.0.2"
    done = subprocess.run(
        words, env=cluster.env(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert "no route to the fabric address 10.99.0.2" in done.stderr
    assert not cluster.node_root.exists()


def test_an_incomplete_head_shares_nothing(cluster: Cluster) -> None:
    cluster.head.blob_path(sha256(FILES["config.json"])).unlink()
    code, _, err = cluster.share()
    assert code == 7
    assert "the head itself lacks 1 files" in err
    assert not cluster.node_root.exists()


def test_one_unreachable_node_does_not_keep_the_others_waiting(
    cluster: Cluster,
) -> None:
    more = ("--to", f"spark-3=root@10.88.1.77,{RAILS[0][1]}")
    started = time.monotonic()
    code, data, err = cluster.share(*more)
    assert code == 4
    assert [row["ok"] for row in data["nodes"]] == [True, False]
    assert "[spark-3]" in err
    assert time.monotonic() - started < 40
    assert verify.verify(cluster.node, deep=True).is_ok


def test_the_real_path_of_a_view_survives_for_the_rank(cluster: Cluster) -> None:
    result = cluster.ok()
    node = cluster.node
    again = view.link(node, cluster.manifest)
    assert str(again.folder) == result["views"][0]
    assert not again.is_new
