"""Become one rank: state what is run, set the scene, and exec the engine."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from glmspark import fingerprint
from glmspark.boot import Boot
from glmspark.errors import ConfigError
from glmspark.paths import read_key
from glmspark.ranks import RankSpec, scrub
from glmspark.scene import die_with_parent, private_shm


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
    for marker in ("GLMSPARK_BOOT", "GLMSPARK_RANK"):
        env[marker] = environ[marker]
    return env


def hold_view(model: Path) -> None:
    """Keep the model's files from being collected for as long as this process lives.

    Only a view of a weights store needs that; the lease survives the exec.
    """
    root = model.parent.parent
    if model.parent.name == "views" and (root / "leases").is_dir():
        from glmspark.weights import lease
        from glmspark.weights.store import Store

        lease.hold(Store(root), model)


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
    die_with_parent(libc)
    if spec.host != "local":
        from glmspark.remoterank import relay

        sys.exit(relay(folder, boot, spec))
    serve = spec.argv.index("serve")
    hold_view(Path(spec.argv[serve + 1]))
    stated = fingerprint.take(
        spec.argv[:serve],
        spec.argv[serve + 1],
        spec.shape,
        spec.env.get("VLLM_PLUGINS", ""),
    )
    env = rank_env(spec, environ)
    scratch = Path(environ["GLMSPARK_SCRATCH"])
    scratch.mkdir(mode=0o700, exist_ok=True)
    env["TMPDIR"] = str(scratch)
    if not private_shm(libc):
        shared_marker(folder, rank).touch()
    fingerprint.write(fingerprint_file(folder, rank), stated)
    try:
        os.execvpe(spec.argv[0], spec.argv, env)
    except OSError as error:
        raise ConfigError(
            f"cannot run the engine {spec.argv[0]}: {error.strerror}",
            hint="set paths.engine to the engine's vllm program",
            node=spec.node,
        ) from error
