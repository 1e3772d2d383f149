"""A bundle made on one host installs on another that has no network at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nix import netns, oci
from tests.nix.check import Workshop
from tests.nix.netns import Host, must, needs_hosts, run, serve_once

MACHINE = "x86_64-linux"
IMAGE = "localhost/glmspark:0.32.0"
HOST_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
pytestmark = [needs_hosts, pytest.mark.netns, pytest.mark.timeout(300)]


def write_bundle(shop: Workshop, flake: str, name: str, disk: Path) -> Path:
    """``nix run`` of a bundle's program with a folder of a disk to write to."""
    folder = disk / "bundle"
    lock = disk / "weights.lock.json"
    lock.write_text("{}\n")
    done = shop.run("run", f"{flake}#{name}", "--", str(folder), str(lock))
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def bundle(
    shop: Workshop, flake: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The tool and a stub engine, with everything else as in the true bundle."""
    name = f"checks.{MACHINE}.image.bundle"
    return write_bundle(shop, flake, name, tmp_path_factory.mktemp("disk"))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host whose store is empty, with no way out but a cable to nobody."""
    with netns.two_hosts(tmp_path) as (first, second):
        must(["ip", "-n", first.name, "link", "set", "cable", "down"])
        yield second


def install_by_nix(shop: Workshop, host: Host, bundle: Path) -> str:
    """What ``install`` prints on a host with Nix, where it chooses Nix by itself."""
    prefix = shop.nix.parents[2]
    env = {
        "EXTRA_FOLDERS": f"{bundle} {prefix}",
        "NIX_CONF_DIR": str(prefix / "etc/nix"),
        "PATH": f"{shop.nix.parent}:{HOST_PATH}",
    }
    return must(host.inside(str(bundle / "install")), **env).strip()


def test_installs_by_nix_without_network(
    shop: Workshop, host: Host, bundle: Path
) -> None:
    """Closure, garbage collector's root and a tool that runs, from the disk alone."""
    asked = ["getent", "hosts", "example.org"]
    assert run(host.argv(*asked)).returncode != 0
    program = install_by_nix(shop, host, bundle)
    kit = (bundle / "closure").read_text().strip()
    assert program == f"{kit}/bin/glmspark"
    root = host.store / "nix/var/nix/gcroots/glmspark"
    assert str(root.readlink()) == kit
    homes = " ".join(netns.python_homes())
    said = must(host.inside(program, "--version"), EXTRA_FOLDERS=homes)
    assert "glmspark" in said
    started = must(host.inside(f"{kit}/bin/vllm", "serve", "x"), EXTRA_FOLDERS=homes)
    assert json.loads(started)["argv"][1:] == ["serve", "x"]
    assert (bundle / "manifests/weights.lock.json").exists()


@oci.needs_podman
def test_installs_by_podman_where_there_is_no_nix(
    tmp_path: Path, host: Host, bundle: Path
) -> None:
    """The image is loaded, and its entry point and engine run as its own user."""
    env = oci.storage(tmp_path / "podman") | {"PATH": HOST_PATH}
    load = host.argv(*oci.with_plain_cgroups(str(bundle / "install")))
    assert f"Loaded image: {IMAGE}" in must(load, **env)
    helped = must(host.argv(*oci.container(IMAGE, "--help")), **env)
    assert "--rank" in helped
    argv = oci.container(IMAGE, "serve", entrypoint="/bin/vllm")
    assert json.loads(must(host.argv(*argv), **env))["argv"][1:] == ["serve"]
    argv = oci.container(IMAGE, "-u", entrypoint="/usr/bin/id")
    assert must(host.argv(*argv), **env).strip() == "10001"


def test_damaged_bundle_is_refused_before_anything_is_installed(
    tmp_path: Path, bundle: Path
) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(bundle, copy)
    with (copy / "image.tar").open("r+b") as file:
        file.write(b"\0")
    done = run([str(copy / "install"), "--podman"])
    assert done.returncode == 7
    assert "./image.tar: FAILED" in done.stdout + done.stderr
    assert "hint: copy the bundle again" in done.stderr


@pytest.mark.skipif(not shutil.which("setarch"), reason="setarch is missing")
def test_bundle_for_another_machine_is_refused(bundle: Path) -> None:
    """An image for a Spark on amd64 (here: of amd64 on i686) is not even loaded."""
    done = run(["setarch", "i686", str(bundle / "install"), "--podman"])
    assert done.returncode == 4
    assert f"this bundle is for {MACHINE}, this host is i686-linux" in done.stderr


def test_host_with_neither_nix_nor_podman(tmp_path: Path, bundle: Path) -> None:
    programs = ("cat", "dirname", "readlink", "sh", "sha256sum", "uname")
    for name in programs:
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    done = run([str(bundle / "install")], PATH=str(tmp_path))
    assert done.returncode == 4
    assert "neither nix nor podman nor docker" in done.stderr
    wrong = run([str(bundle / "install"), "--tape"])
    assert wrong.returncode == 2
    assert "unknown argument --tape" in wrong.stderr


def test_full_folder_is_not_written_over(
    shop: Workshop, flake: str, bundle: Path
) -> None:
    before = (bundle / "SHA256SUMS").read_bytes()
    name = f"{flake}#checks.{MACHINE}.image.bundle"
    done = shop.run("run", name, "--", str(bundle))
    assert done.returncode == 2
    assert "already holds a bundle" in done.stderr
    assert (bundle / "SHA256SUMS").read_bytes() == before


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_loopback_bundle_serves_without_network(
    shop: Workshop, flake: str, host: Host, tmp_path: Path
) -> None:
    """The true bundle of the loopback kit: installed from the disk, it answers."""
    if not netns.has_python("3.11"):
        pytest.skip("the loopback engine's lock is for Python 3.11, which is missing")
    disk = tmp_path / "disk"
    disk.mkdir()
    name = f"legacyPackages.{MACHINE}.full-checks.loopback-bundle"
    folder = write_bundle(shop, flake, name, disk)
    install_by_nix(shop, host, folder)
    answer = serve_once(host, (folder / "closure").read_text().strip())
    assert answer["model"] == "GLM-5.3-Flash-EXL3"
    assert answer["choices"]
