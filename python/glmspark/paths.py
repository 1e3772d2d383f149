"""Where a kit keeps its state, logs, keys and caches on one node."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from glmspark.errors import ConfigError

if TYPE_CHECKING:  # this module is sent to nodes without pydantic
    from glmspark.schema import Kit


@dataclass(frozen=True)
class KitPaths:
    """The folders of one kit on this node."""

    state: Path
    cache: Path
    key: Path
    store: Path

    @property
    def state_file(self) -> Path:
        """What the supervisor last said of the current boot."""
        return self.state / "state.json"

    @property
    def boots(self) -> Path:
        """One folder a boot: its plan, its logs, its fingerprints."""
        return self.state / "boots"

    @property
    def tiny_model(self) -> Path:
        """The model of the loopback kit."""
        return self.cache / "loopback-model"


def expand(text: str, key: str) -> Path:
    """``text`` as a path, ``~`` and ``~user`` expanded.

    Raises:
        ConfigError: there is no such user; names the setting ``key``.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{key} is {text}: {error}", hint="write the whole path"
        ) from error


def kit_paths(kit: Kit, environ: Mapping[str, str] | None = None) -> KitPaths:
    """The folders of ``kit``; nothing is made.

    Raises:
        ConfigError: neither the kit nor the environment says where they may be.
    """
    environ = os.environ if environ is None else environ

    def base(configured: str, variable: str, below_home: str) -> Path:
        if configured:
            return expand(
                configured, f"paths.{below_home.rpartition('/')[2].strip('.')}"
            )
        if environ.get(variable):
            return Path(environ[variable]) / "glmspark"
        home = environ.get("HOME", "")
        if not home:
            raise ConfigError(
                f"HOME and {variable} are not set, so there is no place for state",
                hint="set GLMSPARK_PATHS_STATE and GLMSPARK_PATHS_CACHE to folders",
            )
        return Path(home) / below_home / "glmspark"

    root = base(kit.paths.state, "XDG_STATE_HOME", ".local/state").absolute()
    cache = base(kit.paths.cache, "XDG_CACHE_HOME", ".cache").absolute()
    data = Path(environ.get("HOME", "")) / ".local/share/glmspark/store"
    state = root / kit.name
    key, store = state / "key", data
    if kit.auth.key_file:
        key = expand(kit.auth.key_file, "auth.key_file")
    if kit.weights.store:
        store = expand(kit.weights.store, "weights.store")
    return KitPaths(state, cache, key.absolute(), store)


def make_folder(path: Path, key: str) -> None:
    """Make ``path`` with mode 0700; it must end up as a writable folder.

    Raises:
        ConfigError: names the setting ``key`` that moves it elsewhere.
    """
    variable = "GLMSPARK_" + key.upper().replace(".", "_")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = path / f".write-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"cannot write to folder {path}: {error.strerror}",
            hint=f"make it writable, or set {variable} to another folder",
        ) from error


def ensure_key(path: Path) -> str:
    """The API key in ``path``, made on first use with mode 0600.

    Raises:
        ConfigError: the file is readable by others, empty, or cannot be made.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigError(
            f"cannot make the key file {path}: {error.strerror}",
            hint="set auth.key_file to a file in a folder that you can write",
        ) from error
    return read_key(path)


def read_key(path: Path) -> str:
    """The API key in ``path``.

    Raises:
        ConfigError: not readable, empty, or open to other users.
    """
    try:
        mode = path.stat().st_mode
        key = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the key file {path}: {error}", hint=f"ls -l {path}"
        ) from error
    # systemd guards its credentials by the folder, and shows them with mode 0440.
    credentials = os.environ.get("CREDENTIALS_DIRECTORY", "")
    guarded = bool(credentials) and path.is_relative_to(credentials)
    if stat.S_IMODE(mode) & 0o077 and not guarded:
        raise ConfigError(
            f"key file {path} has mode {stat.S_IMODE(mode):04o}, needs 0600",
            hint=f"chmod 600 {path}",
        )
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError(
            f"key file {path} holds more than one word of plain characters",
            hint=f"rm {path}; the next start makes a key",
        )
    if not key:
        raise ConfigError(
            f"key file {path} is empty", hint=f"rm {path}; the next start makes one"
        )
    return key
