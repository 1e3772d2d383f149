"""The slow derivations: gigabytes of wheels, minutes of nvcc, an image that runs."""

from __future__ import annotations

import json
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.nix import oci
from tests.nix.check import Workshop, find_pythons, python_folders
from tests.nix.netns import must

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


# What packaging's markers ask about a Spark's Python.
SPARK = {
    "extra": "",
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "aarch64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": "3.12.12",
    "python_version": "3.12",
    "sys_platform": "linux",
}


def unmet_requirements(site: Path) -> list[str]:
    """What the packages of ``site``, with the extras asked for, want and lack."""
    found = {canonicalize_name(d.name): d for d in distributions(path=[str(site)])}
    todo = [(name, "") for name in found]
    seen, unmet = set(todo), []
    for name, extra in todo:  # grows while it is read
        for text in found[name].requires or []:
            wanted = Requirement(text)
            if wanted.marker and not wanted.marker.evaluate(SPARK | {"extra": extra}):
                continue
            other = canonicalize_name(wanted.name)
            version = found[other].version if other in found else None
            if not version or not wanted.specifier.contains(version, prereleases=True):
                unmet.append(f"{name} wants {wanted}, there is {version}")
                continue
            new = {(other, e) for e in wanted.extras} - seen
            seen |= new
            todo += sorted(new)
    return unmet


@needs_312
def test_engine_meets_every_requirement(shop: Workshop, flake: str) -> None:
    """Nothing that a package of the engine asks for, on a Spark, is left out."""
    (tree,) = shop.build(f"{flake}#{FULL}.engine-tree")
    site = shop.file(tree) / "lib/python3.12/site-packages"
    assert (site / "mistral_common").is_dir()
    assert unmet_requirements(site) == []


def test_an_unmet_requirement_is_named(tmp_path: Path) -> None:
    for name, requires in (("a", "b[x]>=2"), ("b", "c; extra == 'x'")):
        folder = tmp_path / f"{name}-2.dist-info"
        folder.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 2\n"
        (folder / "METADATA").write_text(text + f"Requires-Dist: {requires}\n")
    assert unmet_requirements(tmp_path) == ['b wants c; extra == "x", there is None']


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
def test_loopback_image_is_reproducible(shop: Workshop, flake: str) -> None:
    """Building the archive again gives the very same bytes."""
    archive = f"{flake}#{FULL}.loopback-image"
    shop.build(archive)
    done = shop.run("build", "--no-link", "--rebuild", archive)
    assert done.returncode == 0, done.stderr[-2000:]


@needs_311
@oci.needs_podman
def test_loopback_image_runs(shop: Workshop, flake: str, tmp_path: Path) -> None:
    """podman loads the image; its entry point and its engine run as its own user."""
    (archive,) = shop.build(f"{flake}#{FULL}.loopback-image")
    env = oci.storage(tmp_path / "podman")
    load = ["podman", "load", "--quiet", "--input", str(shop.file(archive))]
    image = must(load, **env).strip().removeprefix("Loaded image: ")
    assert image == "localhost/glmspark:0.32.0"
    assert "--rank" in must(oci.container(image, "--help"), **env)
    version = oci.container(image, "--version", entrypoint="/bin/vllm")
    assert "0.32.0" in must(version, **env)
    user = oci.container(image, "-u", entrypoint="/usr/bin/id")
    assert must(user, **env).strip() == "10001"
