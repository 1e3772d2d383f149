"""Share between two hosts: namespaces, two cables, real ssh, the real programs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from glmspark.weights import importer, pin, verify
from glmspark.weights.store import Store

from tests.cluster.weights.cluster import (
    FILES,
    MIB,
    Cluster,
    listeners,
    processes,
)
from tests.cluster.weights.hosts import (
    HEAD,
    NODE,
    RAILS,
    Hosts,
    inside,
)
from tests.unit.weights.conftest import (
    blob,
    contents,
    manifest_of,
    wait_for,
    write_tree,
)
from tests.unit.weights.fakehub import sha256

pytestmark = pytest.mark.netns


@pytest.mark.cases(53)
def test_the_node_gets_every_byte_and_the_view(cluster: Cluster) -> None:
    result = cluster.ok()
    assert result["received"] == len(FILES)
    assert result["received_bytes"] == sum(len(d) for d in FILES.values())
    assert contents(Path(result["views"][0])) == FILES
    assert verify.verify(cluster.node, deep=True).is_ok


@pytest.mark.cases(39)
def test_share_takes_its_nodes_from_the_kit(cluster: Cluster) -> None:
    state, file = cluster.tmp / "state", cluster.tmp / "kit.toml"
    state.mkdir()
    known = (cluster.pair.folder / "known_hosts").read_text()
    (state / "known_hosts").write_text(known)
    lines = ['name = "t"', 'topology = "tp2"', 'engine = "stub"', "[weights]"]
    lines += [f'store = "{cluster.head.root}"', "[paths]", f'state = "{state}"']
    lines.append(f'ssh_config = "{cluster.pair.config}"')
    for number, ssh in ((0, "local"), (1, f"root@{RAILS[0][1]}")):
        lines += ["[[nodes]]", f'name = "spark-{number + 1}"', f'ssh = "{ssh}"']
        lines.append(f'fabric = "{RAILS[0][number]}"')
    file.write_text("\n".join(lines) + "\n")
    words = [sys.executable, "-m", "glmspark", "weights", "share", "spark-2", "--json"]
    words += ["--kit", str(file), *cluster.remote]
    words += ["--remote-store", str(cluster.node_root)]
    done = subprocess.run(
        inside(HEAD, words),
        env=cluster.env(),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["nodes"]
    assert (row["node"], row["received"]) == ("spark-2", len(FILES))
    assert list(row["by_rail"]) == [RAILS[0][1]]
    assert contents(Path(row["views"][0])) == FILES


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
