"""``nix flake check`` with stand-ins for the inputs: python3 -m tests.nix.check.

The derivations are real and built in Nix's sandbox; nixpkgs, poetry2nix and
nixos-dgx-spark are small trees of this folder whose packages are links to the host's.
Only pip's index and wheel folders are reached. flake.lock is never written.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.nix.get_nix import NixUnavailableError, get_nix, install_missing, run

HERE = Path(__file__).resolve().parent
INPUTS = ("nixpkgs", "poetry2nix", "nixos-dgx-spark")
PYTHONS = ("3.11", "3.12", "3.13")
# What a derivation of the stand-in may see of the host: its programs and libraries.
SANDBOX = ("/bin", "/sbin", "/usr", "/lib", "/lib64", "/etc/alternatives")
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
# Program -> Debian package, of what the stand-in's derivations run.
DEBIAN_TOOLS = {
    "git": "git",
    "jq": "jq",
    "patch": "patch",
    "patchelf": "patchelf",
    "skopeo": "skopeo",
    "systemd-analyze": "systemd",
}


@dataclass(frozen=True)
class Workshop:
    """A Nix, its environment, the stand-ins' folder, options of every command."""

    nix: Path
    inputs: Path
    env: Mapping[str, str]
    options: tuple[str, ...]

    def argv(self, *words: str) -> list[str]:
        """The argv of a Nix command with the stand-ins in place of the inputs."""
        split = words.index("--") if "--" in words else len(words)
        return [str(self.nix), *words[:split], *self.options, *words[split:]]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The finished command; its output is kept as text, nothing is raised."""
        argv = self.argv(*words)
        return subprocess.run(
            argv, env=self.env, text=True, capture_output=True, check=False
        )

    def show(self, *words: str) -> int:
        """The exit status of a command whose output goes where ours does."""
        return subprocess.run(self.argv(*words), env=self.env, check=False).returncode

    def result(self, *words: str) -> str:
        """Standard output of a command that must succeed."""
        done = self.run(*words)
        if done.returncode:
            raise NixUnavailableError(f"nix {' '.join(words)}:\n{done.stderr[-3000:]}")
        return done.stdout.strip()

    def build(self, *installables: str) -> list[Path]:
        """The store paths of what was built, as this machine's file names."""
        printed = self.result("build", "--no-link", "--print-out-paths", *installables)
        return [Path(p) for p in printed.split()]


def find_pythons(roots: Sequence[Path]) -> dict[str, str]:
    """Version -> program, of the Pythons below ``roots`` (bin folders)."""
    found: dict[str, str] = {}
    for version in PYTHONS:
        for folder in roots:
            program = folder / f"python{version}"
            if program.exists():
                found.setdefault(version, str(program.resolve()))
    return found


def python_folders() -> list[Path]:
    """Where this machine keeps Pythons: /usr/bin, pyenv's and the running one's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders = [Path("/usr/bin"), *sorted(pyenv.glob("versions/*/bin"))]
    return [*folders, Path(sys.base_prefix) / "bin"]


def pip_sources() -> tuple[list[str], list[str]]:
    """pip's indexes and wheel folders on this machine."""
    config = run(sys.executable, "-m", "pip", "config", "list")
    settings: dict[str, str] = {}
    for name, value in re.findall(r"^(?:global|:env:)\.?(\S+?)='(.*)'$", config, re.M):
        settings[name.lstrip(".")] = value
    script = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    default = run(sys.executable, "-c", script).strip()
    indexes = [settings.get("index-url", default)]
    indexes += settings.get("extra-index-url", "").split()
    folders = settings.get("find-links", "").split()
    return [i for i in indexes if i], [f for f in folders if Path(f).is_dir()]


def host_nix(pythons: Mapping[str, str]) -> str:
    """The text of host.nix, which tells the stand-in about this machine."""
    indexes, folders = pip_sources()
    machine = f"{platform.machine()}-linux"
    text = json.dumps(
        {
            "indexes": " ".join(indexes),
            "wheelFolders": " ".join(folders),
            "pythons": {machine: pythons},
        }
    )
    return f"builtins.fromJSON ''{text}''\n"


def sandbox_paths(pythons: Mapping[str, str], folders: Sequence[str]) -> str:
    """The host folders that builds see, those that exist."""
    homes = {str(Path(p).parent.parent) for p in pythons.values()}
    extra = sorted(h for h in homes if not h.startswith("/usr"))
    return " ".join(p for p in (*SANDBOX, *extra, *folders) if Path(p).exists())


@contextmanager
def workshop(cache: Path) -> Iterator[Workshop]:
    """Nix below ``cache`` with a store of its own there, and the stand-ins.

    The store is a chroot store (``cache/root/nix/store``): the machine's /nix, if it
    has one, is neither read nor written.
    """
    install_missing(DEBIAN_TOOLS)
    nix = get_nix(cache / "nix")
    pythons = find_pythons(python_folders())
    with TemporaryDirectory() as folder:
        inputs = Path(folder)
        shutil.copytree(HERE / "standin", inputs, dirs_exist_ok=True)
        (inputs / "nixpkgs/host.nix").write_text(host_nix(pythons))
        overrides = [
            word
            for name in INPUTS
            for word in ("--override-input", name, f"path:{inputs / name}")
        ]
        settings = {
            "store": str(cache / "root"),
            "substituters": "",
            "sandbox": "true",
            "sandbox-fallback": "false",
            "sandbox-paths": sandbox_paths(pythons, pip_sources()[1]),
            "ssl-cert-file": CERTIFICATES,
        }
        options = [w for k, v in settings.items() for w in ("--option", k, v)]
        env = dict(os.environ) | {
            "NIX_CONF_DIR": str(cache / "nix/etc/nix"),
            "PATH": f"{nix.parent}:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(cache / "eval"),
        }
        env.pop("NIX_REMOTE", None)
        yield Workshop(nix, inputs, env, (*overrides, *options))


def snapshot(checkout: Path, folder: Path) -> str:
    """A copy of what git tracks or would track, as a flake reference.

    As a git input, Nix would refuse a checkout of another owner; as a plain path it
    would copy virtual environments and this very store.
    """
    listed = subprocess.run(
        [
            *("git", "-c", "safe.directory=*", "-C", str(checkout), "ls-files", "-z"),
            *("--cached", "--others", "--exclude-standard"),
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        source, target = checkout / name, folder / name
        if source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    return f"path:{folder}"


def commands(flake: str) -> list[tuple[str, ...]]:
    """What a check runs in order: evaluate everything, then build this system's."""
    return [
        ("flake", "show", "--all-systems", flake),
        ("flake", "check", "--no-build", "--all-systems", flake),
        ("flake", "check", "--print-build-logs", flake),
    ]


def check_flake(flake: Path, shop: Workshop) -> int:
    """Run the checks with their output shown; 0, or the first failing status."""
    with TemporaryDirectory() as folder:
        for command in commands(snapshot(flake, Path(folder))):
            start = time.monotonic()
            status = shop.show(*command)
            took = time.monotonic() - start
            words = " ".join(command[:2])
            sys.stderr.write(f"nix {words}: status {status} after {took:.0f} s\n")
            if status:
                return status
    return 0


def default_cache() -> Path:
    """$GLMSPARK_NIX_CACHE, else .cache/nix-standin of this checkout."""
    named = os.environ.get("GLMSPARK_NIX_CACHE")
    return Path(named) if named else HERE.parents[1] / ".cache/nix-standin"


def main() -> int:
    """Check the flake, or run one Nix command with the stand-ins."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("flake", type=Path, nargs="?", default=HERE.parents[1])
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument(
        "--nix", nargs=argparse.REMAINDER, help="a Nix command instead, as it is typed"
    )
    args = parser.parse_args()
    try:
        with workshop(args.cache.resolve()) as shop:
            if args.nix:
                return shop.show(*args.nix)
            return check_flake(args.flake.resolve(), shop)
    except NixUnavailableError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
