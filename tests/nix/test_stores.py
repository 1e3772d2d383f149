"""Two hosts of our own, each with its store: copies, signatures, serving."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.nix import netns
from tests.nix.check import Workshop
from tests.nix.netns import Host, must, needs_hosts, run, serve_once

MACHINE = "x86_64-linux"


@dataclass(frozen=True)
class Pair:
    """Two hosts, the second with an sshd, and Nix as the first one runs it."""

    shop: Workshop
    first: Host
    second: Host
    key: Path

    def nix(self, *words: str) -> list[str]:
        """A Nix command on the first host, on the workshop's store."""
        store = ("--option", "store", str(self.shop.env["NIX_REMOTE"]))
        return self.first.argv(str(self.shop.nix), *words, *store)

    def env(self) -> dict[str, str]:
        """Environment of Nix on the first host: how it reaches the second."""
        ssh = f"-i {self.key} -o StrictHostKeyChecking=no -o BatchMode=yes"
        ssh += " -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
        return {**self.shop.env, "NIX_SSHOPTS": ssh}

    def target(self) -> str:
        """The second host's store as the first one names it."""
        daemon = self.shop.nix.parent / "nix-daemon"
        query = f"remote-program={daemon}&remote-store={self.second.store}"
        return f"ssh-ng://root@{self.second.address}?{query}"


@pytest.fixture
def pair(shop: Workshop, tmp_path: Path) -> Iterator[Pair]:
    """Two hosts; the second trusts no key yet, its nix.conf is in its own folder."""
    with netns.two_hosts(tmp_path) as (first, second):
        conf = second.work / "etc"
        conf.mkdir()
        text = (shop.nix.parents[2] / "etc/nix/nix.conf").read_text()
        (conf / "nix.conf").write_text(text)
        with netns.sshd(second, f"NIX_CONF_DIR={conf}") as key:
            yield Pair(shop, first, second, key)


@needs_hosts
@pytest.mark.netns
@pytest.mark.timeout(300)
def test_unsigned_paths_are_refused_until_signed(pair: Pair, flake: str) -> None:
    """A store that checks signatures refuses ours by name, and takes signed ones."""
    (path,) = pair.shop.build(f"{flake}#packages.{MACHINE}.glmspark")
    copy = pair.nix("copy", "--to", pair.target(), str(path))
    refused = run(copy, **pair.env())
    assert refused.returncode != 0
    assert "lacks a signature by a trusted key" in refused.stderr

    secret = pair.first.work / "secret-key"
    generate = pair.nix("key", "generate-secret", "--key-name", "kit-1")
    secret.write_text(must(generate, **pair.env()))
    public = run(
        ["sh", "-c", f"{pair.shop.nix} key convert-secret-to-public < {secret}"],
        **pair.shop.env,
    ).stdout.strip()
    must(pair.nix("store", "sign", "-k", str(secret), "-r", str(path)), **pair.env())
    conf = pair.second.work / "etc/nix.conf"
    conf.write_text(conf.read_text() + f"trusted-public-keys = {public}\n")
    must(copy, **pair.env())
    assert (pair.second.store / str(path).lstrip("/")).exists()
    again = run(copy, **pair.env())
    assert again.returncode == 0
    assert "copying path" not in again.stderr


@needs_hosts
@pytest.mark.full
@pytest.mark.netns
@pytest.mark.timeout(3600)
def test_copied_closure_serves(pair: Pair, flake: str) -> None:
    """The loopback engine, copied by `nix copy` to another host's store, serves there.

    The second host sees the copied store alone at /nix; the cable is its only link.
    """
    if not netns.has_python("3.11"):
        pytest.skip("the loopback engine's lock is for Python 3.11, which is missing")
    kit = f"{flake}#legacyPackages.{MACHINE}.full-checks.loopback-kit"
    (path,) = pair.shop.build(kit)
    must(
        pair.nix("copy", "--no-check-sigs", "--to", pair.target(), str(path)),
        **pair.env(),
    )
    assert "10.99.0.0/24" in must(pair.second.argv("ip", "route"))
    assert "default" not in must(pair.second.argv("ip", "route"))
    answer = serve_once(pair.second, str(path))
    assert answer["model"] == "GLM-5.3-Flash-EXL3"
    assert answer["choices"]
