"""exllamav3's pinned release: fetched by pip, checked by hash, patched."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from vllm_exl3.errors import Exl3ConfigError, Exl3Error

SOURCES = Path(__file__).parent / "sources.json"


def run(command: list[str], what: str, *, hint: str = "") -> str:
    """A command's stdout; ``Exl3Error`` with the end of its output when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        problem = "no program" if isinstance(error, FileNotFoundError) else "cannot run"
        raise Exl3Error(
            f"{what}: {problem} {command[0]}", hint=hint, exit_code=5
        ) from error
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
        raise Exl3Error(
            f"{what} failed with status {done.returncode}:\n{tail}",
            hint=hint,
            exit_code=5,
        )
    return done.stdout


def pin() -> dict[str, str]:
    """Name, version, file name, sha256 and source folder of the pinned release."""
    found: dict[str, str] = json.loads(SOURCES.read_text())
    return found


def fetch(folder: Path) -> Path:
    """The pinned file in ``folder``, downloaded by pip unless it is there.

    A file enters the folder when its hash is right; one that is not the pinned one
    any more is fetched again.
    """
    wanted = folder / pin()["file"]
    if wanted.is_file() and sha256_of(wanted) == pin()["sha256"]:
        return wanted
    requirement = f"{pin()['name']}=={pin()['version']}"
    with tempfile.TemporaryDirectory(dir=folder, prefix="download-") as fresh:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        run(
            [*command, "--dest", fresh, requirement],
            "downloading exllamav3",
            hint=f"or pass --source with {wanted.name}",
        )
        check_hash(Path(fresh) / wanted.name)
        (Path(fresh) / wanted.name).replace(wanted)
    return wanted


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, as hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_hash(path: Path) -> None:
    """Nothing, or an ``Exl3Error`` when a file is not the pinned one."""
    seen, sha256 = sha256_of(path), pin()["sha256"]
    if seen != sha256:
        raise Exl3Error(
            f"{path} has sha256 {seen}, needed {sha256}",
            hint="build without --source, or pass it the pinned file",
        )


def patches_in(folder: Path) -> list[Path]:
    """The patches of a folder; ``Exl3ConfigError`` when it holds none.

    An installed package has none beside it, and unpatched kernels would clamp SwiGLU
    differently without a word.
    """
    found = sorted(folder.glob("*.patch"))
    if not found:
        raise Exl3ConfigError(
            f"{folder} holds no patch for exllamav3",
            hint="pass --patches with the folder overlay/exllamav3 of the sources",
        )
    return found


def unpack(archive: Path, folder: Path, patches: list[Path]) -> Path:
    """The extension's source folder, patched; each patch must apply exactly."""
    with zipfile.ZipFile(archive) as file:
        file.extractall(folder)
    for patch in sorted(patches):
        command = ["patch", "--strip=1", "--fuzz=0", "--batch", f"--input={patch}"]
        run([*command, f"--directory={folder}"], f"applying {patch.name}")
    return folder / pin()["subfolder"]
