"""The kit.toml that is used: where it is, and what it says before any validation.

Light on purpose: commands that need one word of it do not pay for the schema.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glmspark.errors import ConfigError
from glmspark.paths import expand


def find_kit(explicit: str | None, environ: Mapping[str, str]) -> Path | None:
    """The kit.toml that is used: --kit, $GLMSPARK_KIT, here, the user's, the host's.

    None means that there is none, and the built-in loopback kit is used.

    Raises:
        ConfigError: a kit that was asked for by name does not exist.
    """
    asked = explicit or environ.get("GLMSPARK_KIT")
    if asked:
        path = expand(asked, "the kit file")
        if path.is_dir():
            path = path / "kit.toml"
        if not path.is_file():
            what = "is no regular file" if path.exists() else "does not exist"
            raise ConfigError(
                f"kit file {path} was asked for and {what}",
                hint="`glmspark init` writes one; without --kit and GLMSPARK_KIT the "
                "built-in loopback kit is used",
            )
        return path
    config = environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME', '')}/.config"
    for path in (
        Path("kit.toml"),
        Path(config) / "glmspark" / "kit.toml",
        Path("/etc/glmspark/kit.toml"),
    ):
        if path.is_file():
            return path
    return None


def read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of ``path`` and its tables; a byte-order mark and CRLF are fine.

    Raises:
        ConfigError: not readable, not UTF-8, or not TOML; names file and line.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}", hint=f"ls -l {path}"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 text (byte {error.start})",
            hint=f"save {path} as UTF-8",
        ) from error
    try:
        return text, tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} is not valid TOML: {error}", hint=f"edit {path} and mend that line"
        ) from error
