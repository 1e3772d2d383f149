"""The JSON Schema of kit.toml, generated from the settings' one definition."""

from __future__ import annotations

from typing import Any

from glmspark.schema import Kit


def kit_schema() -> dict[str, Any]:
    """The schema of kit.toml; editors and the NixOS module read it."""
    schema = Kit.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "glmspark kit.toml"
    # `nodes` has a default in the loopback topology, so a kit may leave it out.
    schema["required"] = [name for name in schema["required"] if name != "nodes"]
    return schema
