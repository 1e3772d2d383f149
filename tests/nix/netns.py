"""Two hosts of our own: network namespaces joined by a veth pair, and store roots."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.nix.check import find_pythons, python_folders

needs_hosts = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not Path("/usr/sbin/sshd").exists(),
    reason="needs root, iproute2 and openssh-server for two hosts of our own",
)

# What a program of the stand-in's store needs of the host, bound into its small root.
HOST_FOLDERS = ("usr", "bin", "sbin", "lib", "lib64", "etc", "dev", "proc", "sys")
NETWORK = "10.99.0"

_ENTER = """
set -eu
root=$1 store=$2 work=$3
shift 3
mount --make-rprivate /
mount -t tmpfs none "$root"
for name in {folders}; do
  [ -e "/$name" ] || continue
  if [ -L "/$name" ]; then cp -P "/$name" "$root/$name"; continue; fi
  mkdir "$root/$name"
  mount --rbind "/$name" "$root/$name"
done
mkdir -p "$root/nix" "$root/tmp" "$root$work" "$root/run"
for extra in $EXTRA_FOLDERS; do
  mkdir -p "$root$extra"
  mount --bind "$extra" "$root$extra"
done
mount --bind "$store/nix" "$root/nix"
mount --bind "$work" "$root$work"
chmod 1777 "$root/tmp"
exec /usr/sbin/chroot "$root" "$@"
""".replace("{folders}", " ".join(HOST_FOLDERS))


def python_homes() -> list[str]:
    """Folders of this machine's Pythons that are not below /usr."""
    homes = {Path(p).parents[1] for p in find_pythons(python_folders()).values()}
    return sorted(str(h) for h in homes if not h.is_relative_to("/usr"))


def has_python(version: str) -> bool:
    """Whether this machine has that Python."""
    return version in find_pythons(python_folders())


@dataclass(frozen=True)
class Host:
    """A network namespace with its address, its Nix store root, a folder of its own."""

    name: str
    address: str
    store: Path
    work: Path

    def argv(self, *words: str) -> list[str]:
        """A command in this host's network."""
        return ["ip", "netns", "exec", self.name, *words]

    def inside(self, *words: str) -> list[str]:
        """A command in this host's network that sees its store at /nix."""
        root = self.work / "root"
        root.mkdir(parents=True, exist_ok=True)
        enter = [str(root), str(self.store), str(self.work), *words]
        return self.argv("unshare", "--mount", "sh", "-c", _ENTER, "enter", *enter)


def run(argv: Sequence[str], **changes: str) -> subprocess.CompletedProcess[str]:
    """The finished command with its output as text; nothing is raised."""
    env = {"EXTRA_FOLDERS": "", **os.environ, **changes}
    return subprocess.run(argv, env=env, text=True, capture_output=True, check=False)


def must(argv: Sequence[str], **changes: str) -> str:
    """Standard output of a command that must succeed."""
    done = run(argv, **changes)
    assert done.returncode == 0, f"{argv}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


def _address(host: Host, device: str) -> None:
    must(["ip", "-n", host.name, "addr", "add", f"{host.address}/24", "dev", device])
    must(["ip", "-n", host.name, "link", "set", device, "up"])
    must(["ip", "-n", host.name, "link", "set", "lo", "up"])


@contextmanager
def two_hosts(folder: Path) -> Iterator[tuple[Host, Host]]:
    """Two namespaces with a cable between them and no other way out."""
    tag = f"nx{os.getpid() % 10000}"
    hosts = tuple(
        Host(f"{tag}{n}", f"{NETWORK}.{n}", folder / f"store{n}", folder / f"work{n}")
        for n in (1, 2)
    )
    for host in hosts:
        (host.store / "nix").mkdir(parents=True)
        host.work.mkdir()
        must(["ip", "netns", "add", host.name])
    try:
        peer = ["type", "veth", "peer", "name", "cable", "netns", hosts[1].name]
        must(["ip", "link", "add", "cable", "netns", hosts[0].name, *peer])
        for host in hosts:
            _address(host, "cable")
        yield hosts[0], hosts[1]
    finally:
        for host in hosts:
            run(["ip", "netns", "delete", host.name])


@contextmanager
def sshd(host: Host, environment: str) -> Iterator[Path]:
    """An sshd of ``host`` for root; yields the key that opens it."""
    folder = host.work
    for name in ("key", "hostkey"):
        must(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)])
    shutil.copy(folder / "key.pub", folder / "authorized_keys")
    (folder / "sshd.conf").write_text(
        f"ListenAddress {host.address}\n"
        f"HostKey {folder}/hostkey\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\n"
        f"PidFile {folder}/sshd.pid\n"
        "StrictModes no\nPasswordAuthentication no\nUsePAM no\n"
        "PermitRootLogin prohibit-password\n"
        f"SetEnv {environment}\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    argv = host.argv("/usr/sbin/sshd", "-D", "-e", "-f", str(folder / "sshd.conf"))
    with (folder / "sshd.log").open("w") as log:
        server = subprocess.Popen(argv, stderr=log)
    try:
        _wait_for_port(host)
        yield folder / "key"
    finally:
        server.terminate()
        server.wait(timeout=10)


def _wait_for_port(host: Host) -> None:
    probe = f"import socket; socket.create_connection(('{host.address}', 22), 1)"
    for _ in range(50):
        if run(host.argv(sys.executable, "-c", probe)).returncode == 0:
            return
        time.sleep(0.1)
    raise AssertionError((host.work / "sshd.log").read_text())


def serve_once(host: Host, kit: str) -> dict[str, object]:
    """The tool and engine of ``kit`` on ``host``: start, ask, stop; the answer."""
    program = must(host.inside("readlink", "-f", f"{kit}/bin/vllm")).strip()
    env = {
        "EXTRA_FOLDERS": " ".join(python_homes()),
        "GLMSPARK_PATHS_ENGINE": program,
        "HOME": str(host.work),
        "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
    }
    tool = f"{kit}/bin/glmspark"
    ask = (
        "import json, urllib.request as u; r = u.Request("
        "'http://127.0.0.1:8888/v1/completions', json.dumps({"
        "'model': 'GLM-5.3-Flash-EXL3', 'prompt': 'hello', 'max_tokens': 4}).encode(),"
        "{'content-type': 'application/json'}); "
        "print(u.urlopen(r, timeout=60).read().decode())"
    )
    script = (
        f"trap '{tool} stop >&2' EXIT; {tool} start --set supervisor=own >&2 && "
        f'/usr/bin/python3 -c "{ask}"'
    )
    answer: dict[str, object] = json.loads(
        must(host.inside("sh", "-ec", script), **env)
    )
    return answer
