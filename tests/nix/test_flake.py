"""`nix flake check` with stand-ins, and what the flake says to bad input."""

from __future__ import annotations

import pytest

from tests.nix.check import Workshop, commands

MACHINE = "x86_64-linux"
MK = "lib.mkSpark"


@pytest.mark.timeout(600)
def test_flake_check(shop: Workshop, flake: str) -> None:
    """Every output of both systems evaluates, every check of this one is built."""
    for command in commands(flake):
        done = shop.run(*command)
        assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.timeout(300)
def test_image_is_reproducible(shop: Workshop, flake: str) -> None:
    """A second build of the image check gives the very same bytes."""
    for name in ("image", "wheel-tree"):
        check = f"{flake}#checks.{MACHINE}.{name}"
        shop.build(check)
        done = shop.run("build", "--no-link", "--rebuild", check)
        assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("{ services.glmspark.rnak = 1; }", "`services.glmspark.rnak' does not exist"),
        ('{ services.glmspark.rank = "one"; }', "is not of type"),
        ("{ services.glmspark.rank = 7; }", "integer between 0 and 3"),
        ("{ services.glmspark.fabric.interface = ''a b''; }", "is not of type"),
        ("{ services.openshh.enable = true; }", "`services.openshh' does not exist"),
    ],
    ids=["unknown", "type", "range", "interface", "foreign"],
)
@pytest.mark.timeout(120)
def test_module_refuses(shop: Workshop, flake: str, module: str, said: str) -> None:
    """A wrong option stops the evaluation of the host and is named."""
    system = "system.build.toplevel.drvPath"
    apply = f"f: (f {{ rank = 0; modules = [ {module} ]; }}).config.{system}"
    done = shop.run("eval", f"{flake}#{MK}", "--apply", apply)
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.timeout(120)
def test_failed_assertion_stops_the_host(shop: Workshop, flake: str) -> None:
    """What checks.relations lists really stops `nixos-rebuild`."""
    apply = (
        "f: (f { rank = 0; modules = [ { services.glmspark.role = ''worker''; } ]; })"
        ".config.system.build.toplevel.drvPath"
    )
    done = shop.run("eval", f"{flake}#{MK}", "--apply", apply)
    assert done.returncode != 0
    assert "services.glmspark.role is worker with rank 0" in done.stderr


@pytest.mark.timeout(300)
def test_kit_that_the_tool_refuses(shop: Workshop, flake: str) -> None:
    """A key that kit.toml does not have fails the build of the system, by name."""
    done = shop.run(
        "build", "--no-link", "-L", f"{flake}#checks.{MACHINE}.relations.badKit"
    )
    assert done.returncode != 0
    assert "max_model_length" in done.stderr


@pytest.mark.timeout(120)
def test_unsupported_system(shop: Workshop, flake: str) -> None:
    """The flake has no packages for a system that it does not support."""
    done = shop.run("eval", f"{flake}#packages.riscv64-linux.default.name")
    assert done.returncode != 0
    assert "does not provide attribute" in done.stderr


@pytest.mark.timeout(120)
def test_engine_on_another_machine(shop: Workshop, flake: str) -> None:
    """The engine for GB10 says that it is for aarch64, not that a file is missing."""
    name = f"{flake}#legacyPackages.{MACHINE}.full-checks.engine-tree"
    apply = "tree: (tree.override { machine = ''x86_64''; }).drvPath"
    done = shop.run("eval", name, "--apply", apply)
    assert done.returncode != 0
    assert "GB10 is aarch64" in done.stderr


@pytest.mark.timeout(120)
def test_standin_is_strict(shop: Workshop) -> None:
    """A package name with a typing mistake is an error, so real ones are checked."""
    expression = (
        f'(import {shop.inputs}/nixpkgs {{ system = "{MACHINE}"; }})'
        ".callPackage ({ rdma-coer }: rdma-coer) { }"
    )
    done = shop.run("eval", "--impure", "--expr", expression)
    assert done.returncode != 0
    assert "no package rdma-coer in the stand-in" in done.stderr


@pytest.mark.timeout(300)
def test_changed_wheel_hash(shop: Workshop, flake: str) -> None:
    """A wheel whose bytes are not the locked ones is refused with both hashes."""
    done = shop.run(
        "build", "--no-link", "-L", f"{flake}#checks.{MACHINE}.wheel-tree.badWheel"
    )
    assert done.returncode != 0
    assert "hash mismatch in fixed-output derivation" in done.stderr


@pytest.mark.timeout(300)
def test_drifted_patch(shop: Workshop, flake: str) -> None:
    """A patch that would need fuzz stops the build of the engine."""
    done = shop.run(
        "build", "--no-link", "-L", f"{flake}#checks.{MACHINE}.wheel-tree.badPatch"
    )
    assert done.returncode != 0
    assert "hunk FAILED" in done.stderr or "FAILED at" in done.stderr


@pytest.mark.timeout(300)
def test_colliding_wheels(shop: Workshop, flake: str) -> None:
    """Two wheels that bring one file with different bytes are refused by name."""
    done = shop.run(
        "build", "--no-link", "-L", f"{flake}#checks.{MACHINE}.wheel-tree.collision"
    )
    assert done.returncode != 0
    assert "would overwrite six.py" in done.stderr
