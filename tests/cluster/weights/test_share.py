"""Share between two hosts: namespaces, two cables, real ssh, the real programs."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from glmspark.weights import importer, pin, verify, view
from glmspark.weights.manifest import Manifest
from glmspark.weights.store import Store

from tests.cluster.weights import hosts
from tests.cluster.weights.hosts import (
    HEAD,
    NODE,
    RAILS,
    Hosts,
    inside,
    slow_cables,
)
from tests.unit.weights.conftest import (
    ROOT,
    blob,
    contents,
    manifest_of,
    wait_for,
    write_tree,
)
from tests.unit.weights.fakehub import sha256

# For a shell: the checkout may lie at a path with blanks.
PYTHON_PATH, PYTHON = shlex.quote(str(ROOT / "python")), shlex.quote(sys.executable)

pytestmark = pytest.mark.netns

MIB = 1 << 20
FILES = {f"shard-{i}.safetensors": blob(i, MIB + i) for i in range(4)}
FILES |= {"config.json": b"{}", "sub/tokenizer.json": blob(9, 5000)}


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


class Cluster:
    """A head with a filled store, and a node with none."""

    def __init__(self, pair: Hosts, tmp: Path, files: dict[str, bytes]) -> None:
        self.pair = pair
        self.tmp = tmp
        self.files = files
        self.head = Store.open(tmp / "head", create=True)
        self.node_root = tmp / "node" / "store"
        self.manifest: Manifest = manifest_of(files)
        source = write_tree(tmp / "source", files)
        importer.import_from(self.head, source, [self.manifest], chosen=True)
        program = f"env PYTHONPATH={PYTHON_PATH} {PYTHON} -m glmspark"
        self.remote = ("--remote-program", program)

    @property
    def node(self) -> Store:
        return Store.open(self.node_root)

    def argv(self, *more: str, rails: int = 1, ssh: str = "") -> list[str]:
        addresses = ",".join(node for _, node in RAILS[:rails])
        words = [sys.executable, "-m", "glmspark", "weights", "share"]
        words += ["--to", f"spark-2=root@{RAILS[0][1]},{addresses}", "--json"]
        words += ["--ssh", ssh or shlex.join(self.pair.ssh), *self.remote]
        words += ["--store", str(self.head.root)]
        words += ["--remote-store", str(self.node_root), *more]
        return inside(HEAD, words)

    def env(self) -> dict[str, str]:
        keep = {k: os.environ[k] for k in ("PATH", "LANG") if k in os.environ}
        return keep | {"PYTHONPATH": str(ROOT / "python"), "HOME": str(self.tmp)}

    def share(self, *more: str, **how: Any) -> tuple[int, Any, str]:
        done = subprocess.run(
            self.argv(*more, **how),
            env=self.env(),
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        return done.returncode, json.loads(done.stdout or "null"), done.stderr

    def ok(self, *more: str, **how: Any) -> Any:
        code, data, err = self.share(*more, **how)
        assert code == 0, err
        return data["nodes"][0]

    def start(self, *more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv(*more),
            env=self.env(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def cluster(pair: Hosts, tmp_path: Path) -> Cluster:
    return Cluster(pair, tmp_path, FILES)


def processes(word: str) -> list[int]:
    """The ids of processes whose command line has ``word``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def listeners(namespace: str) -> set[str]:
    done = subprocess.run(
        inside(namespace, ["ss", "-Hltn"]), capture_output=True, text=True, check=True
    )
    return {line.split()[3] for line in done.stdout.splitlines()}


@pytest.mark.cases(53)
def test_the_node_gets_every_byte_and_the_view(cluster: Cluster) -> None:
    result = cluster.ok()
    assert result["received"] == len(FILES)
    assert result["received_bytes"] == sum(len(d) for d in FILES.values())
    assert contents(Path(result["views"][0])) == FILES
    assert verify.verify(cluster.node, deep=True).is_ok


@pytest.mark.cases(70)
def test_a_second_share_sends_nothing(cluster: Cluster) -> None:
    cluster.ok()
    result = cluster.ok()
    assert (result["received"], result["received_bytes"]) == (0, 0)
    assert result["already"] == len(FILES)


def test_what_the_node_has_under_another_name_is_not_sent(cluster: Cluster) -> None:
    node = Store.open(cluster.node_root, create=True)
    other = {"renamed.bin": FILES["shard-0.safetensors"]}
    source = write_tree(cluster.tmp / "other", other)
    importer.import_from(node, source, [manifest_of(other, "kit/mirror")], chosen=True)
    result = cluster.ok()
    assert result["received"] == len(FILES) - 1
    assert result["received_bytes"] == sum(
        len(d) for p, d in FILES.items() if p != "shard-0.safetensors"
    )


@pytest.mark.cases(67)
def test_both_rails_carry(cluster: Cluster) -> None:
    result = cluster.ok("--connections", "1", rails=2)
    assert set(result["by_rail"]) == {node for _, node in RAILS}
    assert all(count > 0 for count in result["by_rail"].values())


@pytest.mark.cases(72)
def test_a_dead_rail_leaves_its_files_to_the_other(cluster: Cluster) -> None:
    down = ["ip", "-n", NODE, "route", "del", "10.88.2.0/24", "dev", "rail1"]
    subprocess.run(down, check=True)
    try:
        code, data, err = cluster.share("--connections", "1", rails=2)
    finally:
        back = "route add 10.88.2.0/24 dev rail1 src 10.88.2.2"
        subprocess.run(["ip", "-n", NODE, *back.split()], check=True)
    assert code == 0, err
    assert "is given up" in err
    assert data["nodes"][0]["by_rail"] == {
        RAILS[0][1]: sum(len(d) for d in FILES.values())
    }


@pytest.mark.cases(62)
def test_small_files_by_git_id_and_pins_travel_too(cluster: Cluster) -> None:
    template = cluster.tmp / "chat_template.jinja"
    template.write_bytes(b"{{ m }}" * 7000)
    pin.pin(cluster.head, cluster.manifest, template.name, template)
    result = cluster.ok()
    view_of_node = contents(Path(result["views"][0]))
    assert view_of_node[template.name] == template.read_bytes()


def test_bytes_that_rot_on_the_head_never_get_a_name_on_the_node(
    cluster: Cluster,
) -> None:
    name = sha256(FILES["shard-1.safetensors"])
    path = cluster.head.blob_path(name)
    stat = path.stat()
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    code, data_out, err = cluster.share()
    assert code == 7
    assert "gave wrong bytes for shard-1.safetensors" in err
    assert "verify --deep" in err
    assert not data_out["nodes"][0]["ok"]
    assert name not in cluster.node.blobs()


def test_the_secret_stands_in_no_command_line_and_no_file(
    pair: Hosts, slow: None, tmp_path: Path
) -> None:
    files = {f"s{i}": blob(i, 4 * MIB) for i in range(3)}
    cluster = Cluster(pair, tmp_path, files)
    process = cluster.start("--connections", "1")
    wait_for(lambda: bool(processes("weights\0pull")), "the pull runs")
    lines = [
        Path(f"/proc/{pid}/cmdline").read_bytes().decode()
        for pid in processes("glmspark")
    ]
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert any("pull" in line for line in lines)
    assert "Bearer" not in "".join(lines)
    assert "token" not in "".join(lines)
    words = {w for line in lines for w in line.replace("\0", " ").split()}
    assert not [w for w in words if len(w) == 43]  # token_urlsafe(32)
    for root in (cluster.head.root, cluster.node_root):
        for path in root.rglob("*.json*"):
            assert b"token" not in path.read_bytes()
    assert "token" not in out + err


def test_the_server_listens_on_the_fabric_alone_and_ends_with_the_command(
    pair: Hosts, slow: None, tmp_path: Path
) -> None:
    files = {f"s{i}": blob(i, 4 * MIB) for i in range(4)}
    cluster = Cluster(pair, tmp_path, files)
    before = listeners(HEAD)
    process = cluster.start()
    seen: set[str] = set()

    def listens() -> bool:
        seen.update(listeners(HEAD) - before)
        return bool(seen) or process.poll() is not None

    wait_for(listens, "the server listens")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert seen and all(a.startswith(f"{RAILS[0][0]}:") for a in seen)
    assert listeners(HEAD) == before
    assert not processes("weights\0pull")


def test_without_the_token_nothing_is_served(pair: Hosts, tmp_path: Path) -> None:
    from glmspark.weights.blobserver import Grants, serving

    store = Store.open(tmp_path / "store", create=True)
    files = {"a": b"a" * 2000, "b": b"b" * 2000}
    importer.import_from(
        store, write_tree(tmp_path / "s", files), [manifest_of(files)], chosen=True
    )
    grants = Grants()
    a, b = sha256(files["a"]), sha256(files["b"])
    grants.give("right", frozenset({a}))

    def ask(port: int, path: str, token: str) -> int:
        with socket.create_connection(("127.0.0.1", port)) as sock:
            head = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            sock.sendall(f"{head}Authorization: Bearer {token}\r\n\r\n".encode())
            return int(sock.makefile("rb").readline().split()[1])

    with serving(store, grants, ["127.0.0.1"]) as ports:
        port = ports["127.0.0.1"]
        assert ask(port, f"/blob/{a}", "right") == 200
        assert ask(port, f"/blob/{a}", "wrong") == 401
        assert ask(port, f"/blob/{a}", "") == 401
        assert ask(port, f"/blob/{b}", "right") == 404  # there, but not granted
        assert ask(port, "/blob/../journal.jsonl", "right") in (400, 404)
        grants.take_back("right")
        assert ask(port, f"/blob/{a}", "right") == 401


@pytest.mark.parametrize("victim", ["head", "node"])
@pytest.mark.cases(67)
def test_kill_9_of_either_side_is_resumed(
    pair: Hosts, slow: None, tmp_path: Path, victim: str
) -> None:
    files = {f"s{i}": blob(i, 8 * MIB) for i in range(3)}
    cluster = Cluster(pair, tmp_path, files)
    process = cluster.start("--connections", "1")
    partial = cluster.node_root / "partial"

    def under_way() -> bool:
        try:
            return any(p.stat().st_size > 2 * MIB for p in partial.iterdir())
        except FileNotFoundError:
            return False

    wait_for(under_way, "bytes arrive")
    if victim == "head":
        process.kill()
    else:
        # The python, not the ssh client or shell that carry its words.
        for pid in processes("weights\0pull\0--store"):
            os.kill(pid, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    if victim == "node":
        assert "weights pull on" in err
    wait_for(lambda: not processes("weights\0pull"), "no pull is left behind")
    kept = sum(p.stat().st_size for p in partial.iterdir())
    have = set(cluster.node.blobs())
    assert have < {sha256(d) for d in files.values()}
    result = cluster.ok()
    assert result["resumed_bytes"] == kept
    assert contents(Path(result["views"][0])) == files


def test_two_shares_at_once_send_each_blob_once(cluster: Cluster) -> None:
    both = [cluster.start() for _ in range(2)]
    received = 0
    for process in both:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        received += json.loads(out)["nodes"][0]["received_bytes"]
    assert received == sum(len(d) for d in FILES.values())


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
