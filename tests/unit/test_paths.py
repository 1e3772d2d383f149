"""Folders, keys and locks."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest
from glmspark.errors import CommandError, ConfigError
from glmspark.locks import lock_file, operation_lock, user_name
from glmspark.paths import ensure_key, kit_paths, make_folder, read_key
from glmspark.settings import load_settings


def paths(environ: dict[str, str], *sets: str) -> list[str]:
    kit = load_settings(sets=sets, environ={"HOME": "/x"}).kit
    found = kit_paths(kit, environ)
    return [str(found.state), str(found.cache), str(found.key), str(found.store)]


def test_folders_follow_xdg_and_settings() -> None:
    assert paths({"HOME": "/h"}) == [
        "/h/.local/state/glmspark/loopback",
        "/h/.cache/glmspark",
        "/h/.local/state/glmspark/loopback/key",
        "/h/.local/share/glmspark/store",
    ]
    xdg = {"HOME": "/h", "XDG_STATE_HOME": "/s", "XDG_CACHE_HOME": "/c"}
    assert paths(xdg)[:2] == ["/s/glmspark/loopback", "/c/glmspark"]
    sets = ("paths.state=/a", "paths.cache=/b", "weights.store=/w", "auth.key_file=/k")
    assert paths({}, *sets) == ["/a/loopback", "/b", "/k", "/w"]


def test_no_home_and_no_setting() -> None:
    with pytest.raises(ConfigError, match="HOME and XDG_STATE_HOME are not set"):
        paths({})


def test_a_folder_is_made_for_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    make_folder(folder, "paths.state")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert list(folder.iterdir()) == []


def test_a_folder_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="Not a directory") as caught:
        make_folder(tmp_path / "file" / "x", "paths.cache")
    assert "GLMSPARK_PATHS_CACHE" in caught.value.hint


def test_a_key_is_made_once(tmp_path: Path) -> None:
    file = tmp_path / "key"
    key = ensure_key(file)
    assert len(key) >= 40 and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert ensure_key(file) == key


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_can_read(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "key"
    ensure_key(file)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=f"has mode {mode:04o}") as caught:
        ensure_key(file)
    assert caught.value.hint == f"chmod 600 {file}"


def test_a_credential_of_systemd_is_guarded_by_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "api-key"
    file.write_text("abc\n")
    file.chmod(0o440)
    with pytest.raises(ConfigError, match="has mode 0440"):
        read_key(file)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_key(file) == "abc"


def test_an_empty_or_absent_key(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.touch(0o600)
    with pytest.raises(ConfigError, match="is empty"):
        ensure_key(file)
    with pytest.raises(ConfigError, match="cannot read the key file"):
        read_key(tmp_path / "none")
    with pytest.raises(ConfigError, match="cannot make the key file"):
        ensure_key(tmp_path / "none" / "key")


@pytest.mark.parametrize("text", ["two\nlines", "two words", "ünicode", "nul\0"])
def test_a_key_that_no_header_can_carry(tmp_path: Path, text: str) -> None:
    file = tmp_path / "key"
    file.touch(0o600)
    file.write_text(text)
    with pytest.raises(ConfigError, match="more than one word of plain"):
        read_key(file)


def test_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError

    monkeypatch.setattr("getpass.getuser", nobody)
    assert user_name().startswith("uid ")


def test_a_path_of_no_user() -> None:
    with pytest.raises(ConfigError, match="is ~nosuchuser/x"):
        paths({"HOME": "/h"}, "paths.state=~nosuchuser/x")


def test_a_lock_has_one_holder_who_is_named(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    said = r"on this kit: start by \w+, pid \d+"
    with (
        operation_lock(file, "start"),
        pytest.raises(CommandError, match=said),
        operation_lock(file, "stop"),
    ):
        pass
    with operation_lock(file, "stop"):
        pass


def test_the_folder_of_the_locks_is_every_users(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        file = lock_file("home", 29555, tmp_path)
        with operation_lock(file, "start"):
            pass
    finally:
        os.umask(before)
    assert file.name == "home-29555.lock"
    assert file.parent.stat().st_mode & 0o7777 == 0o1777
    assert file.stat().st_mode & 0o777 == 0o644
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")  # set by somebody who means no good
    with (
        pytest.raises(ConfigError, match="cannot open the lock"),
        operation_lock(file, "start"),
    ):
        pass
    assert not (tmp_path / "elsewhere").exists()
    file.parent.chmod(0o755)
    with pytest.raises(ConfigError, match="no folder that every user may write to"):
        lock_file("home", 29555, tmp_path)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: acts as another user")
def test_a_lock_holds_across_users(tmp_path: Path) -> None:
    base = Path(tempfile.mkdtemp(dir="/var/tmp"))
    base.chmod(0o755)
    file = lock_file("home", 29555, base)

    def as_nobody() -> str:
        """What a user with no rights here gets; the child may not use pytest."""
        read, write = os.pipe()
        if (pid := os.fork()) == 0:
            said = "held"
            try:
                os.setuid(65534)
                with operation_lock(file, "stop"):
                    pass
            except CommandError as error:
                said = str(error)
            finally:
                os.write(write, said.encode())
                os._exit(0)
        os.waitpid(pid, 0)
        os.close(write)
        with os.fdopen(read) as answer:
            return answer.read()

    try:
        with operation_lock(file, "restart"):
            assert "another operation works on this kit: restart by" in as_nobody()
        assert as_nobody() == "held"
        with operation_lock(file, "start"):  # nobody's note is not taken for ours
            assert "on this kit: start by" in as_nobody()
    finally:
        shutil.rmtree(base)


def test_a_lock_that_cannot_be_made(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="cannot open the lock"),
        operation_lock(tmp_path / "none" / "lock", "x"),
    ):
        pass
