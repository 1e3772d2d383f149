"""Install a wheel or a source tree: py_install.py wheel|tree SRC OUT SITE.

A tree is installed from the packages and scripts that its pyproject.toml names.
$PYPATH holds the site folders of the dependencies.
"""

import configparser
import os
import shutil
import sys
import tomllib
import zipfile
from pathlib import Path

_LAUNCHER = """#!{python}
import sys
sys.path[0:0] = {path!r}
from {module} import {function}
sys.exit({function}())
"""


def _install_wheel(src: Path, dest: Path) -> dict[str, str]:
    with zipfile.ZipFile(src) as wheel:
        wheel.extractall(dest)
    scripts: dict[str, str] = {}
    for file in sorted(dest.glob("*.dist-info/entry_points.txt")):
        parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read(file)
        if parser.has_section("console_scripts"):
            scripts |= dict(parser["console_scripts"])
    return scripts


def _install_tree(src: Path, dest: Path) -> dict[str, str]:
    meta = tomllib.loads((src / "pyproject.toml").read_text())
    project, poetry = meta["project"], meta["tool"]["poetry"]
    for package in (p["include"] for p in poetry["packages"]):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(src / package, dest / package, ignore=ignore)
    info = dest / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    scripts: dict[str, str] = project.get("scripts", {})
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\n"
        f"Name: {project['name']}\nVersion: {project['version']}\n"
    )
    points = "".join(f"{k} = {v}\n" for k, v in sorted(scripts.items()))
    (info / "entry_points.txt").write_text(f"[console_scripts]\n{points}")
    return scripts


def _write_launchers(scripts: dict[str, str], out: Path, path: list[str]) -> None:
    if scripts:
        (out / "bin").mkdir(parents=True)
    for name, target in scripts.items():
        module, _, function = target.split("[")[0].strip().partition(":")
        file = out / "bin" / name
        file.write_text(
            _LAUNCHER.format(
                python=sys.executable, path=path, module=module, function=function
            )
        )
        file.chmod(0o555)


def main() -> None:
    """Install as the arguments say."""
    kind, src, out, site = sys.argv[1], *map(Path, sys.argv[2:])
    dest = out / site
    dest.mkdir(parents=True)
    install = _install_wheel if kind == "wheel" else _install_tree
    scripts = install(src, dest)
    deps = [p for p in os.environ.get("PYPATH", "").split(":") if p]
    _write_launchers(scripts, out, [str(dest), *deps])


if __name__ == "__main__":
    main()
