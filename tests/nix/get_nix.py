"""A modern Nix from Debian's own packages, unpacked in a folder of its own.

``python3 -m tests.nix.get_nix FOLDER`` leaves FOLDER/usr/bin/nix and FOLDER/etc/nix.
The host's libc and packages stay as they are: bookworm's own nix-bin is too old
(2.8), and trixie's would pull libc with it. Debian's address is taken from the apt
sources of the machine. Nothing outside FOLDER is written, but for patchelf where it
is missing. Needs root (apt) and about ten seconds.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

# Debian 13 has 2.26; flakes as this project writes them need 2.18.
SUITE = "trixie"
# What nix-bin needs beside libc; perl and documentation are left out.
_WANTED = re.compile(r"(lib.+|zlib1g|gcc-.+-base|nix-bin|bash-static)_.*\.deb")
_UNWANTED = re.compile(r".*perl.*|.*_all\.deb")
_NO_INDEX = ("deb::Contents-deb", "deb::Contents-deb-legacy", "deb::DEP-11")


class NixUnavailableError(Exception):
    """Nix cannot be had here; the text says why and what would help."""


def run(*argv: str | Path) -> str:
    """Standard output of a command; NixUnavailableError with its words if it fails."""
    words = list(map(str, argv))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise NixUnavailableError(f"{' '.join(words[:3])} ...: {said[-400:]}")
    return done.stdout


def debian_mirror(sources: Iterable[str]) -> str:
    """The first Debian address in the text of apt's source files, comments left out."""
    lines = [line for text in sources for line in text.splitlines()]
    active = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    found = re.search(r"(https?://\S+/debian)/?(?=\s|$)", active)
    if not found:
        raise NixUnavailableError(
            "no Debian address in the apt sources of this machine"
        )
    return found[1]


def _apt_sources() -> list[str]:
    folder = Path("/etc/apt")
    names = ("sources.list", "sources.list.d/*.list", "sources.list.d/*.sources")
    return [f.read_text() for name in names for f in sorted(folder.glob(name))]


def install_missing(packages: Mapping[str, str]) -> None:
    """``apt-get install`` the packages whose program (the key) is not on PATH."""
    missing = [package for name, package in packages.items() if not shutil.which(name)]
    if not missing:
        return
    if os.geteuid() != 0:
        raise NixUnavailableError(f"not root, and {' '.join(missing)} are missing")
    run("apt-get", "update", "-qq")
    run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing)


def _apt_options(state: Path, suite: str) -> list[str]:
    """apt with its own lists, cache and status, so that nothing counts as installed."""
    for folder in ("lists/partial", "cache/archives/partial", "empty.d"):
        (state / folder).mkdir(parents=True)
    for file in ("status", "empty"):
        (state / file).touch()
    mirror = debian_mirror(_apt_sources())
    key = "/usr/share/keyrings/debian-archive-keyring.gpg"
    source = f"deb [signed-by={key}] {mirror} {suite} main\n"
    (state / "sources.list").write_text(source)
    settings = {
        "Dir::Etc::SourceList": state / "sources.list",
        "Dir::Etc::SourceParts": state / "empty.d",
        "Dir::Etc::Preferences": state / "empty",
        "Dir::Etc::PreferencesParts": state / "empty.d",
        "Dir::State::Lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
        "Dir::Cache::archives": state / "cache/archives",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "true",
    }
    settings |= {
        f"Acquire::IndexTargets::{i}::DefaultEnabled": "false" for i in _NO_INDEX
    }
    return [
        word for key, value in settings.items() for word in ("-o", f"{key}={value}")
    ]


def _unpack(prefix: Path, suite: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        options = _apt_options(Path(folder), suite)
        run("apt-get", *options, "-qq", "update")
        run("apt-get", *options, "-y", "--download-only", "install", "nix-bin")
        for deb in sorted(Path(folder).glob("cache/archives/*.deb")):
            if _WANTED.fullmatch(deb.name) and not _UNWANTED.fullmatch(deb.name):
                run("dpkg-deb", "-x", deb, prefix)


def _point_at_own_libraries(prefix: Path) -> None:
    libraries = prefix / f"usr/lib/{platform.machine()}-linux-gnu"
    loader = next(libraries.glob("ld-linux-*.so.*"))
    run(
        *("patchelf", "--set-interpreter", loader),
        *("--force-rpath", "--set-rpath", libraries, prefix / "usr/bin/nix"),
    )


def write_config(prefix: Path) -> None:
    """nix.conf for builds as root in a sandbox, with no cache and no registry.

    Without an empty ``substituters`` each command retries four seconds for the
    public cache; flake inputs are always overridden, so the registry has no use.
    """
    shell = prefix / "usr/bin/bash-static"
    lines = [
        "experimental-features = nix-command flakes",
        "build-users-group =",
        "substituters =",
        "flake-registry =",
        "sandbox = true",
        f"sandbox-paths = /bin/sh={shell}",
    ]
    (prefix / "etc/nix").mkdir(parents=True, exist_ok=True)
    (prefix / "etc/nix/nix.conf").write_text("\n".join(lines) + "\n")


def get_nix(prefix: Path, suite: str = SUITE) -> Path:
    """The Nix program below ``prefix``, installed now if it is not there yet."""
    nix = prefix / "usr/bin/nix"
    if not (prefix / "etc/nix/nix.conf").exists():
        if shutil.which("apt-get") is None:
            raise NixUnavailableError("this is not Debian: install Nix 2.18 or newer")
        install_missing({"patchelf": "patchelf"})
        prefix.mkdir(parents=True, exist_ok=True)
        _unpack(prefix, suite)
        _point_at_own_libraries(prefix)
        write_config(prefix)  # last: its presence says that the rest is complete
    run(nix, "--version")
    return nix


if __name__ == "__main__":
    try:
        sys.stderr.write(run(get_nix(Path(sys.argv[1]).resolve()), "--version"))
    except NixUnavailableError as error:
        sys.exit(f"error: {error}")
