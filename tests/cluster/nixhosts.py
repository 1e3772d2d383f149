"""Hosts with a Nix store of their own at /nix, and a small closure with the stub."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.hosts import Lab
from tests.cluster.spread import Spread
from tests.conftest import REPOSITORY
from tests.nix.check import default_cache
from tests.nix.get_nix import NixUnavailableError, get_nix

# Of the stub and one path that it needs; the second is large enough to be counted.
CLOSURE = """
let
  build = name: script: derivation {{
    inherit name;
    system = builtins.currentSystem;
    builder = "/bin/sh";
    args = [ "-ec" ("PATH=/usr/bin:/bin; mkdir -p $out/bin; " + script) ];
  }};
  data = build "engine-data" "head -c {size} /dev/urandom > $out/data";
in build "vllm-stub" ''
  cp {stub} $out/stub.py
  echo ${{data}} > $out/needs
  printf '#!/bin/sh\\nexec {python} -P %s/stub.py "$@"\\n' $out > $out/bin/vllm
  chmod +x $out/bin/vllm
''
"""


def _python() -> str:
    """A Python that every account may run; the tests' own may be in a home."""
    system = Path("/usr/bin/python3")
    return str(system if system.exists() else sys.executable)


@contextlib.contextmanager
def mount_point() -> Iterator[None]:
    """A folder /nix for the hosts to mount their stores at."""
    made = not Path("/nix").exists()
    if made:
        Path("/nix").mkdir()
    try:
        yield
    finally:
        if made:
            Path("/nix").rmdir()


@dataclass
class NixHosts:
    """Where Nix and the hosts' stores are, and the environment of each host."""

    root: Path
    program: Path

    def folder(self, host: str) -> Path:
        return self.root / "nix" / host

    def conf(self, host: str) -> Path:
        """The host's nix.conf."""
        return self.folder(host) / "etc/nix.conf"

    def prepare(self, host: str) -> str:
        """Shell that gives ``host`` its store before its sshd starts."""
        store = self.folder(host) / "nix"
        store.mkdir(parents=True)
        self.conf(host).parent.mkdir()
        lines = ["experimental-features = nix-command", "build-users-group ="]
        lines += ["substituters =", "sandbox = false"]
        self.conf(host).write_text("\n".join(lines) + "\n")
        return f"mount --bind {shlex.quote(str(store))} /nix"

    def env(self, host: str) -> dict[str, str]:
        return {
            "PATH": f"{self.program.parent}:{os.environ['PATH']}",
            "NIX_CONF_DIR": str(self.conf(host).parent),
        }

    def adopt(self, kit: Spread) -> None:
        """Let commands on both hosts find Nix, over sshd's own environment."""
        self.adopt_lab(kit.lab)
        kit.path = self.env("spark-1")["PATH"]
        kit.extra_env = self.env("spark-1")

    def adopt_lab(self, lab: Lab) -> None:
        """Let commands over sshd find Nix on every host."""
        for name, host in lab.hosts.items():
            assert host.sshd is not None
            words = " ".join(f'"{k}={v}"' for k, v in self.env(name).items())
            host.sshd.options = (f"SetEnv {words}",)
            host.sshd.restart()

    def build(self, kit: Spread, size: int = 3_000_000) -> str:
        """Build the closure on the head; the path of its engine."""
        expression = CLOSURE.format(
            size=size,
            stub=shlex.quote(str(REPOSITORY / "python/glmspark/stub.py")),
            python=_python(),
        )
        words = ("build", "--impure", "--no-link", "--print-out-paths", "--expr")
        done = kit.on("spark-1", str(self.program), *words, expression)
        assert done.code == 0, done.err
        return done.out.strip()


@contextlib.contextmanager
def nix_spread(root: Path, spread: Callable[..., Spread]) -> Iterator[Spread]:
    """A kit over two hosts with a store each; ``paths.engine`` is a closure's."""
    try:
        program = get_nix(default_cache() / "nix")
    except NixUnavailableError as error:
        pytest.skip(f"Nix cannot be had here: {error}")
    with mount_point():
        hosts = NixHosts(root, program)
        kit = spread(prepare=hosts.prepare)
        hosts.adopt(kit)
        kit.nix = hosts
        kit.closure = hosts.build(kit)
        kit.write(runtime='"nix"', paths__engine=f'"{kit.closure}/bin/vllm"')
        yield kit
