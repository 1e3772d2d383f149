"""Become one rank: state what is run, set the scene, and exec the engine."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from glmspark import fingerprint, viewlease
from glmspark.boot import Boot
from glmspark.errors import ConfigError, IntegrityError
from glmspark.paths import KitPaths, read_key
from glmspark.ranks import EnginePaths, RankSpec, render_ranks, scrub
from glmspark.scene import die_with_parent, private_shm

if TYPE_CHECKING:
    from glmspark.schema import Kit


def fingerprint_file(folder: Path, rank: int) -> Path:
    """Where a rank of the boot in ``folder`` states what it runs."""
    return folder / f"rank-{rank}.fingerprint.json"


def shared_marker(folder: Path, rank: int) -> Path:
    """Exists when the rank could not get a /dev/shm of its own."""
    return folder / f"rank-{rank}.shared-shm"


def rank_env(spec: RankSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the engine: ours over a scrubbed inherited one.

    Raises:
        ConfigError: the file of a secret cannot be used.
    """
    env = scrub(environ) | dict(spec.env)
    for name, file in spec.secrets.items():
        env[name] = read_key(Path(file))
    for marker in ("GLMSPARK_BOOT", "GLMSPARK_RANK", "GLMSPARK_HOME"):
        if marker in environ:
            env[marker] = environ[marker]
    return env


def become(folder: Path, rank: int, environ: Mapping[str, str]) -> None:
    """Replace this process by rank ``rank`` of the boot in ``folder``.

    Raises:
        ConfigError: no such rank, a secret's file is unusable, no engine program.
        IntegrityError: the model cannot be fingerprinted.
    """
    boot = Boot.read(folder)
    spec = next((one for one in boot.ranks if one.rank == rank), None)
    if spec is None:
        raise ConfigError(f"boot {boot.name} has no rank {rank}")
    libc = ctypes.CDLL(None, use_errno=True)
    parent = int(environ.get("GLMSPARK_PARENT", os.getppid()))
    die_with_parent(libc, parent)
    if spec.host != "local":
        from glmspark.remoterank import relay

        sys.exit(relay(folder, boot, spec))
    if (folder / "containers.json").is_file():
        from glmspark.containers import enter, read_container

        if box := read_container(folder, rank):
            hold_view(Path(spec.argv[spec.argv.index("serve") + 1]))
            enter(folder, boot, spec, box)
    spec = hold_model(spec)
    stated = state(spec)
    env = rank_env(spec, environ)
    scratch = Path(environ["GLMSPARK_SCRATCH"])
    scratch.mkdir(mode=0o700, exist_ok=True)
    env["TMPDIR"] = str(scratch)
    if not private_shm(libc):
        shared_marker(folder, rank).touch()
    fingerprint.write(fingerprint_file(folder, rank), stated)
    die_with_parent(libc, parent)  # a user namespace may have reset it
    run_engine(spec, env)


def hold_view(model: Path) -> Path:
    """The folder behind a view's name, kept for as long as this process lives.

    Raises:
        IntegrityError: it is not there.
    """
    try:
        return viewlease.hold(model)[0]
    except OSError as error:
        raise IntegrityError(
            f"the model {model} cannot be opened: {error.strerror or error}",
            hint="glmspark weights link, or start again to build the loopback model",
        ) from error


def hold_model(spec: RankSpec) -> RankSpec:
    """``spec`` told the folder behind its view's name; this process holds it."""
    at = spec.argv.index("serve") + 1
    folder = hold_view(Path(spec.argv[at]))
    return replace(spec, argv=(*spec.argv[:at], str(folder), *spec.argv[at + 1 :]))


def state(spec: RankSpec) -> fingerprint.Fingerprint:
    """What the rank is about to run.

    Raises:
        IntegrityError: the model cannot be fingerprinted.
    """
    serve = spec.argv.index("serve")
    return fingerprint.take(
        spec.argv[:serve],
        spec.argv[serve + 1],
        spec.shape,
        spec.env.get("VLLM_PLUGINS", ""),
    )


def run_engine(spec: RankSpec, env: Mapping[str, str]) -> NoReturn:
    """Replace this process by the engine.

    Raises:
        ConfigError: the program cannot be run.
    """
    try:
        os.execvpe(spec.argv[0], spec.argv, env)
    except OSError as error:
        raise ConfigError(
            f"cannot run the engine {spec.argv[0]}: {error.strerror}",
            hint="set paths.engine to the engine's vllm program",
            node=spec.node,
        ) from error


def rank_alone(kit: Kit, rank: int, engine: EnginePaths, paths: KitPaths) -> RankSpec:
    """The rank as this node alone can plan it; a GPU kit's node is looked at now.

    Raises:
        ConfigError: the rank cannot be rendered.
        PreflightError: this node lacks its fabric device, or the rank does not fit.
    """
    if not kit.engine.uses_gpu:
        return render_ranks(kit, engine)[rank]
    from glmspark import paddeddraft
    from glmspark.doctor import look_here
    from glmspark.serving import gpukit

    view = look_here(kit, rank, paths, engine.program)
    rendered = gpukit.render_kit(kit, engine, gpukit.shape_alone(kit, rank, view))
    changes = gpukit.draft_changes(kit, engine)
    if changes:
        view_, folder = engine.draft, engine.padded_draft
        paddeddraft.make(view=view_, folder=folder, changes=changes)
    return gpukit.rank_specs(kit, engine, rendered)[rank]


def become_alone(kit: Kit, rank: int, environ: Mapping[str, str]) -> NoReturn:
    """Replace this process by a rank of ``kit``, for a unit or container that has one.

    Whoever runs it watches it, too. What the rank states goes to the log, one line,
    since nobody compares it here.

    Raises:
        ConfigError: no such rank, a secret's file is unusable, no engine program.
        IntegrityError: the model cannot be fingerprinted.
    """
    from glmspark.engine import engine_paths
    from glmspark.paths import kit_paths

    if rank >= len(kit.nodes):
        raise ConfigError(
            f"rank {rank} was asked for, kit {kit.name} has {len(kit.nodes)}",
            hint=f"ranks: 0 to {len(kit.nodes) - 1}",
        )
    paths = kit_paths(kit, environ)
    spec = hold_model(rank_alone(kit, rank, engine_paths(kit, paths), paths))
    stated = json.dumps(state(spec), sort_keys=True)
    sys.stderr.write(f"rank {rank} runs {stated}\n")
    sys.stderr.flush()
    run_engine(spec, rank_env(spec, environ))
