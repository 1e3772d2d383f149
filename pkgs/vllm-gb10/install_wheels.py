"""Install wheels into one virtual environment: install_wheels.py OUT PYTHON WHEEL...

One site-packages for all, because torch and NVIDIA's libraries find each other by run
paths that are relative to it. The environment's Python is PYTHON, so the result must
be installed by a Python of the same version; the machine may be another one. Files
that two wheels bring with different bytes are refused, but for those in _SHARED.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.sources import WheelFile

_VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
# Build helpers that flashinfer-python and torch-c-dlpack-ext both put at the top;
# nothing imports them at run time.
_SHARED = frozenset({"build_backend.py", "build_utils.py"})


def make_environment(out: Path, python: Path) -> Path:
    """An empty virtual environment at ``out``; its site-packages."""
    site = out / "lib" / _VERSION / "site-packages"
    site.mkdir(parents=True)
    (out / "bin").mkdir()
    for name in ("python3", "python", _VERSION):
        (out / "bin" / name).symlink_to(python)
    home = f"home = {python.parent}\ninclude-system-site-packages = false\n"
    (out / "pyvenv.cfg").write_text(home)
    return site


def make_way(wheel: WheelFile, site: Path) -> None:
    """Remove files that ``wheel`` brings again; exit where it would change one.

    installer refuses to write over a file, and its newer releases' switch for that
    would also hide what differs.
    """
    for (path, recorded, _), stream, _ in wheel.get_contents():
        there = site / path
        if not recorded or not there.exists():
            continue
        new = hashlib.sha256(stream.read()).digest()
        same = hashlib.sha256(there.read_bytes()).digest() == new
        if not same and path not in _SHARED:
            sys.exit(f"error: {wheel.distribution} would overwrite {path}")
        there.unlink()


def main() -> None:
    """Install as the arguments say."""
    out, python, *wheels = map(Path, sys.argv[1:])
    site = make_environment(out, python)
    scheme = {
        "purelib": site,
        "platlib": site,
        "headers": out / "include",
        "scripts": out / "bin",
        "data": out,
    }
    destination = SchemeDictionaryDestination(
        {name: str(path) for name, path in scheme.items()},
        interpreter=str(out / "bin/python3"),
        script_kind="posix",
    )
    for path in wheels:
        with WheelFile.open(path) as wheel:
            make_way(wheel, site)
            install(wheel, destination, additional_metadata={})


if __name__ == "__main__":
    main()
