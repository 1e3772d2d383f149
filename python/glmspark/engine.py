"""Find the engine and the model that a kit names, on this node."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from glmspark.boost.folders import of_kit
from glmspark.errors import ConfigError
from glmspark.paths import KitPaths, expand
from glmspark.ranks import EnginePaths
from glmspark.schema import Engine, Kit, Runtime


def find_program(kit: Kit) -> tuple[str, ...]:
    """The argv prefix that stands for ``vllm``.

    A bare ("vllm",) means that none was found; the engine check says so.

    Raises:
        ConfigError: paths.engine names something that is not there.
    """
    if kit.engine is Engine.STUB and not kit.paths.engine:
        # As a file, with a safe path: the rank's environment has no Python path.
        return (sys.executable, "-P", str(Path(__file__).with_name("stub.py")))
    if kit.runtime is Runtime.OCI:  # a path of the image
        return (kit.paths.engine or "/bin/vllm",)
    if kit.paths.engine:
        path = expand(kit.paths.engine, "paths.engine")
        if not path.is_file():
            raise ConfigError(
                f"paths.engine is {path}, which does not exist",
                hint="set paths.engine to the engine's vllm program",
            )
        return (str(path.absolute()),)
    beside = Path(sys.executable).parent / "vllm"
    found = str(beside) if beside.is_file() else shutil.which("vllm")
    return (found,) if found else ("vllm",)


def model_folder(kit: Kit, paths: KitPaths) -> Path:
    """The folder that vLLM opens.

    Raises:
        ConfigError: the target is a folder that does not exist.
    """
    target = kit.weights.target
    if target == "loopback":
        return paths.tiny_model
    if target.startswith("/"):
        if not Path(target).is_dir():
            raise ConfigError(
                f"weights.target is {target}, which is no folder",
                hint="set weights.target to a folder, REPOSITORY@REVISION or loopback",
            )
        return Path(target)
    built = of_kit(kit, paths, must_exist=False).model
    return Path(built) if built else paths.store / "views" / view_name(target)


def view_name(target: str) -> str:
    """The name of the view that the store keeps for REPOSITORY@REVISION.

    Raises:
        ConfigError: no revision, or not one of 40 hexadecimal digits.
    """
    if target.startswith(("~", ".")):
        raise ConfigError(
            f"weights.target is {target}; a folder is written as an absolute path",
            hint="write the whole path, or REPOSITORY@REVISION",
        )
    repository, _, revision = target.partition("@")
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise ConfigError(
            f"weights.target is {target}; it must name a revision of 40 hex digits",
            hint=f"glmspark weights lock {repository} finds the present one",
        )
    return f"{repository.replace('/', '--')}--{revision[:12]}"


def engine_paths(kit: Kit, paths: KitPaths) -> EnginePaths:
    """Everything of this node that the ranks' command lines name."""
    program = find_program(kit)
    found = EnginePaths(
        program,
        str(model_folder(kit, paths)),
        str(paths.cache / f"engine-{kit.engine.value}"),
        str(paths.key),
    )
    if not kit.engine.uses_gpu:
        return found
    cache = paths.cache / "jit" / cache_name(program)
    return replace(found, cache=str(cache), **_gpu_folders(kit, paths))


def cache_name(program: tuple[str, ...]) -> str:
    """A name for the compiled kernels of ``program``: another engine, another name."""
    resolved = os.path.realpath(program[0])
    return hashlib.sha256(resolved.encode()).hexdigest()[:16]


def _gpu_folders(kit: Kit, paths: KitPaths) -> dict[str, Any]:
    """The drafter's views and the donor's, by the field of EnginePaths."""
    from glmspark.weights.builtin import builtin

    built = of_kit(kit, paths, must_exist=False)
    folders: dict[str, Any] = {}
    if kit.weights.drafter == "dflash2":
        slug = builtin("drafter").slug
        folders["draft"] = built.draft or str(paths.store / "views" / slug)
        padded = paths.cache / f"{slug}-{kit.topology.value}"
        folders["padded_draft"] = str(padded)
    if built.donor:
        folders["donor"] = built.donor
    return folders


def engine_python(program: tuple[str, ...]) -> str:
    """The Python of the environment that the ``vllm`` program belongs to.

    A link to ``vllm`` (a Nix profile, an image's /bin) is followed: the Python lies
    beside the program itself. The Python is not: its own folder is the environment's.
    """
    path = Path(program[0])
    if len(program) != 1 or not path.is_absolute():
        return sys.executable
    beside = path.resolve().parent / "python"
    return str(beside) if beside.exists() else sys.executable
