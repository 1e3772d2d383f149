"""Finding Debian and Python on the machine, without a network."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.nix import check, get_nix


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (
            "deb http://mirror.example/debian bookworm main\n",
            "http://mirror.example/debian",
        ),
        (
            "URIs: https://mirror.example/debian/\nSuites: trixie\n",
            "https://mirror.example/debian",
        ),
        (
            "# http://snapshot.example/archive/debian/2025\nURIs: http://m.example/debian\n",
            "http://m.example/debian",
        ),
        (
            "deb http://m.example/debian-security bookworm main\n"
            "deb http://m.example/debian bookworm main\n",
            "http://m.example/debian",
        ),
    ],
    ids=["line", "deb822", "comment", "security-first"],
)
def test_debian_mirror(text: str, address: str) -> None:
    assert get_nix.debian_mirror([text]) == address


def test_no_debian_mirror_is_said() -> None:
    with pytest.raises(get_nix.NixUnavailableError, match="no Debian address"):
        get_nix.debian_mirror(["deb http://archive.example/ubuntu noble main\n"])


def test_failed_command_shows_its_words() -> None:
    with pytest.raises(get_nix.NixUnavailableError, match="No such file"):
        get_nix.run("ls", "/nowhere-at-all")


def test_other_users_are_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(get_nix.NixUnavailableError, match="not root, and some-package"):
        get_nix.install_missing({"no-such-program": "some-package"})


def test_not_debian_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(get_nix.NixUnavailableError, match="not Debian"):
        get_nix.get_nix(tmp_path / "nix")


def test_pythons_are_found_by_version(tmp_path: Path) -> None:
    for version in ("3.11", "3.13"):
        (tmp_path / f"python{version}").touch()
    found = check.find_pythons([tmp_path / "none", tmp_path])
    assert found == {v: str(tmp_path / f"python{v}") for v in ("3.11", "3.13")}


def test_host_nix_is_json_for_nix() -> None:
    text = check.host_nix({"3.11": "/usr/bin/python3.11"}, Path("/nix"))
    data = json.loads(text.removeprefix("builtins.fromJSON ''").removesuffix("''\n"))
    assert next(iter(data["pythons"].values())) == {"3.11": "/usr/bin/python3.11"}
    assert data["indexes"]


def test_store_is_never_below_a_path_with_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLMSPARK_NIX_CACHE", raising=False)
    monkeypatch.setattr(check, "HERE", tmp_path / "a clone/tests/nix")
    assert " " not in str(check.default_cache())
    monkeypatch.setattr(check, "HERE", tmp_path / "clone/tests/nix")
    assert check.default_cache() == tmp_path / "clone/.cache/nix-standin"


def test_snapshot_leaves_ignored_files_out(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    subprocess.run(["git", "init", "--quiet", str(checkout)], check=True)
    (checkout / ".gitignore").write_text("big/\n")
    (checkout / "big").mkdir()
    (checkout / "big/store").touch()
    (checkout / "new.nix").write_text("{ }\n")
    reference = check.snapshot(checkout, tmp_path / "copy")
    assert reference == f"path:{tmp_path / 'copy'}"
    assert (tmp_path / "copy/new.nix").exists()
    assert not (tmp_path / "copy/big").exists()
