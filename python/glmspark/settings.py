"""Read the settings of a kit from all their places, remembering where each came from.

Order, first wins: command line, environment ``GLMSPARK_*``, kit.toml, what the topology
implies, the schema's defaults. Unknown keys are errors that name the nearest known one.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from glmspark.defaults import topology_defaults
from glmspark.errors import ConfigError
from glmspark.findings import Key, dotted, nearest, sentence
from glmspark.kitfile import find_kit, read_toml
from glmspark.schema import Kit
from glmspark.tomlplace import line_of

ENV_PREFIX = "GLMSPARK_"
# Variables of the tool that are no settings of a kit.
ENV_OTHER = (
    "GLMSPARK_KIT",
    "GLMSPARK_DEBUG",
    "GLMSPARK_BOOT",
    "GLMSPARK_RANK",
    "GLMSPARK_PARENT",
    "GLMSPARK_HOME",
    "GLMSPARK_SCRATCH",
)
ENV_OTHER_PREFIXES = ("GLMSPARK_TORCH_", "GLMSPARK_TEST_")


@dataclass(frozen=True)
class Settings:
    """A valid kit, where each value came from, and the file it was read from."""

    kit: Kit
    origins: Mapping[str, str]
    path: Path | None

    def from_environment(self) -> list[str]:
        """Lines that name each value taken from the environment."""
        return [
            f"{key} comes from {origin}"
            for key, origin in self.origins.items()
            if origin.startswith("environment ")
        ]


def known_keys() -> tuple[str, ...]:
    """Every scalar setting as ``table.key``, in the schema's order; nodes excluded."""
    keys: list[str] = []
    for name, field in Kit.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            keys += [f"{name}.{sub}" for sub in inner.model_fields]
        elif name != "nodes":
            keys.append(name)
    return tuple(keys)


def _parse_scalar(text: str) -> Any:
    """``text`` of a variable or flag as a TOML value; bare words are strings."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def environment_layer(environ: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    """Settings from ``GLMSPARK_<TABLE>_<KEY>`` as key -> (value, origin).

    Raises:
        ConfigError: a variable with the prefix that names no setting.
    """
    names = {key.upper().replace(".", "_"): key for key in known_keys()}
    layer: dict[str, tuple[Any, str]] = {}
    for variable in sorted(environ):
        if not variable.startswith(ENV_PREFIX) or variable in ENV_OTHER:
            continue
        if variable.startswith(ENV_OTHER_PREFIXES):
            continue
        key = names.get(variable.removeprefix(ENV_PREFIX))
        if key is None:
            known = tuple(ENV_PREFIX + name for name in names)
            raise ConfigError(
                f"environment variable {variable} names no setting"
                + nearest(variable, known),
                hint=f"unset {variable}; `glmspark config show` lists every setting",
            )
        layer[key] = (_parse_scalar(environ[variable]), f"environment {variable}")
    return layer


def flag_layer(pairs: tuple[str, ...]) -> dict[str, tuple[Any, str]]:
    """Settings from ``--set key=value`` as key -> (value, origin).

    Raises:
        ConfigError: no ``=``, or no such setting.
    """
    layer: dict[str, tuple[Any, str]] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or key not in known_keys():
            why = "has no =" if not equals else "names no setting"
            raise ConfigError(
                f"--set {pair} {why}" + nearest(key, known_keys()),
                hint="write --set table.key=value, for instance --set serve.port=9000",
            )
        layer[key] = (_parse_scalar(text), "command line")
    return layer


def _leaves(value: Any, prefix: Key = ()) -> Iterator[tuple[Key, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*prefix, key))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*prefix, index))
    else:
        yield prefix, value


def _replaced(layer: Mapping[str, Any], base: Any, at: Key = ()) -> Iterator[str]:
    """The keys where ``layer`` replaces whatever ``base`` has at or below them."""
    for key, value in layer.items():
        under = base.get(key, {})
        if isinstance(value, Mapping) and isinstance(under, Mapping):
            yield from _replaced(value, under, (*at, key))
        else:
            yield dotted((*at, key))


def _overlay(base: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Lay ``layer`` over ``base`` in place; tables merge, lists and values replace."""
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            _overlay(base[key], value)
        else:
            base[key] = dict(value) if isinstance(value, Mapping) else value


def _put(raw: dict[str, Any], key: str, value: Any) -> None:
    table, _, leaf = key.rpartition(".")
    target = raw.setdefault(table, {}) if table else raw
    if isinstance(target, dict):
        target[leaf] = value


class _Layers:
    """The raw settings as they pile up, with the origin of each leaf."""

    def __init__(self) -> None:
        self.raw: dict[str, Any] = {}
        self.origins: dict[str, str] = {}

    def add_tables(self, tables: Mapping[str, Any], origin: Any) -> None:
        for gone in _replaced(tables, self.raw):
            below = (f"{gone}.", f"{gone}[")
            for old in [k for k in self.origins if k == gone or k.startswith(below)]:
                del self.origins[old]
        _overlay(self.raw, tables)
        for key, _ in _leaves(tables):
            self.origins[dotted(key)] = origin(key) if callable(origin) else origin

    def add_values(self, values: Mapping[str, tuple[Any, str]]) -> None:
        for key, (value, origin) in values.items():
            _put(self.raw, key, value)
            self.origins[key] = origin


def _check_characters(layers: _Layers) -> None:
    """See that no text holds control characters: paths and names cannot have them."""
    for key, value in _leaves(layers.raw):
        if isinstance(value, str) and any(ord(letter) < 32 for letter in value):
            name = dotted(key)
            raise ConfigError(
                f"{layers.origins.get(name, 'kit')}: {name} = {value!r} holds a "
                "control character",
                hint=f"write {name} without it",
            )


def load_settings(
    kit: str | None = None,
    sets: tuple[str, ...] = (),
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """The settings from command line, environment, kit.toml and defaults.

    Raises:
        ConfigError: with every finding in its message, each with file and line.
    """
    environ = os.environ if environ is None else environ
    path = find_kit(kit, environ)
    text, tables = read_toml(path) if path else ("", {})
    over = environment_layer(environ) | flag_layer(sets)

    def pick(key: str, default: str) -> str:
        return str(over[key][0] if key in over else tables.get(key, default))

    topology = pick("topology", "loopback")
    layers = _Layers()
    layers.add_tables(
        topology_defaults(topology, pick("engine", "vllm-gb10")), f"topology {topology}"
    )
    if pick("engine", "vllm-gb10") == "vllm-gb10" and topology != "loopback":
        from glmspark.serving.profiles import profile_defaults  # not for other kits

        name = pick("profile", "default")
        layers.add_tables(profile_defaults(name), f"profile {name}")
    layers.add_tables(tables, lambda key: f"{path}:{line_of(text, key)}")
    layers.add_values(over)
    _check_characters(layers)
    try:
        valid = Kit.model_validate(layers.raw)
    except ValidationError as error:
        whole = str(path or "settings")
        findings = [sentence(e, layers.origins, whole) for e in error.errors()]
        raise ConfigError(
            "\n       ".join(findings),
            hint="`glmspark config schema` describes every setting",
        ) from error
    return Settings(valid, layers.origins, path)


def show_rows(settings: Settings) -> list[tuple[str, Any, str]]:
    """Every setting as (key, value, origin), in the schema's order."""
    dump = settings.kit.model_dump(mode="json")
    return [
        (dotted(key), value, settings.origins.get(dotted(key), "default"))
        for key, value in _leaves(dump)
    ]
