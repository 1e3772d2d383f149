"""What state an environment is in, and what that asks for; nothing is changed here."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from enum import Enum
from pathlib import Path
from typing import Any

from glmspark.errors import ConfigError

from venv_setup.layout import Checkout, Mode, fingerprint


class Action(Enum):
    """What must be done to an environment; the value is the line that says why."""

    NOTHING = ""
    CREATE = "making .venv"
    REBUILD = ".venv is of another Python or place, or broken: making it again"
    REPAIR = ".venv is half installed: installing what is missing"
    UPDATE = "the requirements have changed: updating .venv"


def read_stamp(checkout: Checkout) -> dict[str, Any]:
    """The stamp's content; empty where there is none or it cannot be read."""
    try:
        stamp = json.loads(checkout.stamp.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def distributions(site_packages: Path) -> set[str]:
    """Names of the ``*.dist-info`` folders, which carry name and version."""
    try:
        return {n for n in os.listdir(site_packages) if n.endswith(".dist-info")}  # noqa: PTH208
    except OSError:
        return set()


def missing(locks: list[Path], site_packages: Path) -> list[str]:
    """The requirements in ``locks`` for this Python whose very version is not there."""
    there = {
        _normal(name.removesuffix(".dist-info"))
        for name in distributions(site_packages)
    }
    pins = [pin for lock in locks for pin in _PIN.finditer(lock.read_text())]
    return [
        f"{pin['name']}=={pin['version']}"
        for pin in pins
        if _is_wanted(pin["python"])
        and _normal(f"{pin['name']}-{pin['version']}") not in there
    ]


# The one marker that lock.py writes is a lowest Python version.
_PIN = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>[^\s;\\]+)"
    r'(?: ; python_version >= "3\.(?P<python>\d+)")?',
    re.MULTILINE,
)


def _is_wanted(minor: str | None) -> bool:
    return minor is None or sys.version_info >= (3, int(minor))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def decide(checkout: Checkout, mode: Mode) -> Action:
    """What ``mode`` needs done to the environment as it is now.

    Raises ConfigError where ``.venv`` is something that we did not make.
    """
    if not checkout.venv.exists() and not checkout.venv.is_symlink():
        return Action.CREATE
    _refuse_foreign(checkout)
    if not _is_usable(checkout):
        return Action.REBUILD
    stamp = read_stamp(checkout)
    if not stamp or checkout.building.exists():
        return Action.REPAIR
    if stamp.get(mode) != fingerprint(checkout, mode):
        return Action.UPDATE
    here = distributions(checkout.site_packages)
    script = checkout.venv / "bin" / "glmspark"
    whole = set(stamp["distributions"]) <= here and script.exists()
    return Action.NOTHING if whole else Action.REPAIR


def _refuse_foreign(checkout: Checkout) -> None:
    ours = checkout.building.exists() or (checkout.venv / "pyvenv.cfg").exists()
    if checkout.venv.is_symlink() or not checkout.venv.is_dir():
        ours = False
    if not ours and not (checkout.venv.is_dir() and not any(checkout.venv.iterdir())):
        raise ConfigError(
            f"{checkout.venv} is there and is not a Python environment",
            hint=f"move it away: mv '{checkout.venv}' '{checkout.venv}.old'",
        )


def _is_usable(checkout: Checkout) -> bool:
    """Whether the environment is of this Python and this place, and can be mended."""
    stamped = read_stamp(checkout).get("venv", str(checkout.venv))
    return (
        stamped == str(checkout.venv)
        and checkout.python.exists()
        and (checkout.site_packages / "pip" / "__main__.py").exists()
        and _version(checkout) == f"{sys.version_info.major}.{sys.version_info.minor}"
    )


def _version(checkout: Checkout) -> str:
    """``3.11`` from ``pyvenv.cfg``; empty where it cannot be told."""
    try:
        lines = (checkout.venv / "pyvenv.cfg").read_text().splitlines()
    except (OSError, ValueError):
        return ""
    values = dict(line.split(" = ", 1) for line in lines if " = " in line)
    return ".".join(values.get("version", "").split(".")[:2])


def incomplete(site_packages: Path) -> list[str]:
    """The ``*.dist-info`` folders whose files are not all there with the right size.

    An installation that was cut off leaves such ones, and pip takes them for installed.
    """
    return sorted(
        name
        for name in distributions(site_packages)
        if not _is_complete(site_packages, site_packages / name / "RECORD")
    )


def _is_complete(site_packages: Path, record: Path) -> bool:
    try:
        with record.open(newline="") as lines:
            rows = [row for row in csv.reader(lines) if row]
        return all(_is_there(site_packages, *row) for row in rows)
    except (OSError, ValueError, TypeError):
        return False


def _is_there(site_packages: Path, name: str, _hash: str, size: str) -> bool:
    if name.endswith(".pyc"):  # may be cleaned away, and is made again
        return True
    seen = os.stat(os.path.join(site_packages, name)).st_size  # noqa: PTH116, PTH118  # 25,000 files: 3 times as fast
    return not size or seen == int(size)
