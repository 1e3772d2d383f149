"""Profiles: named sets of serving choices, read from glmspark/data/profiles/."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from glmspark.errors import ConfigError


@dataclass(frozen=True)
class Measurement:
    """A figure somebody measured: what, how much, under what conditions, said where."""

    metric: str
    value: float
    unit: str
    conditions: str
    source: str


@dataclass(frozen=True)
class Engine:
    """What a profile asks of every rank; graph-shaping values are in here only.

    ``prefill_blocks`` is the prefill chunk in target blocks; ``kv_gib`` the KV pool,
    0 takes what the memory plan leaves, up to 40 GiB; ``long_prefill_tokens`` caps the
    chunk of a long prompt beside running ones, 0 for none; ``dense`` is how attention
    and shared-expert matrices are held: bf16, fp8 or exl3.
    """

    max_model_len: int = 262_144
    max_num_seqs: int = 4
    prefill_blocks: int = 2
    kv_gib: float = 0.0
    kv_cache_dtype: str = "fp8"
    ssm_dtype: str = "float32"
    dense: str = "bf16"
    draft_tokens: int = 7
    mtp_tokens: int = 2
    small_draft_block: bool = True
    long_prefill_tokens: int = 0
    load_format: str = "auto"
    images: int = 48
    videos: int = 1
    image_tokens: int = 2048
    reserve_gib: float = 4.0
    extra_args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Profile:
    """One profile. ``build`` and ``transplant`` are None where it needs neither."""

    name: str
    summary: str
    engine: Engine
    measured: tuple[Measurement, ...] = ()
    build: Mapping[str, Any] | None = None
    transplant: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = field(default=())


_CLOSED = {
    "kv_cache_dtype": ("fp8", "auto"),
    "ssm_dtype": ("float32", "bfloat16"),
    "dense": ("bf16", "fp8", "exl3"),
    "load_format": ("auto", "instanttensor", "fastsafetensors"),
}
_AT_LEAST_ONE = ("max_model_len", "max_num_seqs", "prefill_blocks", "draft_tokens")


def _check(name: str, raw: Mapping[str, Any]) -> None:
    known = {f.name for f in fields(Engine)}
    for key, value in raw.items():
        where = f"profile '{name}': engine.{key}"
        if key not in known:
            raise ConfigError(
                f"{where} is not known; known: {', '.join(sorted(known))}"
            )
        if key in _CLOSED and value not in _CLOSED[key]:
            raise ConfigError(f"{where} is '{value}', must be one of {_CLOSED[key]}")
        if key in _AT_LEAST_ONE and value < 1:
            raise ConfigError(f"{where} is {value}, must be at least 1")


def parse(name: str, text: str, base: Profile | None = None) -> Profile:
    """The profile in TOML ``text``; values it leaves out come from ``base``.

    Raises ConfigError for unknown keys, values out of their closed set and syntax.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"profile '{name}' is not TOML: {error}") from error
    allowed = {"summary", "engine", "measured", "build", "transplant", "notes"}
    unknown = sorted(set(raw) - allowed - {"extends"})
    if unknown:
        raise ConfigError(f"profile '{name}' has unknown tables: {', '.join(unknown)}")
    engine = dict(raw.get("engine", {}))
    _check(name, engine)
    if "extra_args" in engine:
        engine["extra_args"] = tuple(engine["extra_args"])
    start = (
        {f.name: getattr(base.engine, f.name) for f in fields(Engine)} if base else {}
    )
    return Profile(
        name=name,
        summary=raw.get("summary", ""),
        engine=Engine(**{**start, **engine}),
        measured=tuple(Measurement(**row) for row in raw.get("measured", ())),
        build=raw.get("build"),
        transplant=raw.get("transplant"),
        notes=tuple(raw.get("notes", ())),
    )


def _folder() -> Traversable:
    return files("glmspark") / "data" / "profiles"


def _own() -> dict[str, Path]:
    """The user's and the machine's own profiles by name, the user's first."""
    home = os.environ.get("HOME", "")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config")
    found: dict[str, Path] = {}
    for folder in (config / "glmspark/profiles", Path("/etc/glmspark/profiles")):
        for path in sorted(folder.glob("*.toml")):
            found.setdefault(path.stem, path)
    return found


def profile_names() -> list[str]:
    """Names of the profiles that come with the tool, ``default`` first."""
    names = [
        item.name.removesuffix(".toml")
        for item in _folder().iterdir()
        if item.name.endswith(".toml")
    ]
    return sorted(names, key=lambda name: (name != "default", name))


def own_profile_names() -> list[str]:
    """Names of the profiles in ~/.config/glmspark/profiles and /etc/glmspark/profiles.

    A shipped name there is not read: a name means the same on every machine.
    """
    return sorted(set(_own()) - set(profile_names()))


def load_profile(name: str) -> Profile:
    """A shipped profile, an own one, or the file ``name`` if that ends in .toml.

    Raises ConfigError naming the known profiles.
    """
    own = _own()
    if name in profile_names():
        text = (_folder() / f"{name}.toml").read_text("utf-8")
    elif name in own:
        text = own[name].read_text("utf-8")
    elif name.endswith(".toml") and Path(name).is_file():
        text = Path(name).read_text("utf-8")
    else:
        raise ConfigError(
            f"profile '{name}' is not known; known: "
            f"{', '.join(profile_names() + own_profile_names())}",
            hint="glmspark profile list; your own go to ~/.config/glmspark/profiles",
        )
    parent = tomllib.loads(text).get("extends") if "extends" in text else None
    base = load_profile(parent) if parent else None
    return parse(Path(name).stem if name.endswith(".toml") else name, text, base)


def profile_defaults(name: str) -> dict[str, Any]:
    """The settings below kit.toml that the profile ``name`` implies."""
    engine = load_profile(name).engine
    return {
        "serve": {
            "max_model_len": engine.max_model_len,
            "max_num_seqs": engine.max_num_seqs,
        }
    }


def difference(a: Profile, b: Profile) -> dict[str, tuple[Any, Any]]:
    """Engine values in which two profiles differ: name -> (a's, b's)."""
    pairs = {
        f.name: (getattr(a.engine, f.name), getattr(b.engine, f.name))
        for f in fields(Engine)
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
