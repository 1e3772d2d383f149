"""What is wrong with settings, in sentences.

Each says where, which key, what stands there and what may stand there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

from glmspark.schema import Kit

Key = tuple[str | int, ...]

# What a value must be, by pydantic's name of the finding; its context fills the gaps.
_MUST: Mapping[str, str] = {
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be text in quotes",
    "tuple_type": "must be a list in [ ]",
    "list_type": "must be a list in [ ]",
    "enum": "allowed: {expected}",
    "literal_error": "allowed: {expected}",
    "greater_than": "must be above {gt:.10g}",
    "greater_than_equal": "must be {ge:.10g} or more",
    "less_than_equal": "must be {le:.10g} or less",
    "string_too_short": "needs {min_length} or more characters",
    "string_too_long": "may have {max_length} characters at most",
}
# What a pattern of the schema allows, in words.
_PATTERNS: Mapping[str, str] = {
    "name": "lower-case letters, digits and inner hyphens, 32 at most",
    "profile": "lower-case letters, digits and inner hyphens, 32 at most",
    "ssh": 'a host, user@host or an alias of the ssh configuration, or "local"',
    "netdev": "the name of a netdev, 15 characters at most",
    "serve.name": "letters, digits and . _ / -",
}


def nearest(name: str, names: tuple[str, ...]) -> str:
    """A question that names the closest of ``names``, or nothing."""
    import difflib  # only for messages, and it takes time to load

    match = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {match[0]}?" if match else ""


def dotted(key: Key) -> str:
    """``("nodes", 1, "ssh")`` as it is written in messages: ``nodes[1].ssh``."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _model_at(location: Key) -> Any:
    """The schema's table that ``location`` names."""
    model: Any = Kit
    for part in location:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        inner = [arg for arg in get_args(annotation) if isinstance(arg, type)]
        model = inner[0] if inner else annotation
    return model


def _origin(location: Key, origins: Mapping[str, str], whole: str) -> str:
    """Where ``location`` was set: itself, what stands below it, or what it is in."""
    for depth in range(len(location), 0, -1):
        key = dotted(location[:depth])
        below = (origins[k] for k in origins if k.startswith((f"{key}.", f"{key}[")))
        found = origins.get(key) or next(below, "")
        if found:
            return found
    return whole


def _shown(value: object) -> str:
    """``value`` as kit.toml has it, shortened: it stands in a message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _rule(error: Any, location: Key) -> str:
    """What may stand at ``location``, in words."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in {"model_type", "model_attributes_type", "dict_type"}:
        fields = ", ".join(_model_at(location).model_fields)
        return f"must be a table with keys of: {fields}"
    if kind == "string_pattern_mismatch":
        key = dotted(tuple(part for part in location if isinstance(part, str)))
        words = _PATTERNS.get(key) or _PATTERNS.get(str(location[-1]))
        return f"allowed: {words or 'text that matches ' + context['pattern']}"
    if kind in _MUST:
        if "expected" in context:
            words = context["expected"].replace("'", "").replace(" or ", ", ")
            context = {**context, "expected": words}
        return _MUST[kind].format(**context)
    said: str = error["msg"]
    return said[0].lower() + said[1:]


def sentence(error: Any, origins: Mapping[str, str], whole: str) -> str:
    """One of pydantic's findings as: where, which key, what stands there, what may.

    ``origins`` says by dotted key where values came from; ``whole`` stands for all of
    them, for findings about no single key.
    """
    location: Key = tuple(error["loc"])
    key = dotted(location)
    origin = _origin(location, origins, whole)
    match error["type"]:
        case "extra_forbidden":
            allowed = tuple(_model_at(location[:-1]).model_fields)
            return (
                f"{origin}: {key} is no setting"
                + nearest(str(location[-1]), allowed)
                + f" (allowed here: {', '.join(allowed)})"
            )
        case "missing":
            return f"{origin}: {key} is missing"
        case "value_error":
            said = error["msg"].removeprefix("Value error, ")
        case _:
            said = _rule(error, location)
    return (
        f"{origin}: {key} = {_shown(error['input'])}: {said}"
        if key
        else (f"{origin}: {said}")
    )
