"""The steps that make an environment whole, in their order."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from glmspark.errors import CommandError

from venv_setup import machine, pip, shim, torch_source
from venv_setup.layout import Checkout, Mode, fingerprint
from venv_setup.state import Action, distributions, incomplete, missing, read_stamp

# pip compiles on one core: compile_packages does it on all of them.
LOCKED = ["--only-binary", ":all:", "--require-hashes", "--no-compile"]
LOCAL = ["--no-index", "--no-build-isolation"]
# What a new environment holds; setuptools only before Python 3.12.
BUNDLED = ("pip", "setuptools")
# A quarter of all source, and not imported when vLLM serves a text model.
NOT_COMPILED = (
    r"/(tests?|benchmarks|testing/_internal)/"
    r"|/transformers/models/(?!auto/)\w+/(modeling|modular|processing|image|video)"
)


def apply(action: Action, mode: Mode, checkout: Checkout, lock: int) -> None:
    """Do what ``action`` says and write the stamp; raises GlmSparkError.

    After a failure the environment carries a mark, and the next run goes on with it;
    one that could not even get torch is taken away again.
    """
    if action in {Action.REPAIR, Action.UPDATE} and not forget_incomplete(checkout):
        action = Action.REBUILD
    torch = _torch_needed(checkout, is_new=action in {Action.CREATE, Action.REBUILD})
    if action in {Action.CREATE, Action.REBUILD}:
        machine.check_space(checkout.root)
        create(checkout, lock)
    checkout.building.touch()
    previous = read_stamp(checkout) if action is Action.UPDATE else {}
    checkout.stamp.unlink(missing_ok=True)
    try:
        if torch is not None:
            try:
                install_torch(torch, checkout, lock)
            except torch_source.TorchNotFoundError:
                if len(distributions(checkout.site_packages)) <= len(BUNDLED):
                    shutil.rmtree(checkout.venv)
                raise
        install_packages(mode, checkout, lock)
    except pip.PipError as error:
        raise error.explained(checkout) from error
    write_stamp(mode, checkout, previous)
    checkout.building.unlink()


def forget_incomplete(checkout: Checkout) -> bool:
    """Make pip install again what a cut-off run left; False where pip itself is it."""
    broken = incomplete(checkout.site_packages)
    if any(name.startswith("pip-") for name in broken):
        return False
    for name in broken:
        pip.say(f"  {name.removesuffix('.dist-info')} is incomplete: again")
        shutil.rmtree(checkout.site_packages / name)
    return True


def _torch_needed(checkout: Checkout, *, is_new: bool) -> torch_source.Torch | None:
    """The torch to install; None where that very release is there."""
    table = checkout.requirements("torch-cpu.toml")
    version = torch_source.locked_version(table)
    there = distributions(checkout.site_packages)
    if not is_new and f"torch-{version}.dist-info" in there:
        return None
    return torch_source.choose(table, os.environ, torch_source.here())


def create(checkout: Checkout, lock: int) -> None:
    """An empty environment with pip in it, in place of what was there."""
    if checkout.venv.exists():
        shutil.rmtree(checkout.venv)
    checkout.venv.mkdir()
    checkout.building.touch()
    command = [sys.executable, "-I", "-m", "venv", str(checkout.venv)]
    status, log = pip.run(command, checkout, lock)
    if status != 0:
        tail = "\n".join(log.strip().splitlines()[-6:])
        shutil.rmtree(checkout.venv, ignore_errors=True)
        raise CommandError(
            f"{sys.executable} -m venv ended with status {status}:\n{tail}",
            hint=machine.system_hint(sys.executable, ["venv"], [], os.geteuid()),
        )


def install_torch(torch: torch_source.Torch, checkout: Checkout, lock: int) -> None:
    """Install torch from pip's own sources, else from its index.

    Raises PipError, or TorchNotFoundError where none of them has the wheel.
    """
    pip.say(f"  torch {torch.version}")
    with tempfile.TemporaryDirectory(prefix="glmspark-") as folder:
        requirement = Path(folder) / "torch.txt"
        requirement.write_text(torch.requirement())
        arguments = [*LOCKED, "-r", str(requirement)]
        if not torch.is_named:
            try:
                return pip.install("torch", arguments, checkout, lock)
            except pip.PipError as error:
                if error.cause not in {pip.Cause.NOT_FOUND, pip.Cause.NETWORK}:
                    raise
            pip.say(f"  not in pip's sources: asking {torch.index}")
        arguments += ["--index-url", torch.index, "--retries", "1", "--timeout", "30"]
        try:
            return pip.install("torch", arguments, checkout, lock)
        except pip.PipError as error:
            if error.cause in {pip.Cause.NOT_FOUND, pip.Cause.NETWORK}:
                raise torch_source.not_found(torch, torch_source.here()) from error
            raise


def install_packages(mode: Mode, checkout: Checkout, lock: int) -> None:
    """Install the locked packages, the name ``vllm``, and our own packages."""
    install_locked(mode, checkout, lock)
    with tempfile.TemporaryDirectory(prefix="glmspark-") as folder:
        wheel = shim.write_wheel(Path(folder))
        pip.install("vllm's name", [*LOCAL, str(wheel)], checkout, lock)
    for project in checkout.projects():
        pip.say(f"  {project.relative_to(checkout.root)}")
        pip.install(project.name, [*LOCAL, "-e", str(project)], checkout, lock)


def install_locked(mode: Mode, checkout: Checkout, lock: int) -> None:
    """Install and compile what the locks name and the environment lacks."""
    locks = checkout.locks(mode)
    count = len(missing(locks, checkout.site_packages))
    if not count:
        return
    pip.say(f"  {count} locked packages")
    files = [word for file in locks for word in ("-r", str(file))]
    pip.install("the locked packages", [*LOCKED, *files], checkout, lock)
    compile_packages(checkout, lock)


def compile_packages(checkout: Checkout, lock: int) -> None:
    """Compile what is imported, on all cores; a file that fails is no failure."""
    pip.say("  compiling them")
    command = [str(checkout.python), "-I", "-m", "compileall", "-q", "-j", "0"]
    command += ["-x", NOT_COMPILED, str(checkout.site_packages)]
    pip.run(command, checkout, lock)


def write_stamp(mode: Mode, checkout: Checkout, previous: dict[str, object]) -> None:
    """Say that the environment is whole; on the disk before it is in its place."""
    stamp = previous | {
        "venv": str(checkout.venv),
        "distributions": sorted(distributions(checkout.site_packages)),
    }
    covered = (Mode.ENGINE, Mode.CHECK) if mode is Mode.CHECK else (Mode.ENGINE,)
    stamp |= {str(each): fingerprint(checkout, each) for each in covered}
    draft = checkout.stamp.with_suffix(".draft")
    with draft.open("w") as file:
        json.dump(stamp, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(checkout.stamp)
