"""Install a package folder with its entry points: install_plugin.py SOURCE SITE.

SOURCE is the package itself with a pyproject.toml in it. No build backend is needed:
the package has no build step, and its name, version and entry points are read here.
"""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path


def entry_points(groups: dict[str, dict[str, str]]) -> str:
    """The text of entry_points.txt for ``[project.entry-points]``."""
    parts = [
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in sorted(names.items()))
        for group, names in sorted(groups.items())
    ]
    return "\n".join(parts)


def main() -> None:
    """Install as the arguments say."""
    source, site = map(Path, sys.argv[1:])
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    package = project["name"].replace("-", "_")
    ignored = shutil.ignore_patterns("__pycache__", "pyproject.toml")
    shutil.copytree(source, site / package, ignore=ignored)
    for folder in [site / package, *(site / package).rglob("*")]:
        if folder.is_dir():  # the store's are read-only; .pyc files go in here
            folder.chmod(0o755)
    info = site / f"{package}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\n"
        f"Name: {project['name']}\nVersion: {project['version']}\n"
    )
    (info / "entry_points.txt").write_text(entry_points(project["entry-points"]))


if __name__ == "__main__":
    main()
