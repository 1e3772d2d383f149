"""The slow derivations: gigabytes of wheels, minutes of nvcc, an image that runs."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tests.nix import netns
from tests.nix.check import Workshop, find_pythons, python_folders
from tests.nix.netns import must, run

pytestmark = [pytest.mark.full, pytest.mark.timeout(5400)]
FULL = "legacyPackages.x86_64-linux.full-checks"
PYTHONS = find_pythons(python_folders())
needs_312 = pytest.mark.skipif(
    "3.12" not in PYTHONS, reason="the GB10 engine's lock is for Python 3.12: missing"
)
needs_311 = pytest.mark.skipif(
    "3.11" not in PYTHONS, reason="the loopback lock is for Python 3.11: missing"
)


@pytest.mark.cases(132)
@needs_312
def test_kernels_hold_sm_121a_alone(shop: Workshop, flake: str) -> None:
    """exllamav3's sources with our patches, compiled by the pinned wheels' nvcc."""
    (found,) = shop.build(f"{flake}#{FULL}.kernels-machine-code")
    assert shop.file(found).read_text() == "sm_121a\n"


@needs_312
def test_kernels_keep_no_path_of_the_compiler(shop: Workshop, flake: str) -> None:
    """The closure of the kernels is the kernels: no gigabytes of CUDA behind them."""
    (path,) = shop.build(f"{flake}#{FULL}.kernels")
    closure = shop.result("path-info", "--recursive", str(path)).split()
    assert not [p for p in closure if "cuda-wheels" in p]


@needs_312
def test_source_patch_keeps_12_1a(shop: Workshop, flake: str) -> None:
    """vLLM's CMake with and without the patch; three sources compile for sm_121a."""
    (built,) = shop.build(f"{flake}#{FULL}.source-sm121a")
    assert shop.file(built).read_text().count(": sm_121a\n") == 3


@needs_312
@pytest.mark.parametrize("name", ["engine-elf", "engine-size"])
def test_engine_tree(shop: Workshop, flake: str, name: str) -> None:
    """The 198 aarch64 wheels in one tree: libraries found, at most 12 GiB."""
    (found,) = shop.build(f"{flake}#{FULL}.{name}")
    assert shop.file(found).read_text()


@needs_312
def test_engine_holds_patches_and_plugin(shop: Workshop, flake: str) -> None:
    """What makes the engine ours is inside, and listed among vLLM's plugins."""
    (tree,) = shop.build(f"{flake}#{FULL}.engine-tree")
    site = shop.file(tree) / "lib/python3.12/site-packages"
    (points,) = site.glob("vllm_exl3-*.dist-info/entry_points.txt")
    assert "[vllm.general_plugins]" in points.read_text()
    launch = json.loads(
        (shop.file(tree) / "libexec/glmspark-engine/launch.json").read_text()
    )
    assert launch["cuda_home"] == f"{tree}/lib/python3.12/site-packages/nvidia/cu13"
    assert launch["arch"] == "12.1a"
    for name in ("bin/nvcc", "lib64/libcudart.so", "nvvm/bin/cicc"):
        assert (site / "nvidia/cu13" / name).exists(), name


@needs_311
def test_loopback_image(shop: Workshop, flake: str) -> None:
    """The image of the loopback kit: an OCI layout of at most 100 layers, 4 GiB."""
    (oci,) = shop.build(f"{flake}#{FULL}.loopback-oci")
    blobs = shop.file(oci) / "blobs/sha256"
    index = json.loads((shop.file(oci) / "index.json").read_text())
    digest = index["manifests"][0]["digest"].split(":")[1]
    manifest = json.loads((blobs / digest).read_text())
    assert len(manifest["layers"]) <= 100
    config = json.loads(
        (blobs / manifest["config"]["digest"].split(":")[1]).read_text()
    )
    assert config["config"]["Entrypoint"] == ["/bin/glmspark", "rank"]
    assert sum(f.stat().st_size for f in blobs.iterdir()) <= 4 << 30


@needs_311
@pytest.mark.netns
@netns.needs_root
def test_loopback_image_runs(shop: Workshop, flake: str, tmp_path: Path) -> None:
    """The image's own tree and entry point, entered as its user.

    The stand-in's programs are the host's, so /usr and such are bound in; what the
    image brings (its store, its links, its folders) is what runs.
    """
    (archive,) = shop.build(f"{flake}#{FULL}.loopback-image")
    root = tmp_path / "image"
    with tarfile.open(shop.file(archive)) as outer:
        (entry,) = json.load(_member(outer, "manifest.json"))
        for layer in entry["Layers"]:
            with tarfile.open(fileobj=_member(outer, layer), mode="r|") as inner:
                inner.extractall(root, filter="fully_trusted")  # noqa: S202
        config = json.load(_member(outer, entry["Config"]))["config"]
    asked = run(netns.in_image(root, config, *config["Entrypoint"], "--help"))
    assert asked.returncode == 0, asked.stderr
    assert "--rank" in asked.stdout
    assert "0.32.0" in must(netns.in_image(root, config, "/bin/vllm", "--version"))


def _member(outer: tarfile.TarFile, name: str) -> tarfile.ExFileObject:
    file = outer.extractfile(name)
    assert isinstance(file, tarfile.ExFileObject)
    return file
