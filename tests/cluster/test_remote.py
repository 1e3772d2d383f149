"""Other hosts over a real sshd: noisy shells, other accounts, keys, silence."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from glmspark.errors import IntegrityError
from glmspark.hostkeys import ask_key, keep, read_known
from glmspark.remote import Remote, control_folder, in_parallel, run_ssh
from glmspark.remoteerrors import RemoteError

from tests.cluster.hosts import (
    Account,
    Client,
    Sshd,
    make_key,
    need_sshd,
    silent_listener,
)
from tests.conftest import take_port

LOOK = "glmspark.nodeside:look"
FOLDERS = {"state": "", "cache": "", "key_file": "", "store": ""}
ASK = {"kit": "test", "folders": FOLDERS, "program": []}
Make = Callable[..., Remote]


@pytest.fixture
def client(tmp_path: Path) -> Client:
    need_sshd()
    return Client(tmp_path / "client")


@pytest.fixture
def sshd(tmp_path: Path, client: Client) -> Iterator[Sshd]:
    server = Sshd(tmp_path / "sshd", client.key, take_port())
    yield server.start()
    server.stop()


@pytest.fixture
def host(client: Client, sshd: Sshd, tmp_path: Path) -> Iterator[Make]:
    """Makes remotes of the test's sshd, as a user, trusted or not."""
    made: list[Remote] = []

    def make(user: str = "root", *, trust: bool = True) -> Remote:
        alias = f"spark-{len(made) + 1}"
        client.alias(alias, "127.0.0.1", sshd.port, user)
        remote = Remote("worker", alias, tmp_path / "known_hosts", client.config)
        if trust:
            keep(remote, ask_key(remote))
        made.append(remote)
        return remote

    yield make
    for remote in made:
        remote.close()


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Callable[[str], Account]]:
    """Makes accounts with the given login shell."""
    made: list[Account] = []
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)  # the other account must reach its home

    def make(shell: str) -> Account:
        name = f"gha{secrets.token_hex(3)}"
        made.append(Account(name, shell, tmp_path / name).create())
        return made[-1]

    yield make
    for one in made:
        one.delete()


def refused(remote: Remote) -> RemoteError:
    with pytest.raises(RemoteError) as caught:
        remote.call(LOOK, ASK)
    assert caught.value.node == "worker" and caught.value.hint
    return caught.value


def test_a_node_without_this_tool_tells_its_facts(host: Make) -> None:
    remote = host()
    facts = remote.call(LOOK, ASK)
    assert facts["facts"]["memory"]["MemTotal"] > 0
    assert facts["host"]["home"] == "/root"
    began = time.monotonic()
    remote.call(LOOK, ASK)  # over the open connection
    assert time.monotonic() - began < 10


@pytest.mark.cases(39, 41, 45)
@pytest.mark.parametrize("shell", ["bash", "sh", "fish"])
def test_another_account_with_a_noisy_shell_answers_the_same(
    host: Make, account: Callable[[str], Account], shell: str
) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"needs {shell} (apt install {shell})")
    user = account(program)
    noise = "echo 'glmspark:welcome {\"'; printf '\\303 \\n'; echo oops >&2\n"
    (user.home / ".bashrc").write_text(f"{noise}export LC_ALL=tr_TR.UTF-8\n")
    fish = user.home / ".config/fish"
    fish.mkdir(parents=True)
    (fish / "config.fish").write_text(noise)
    subprocess.run(["chown", "-R", user.name, str(user.home)], check=True)
    facts = host(user.name).call(LOOK, {**ASK, "kit": 'it\'s a "kit" \\ $HOME ü'})
    assert facts["host"]["home"] == str(user.home)
    assert facts["host"]["shell"] == program
    assert facts["places"]["state"].startswith(str(user.home))
    assert facts["places"]["state"].endswith('it\'s a "kit" \\ $HOME ü')


@pytest.mark.cases(43)
def test_an_unknown_host_is_refused_until_its_fingerprint_was_kept(
    host: Make, sshd: Sshd
) -> None:
    remote = host(trust=False)
    error = refused(remote)
    assert error.kind == "unknown" and "glmspark node trust spark-1" in error.hint
    key = ask_key(remote)
    said = subprocess.run(
        ["ssh-keygen", "-lf", str(sshd.folder / "host_key.pub")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert key.fingerprint == said.stdout.split()[1]
    assert not remote.known_hosts.exists()  # asking keeps nothing
    assert keep(remote, key) and not keep(remote, key)
    assert remote.known_hosts.stat().st_mode & 0o777 == 0o600
    remote.call(LOOK, ASK)


@pytest.mark.cases(43)
def test_a_changed_key_is_refused_and_replaced_only_when_asked(
    host: Make, sshd: Sshd
) -> None:
    remote = host()
    sshd.stop()
    for name in ("host_key", "host_key.pub"):
        (sshd.folder / name).unlink()
    (sshd.folder / "log").write_text("")
    sshd.start()
    error = refused(remote)
    assert error.kind == "changed" and str(remote.known_hosts) in error.hint
    new = ask_key(remote)
    with pytest.raises(IntegrityError, match="and it shows SHA256"):
        keep(remote, new)
    assert keep(remote, new, replace=True)
    assert len(read_known(remote.known_hosts)) == 1
    remote.call(LOOK, ASK)


@pytest.mark.cases(38, 43)
def test_a_refused_key_names_user_key_and_target(
    host: Make, client: Client, sshd: Sshd
) -> None:
    remote = host()
    other = make_key(client.folder / "other")
    (sshd.folder / "authorized_keys").write_text(other.with_suffix(".pub").read_text())
    error = refused(remote)
    assert error.kind == "denied"
    assert f"root@127.0.0.1 port {sshd.port}" in str(error)
    assert str(client.key) in str(error)
    assert f"ssh-copy-id -p {sshd.port} root@127.0.0.1" in error.hint


@pytest.mark.cases(43)
def test_a_host_that_accepts_and_says_nothing_is_given_up(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Remote.connect.__globals__["OPTIONS"], "ConnectTimeout", "1")
    with silent_listener() as server:
        client.alias("mute", "127.0.0.1", server.getsockname()[1])
        remote = Remote("worker", "mute", tmp_path / "known", client.config)
        began = time.monotonic()
        error = refused(remote)
    assert error.kind == "silent" and "did not answer in time" in str(error)
    assert time.monotonic() - began < 15


def test_a_command_that_hangs_there_is_given_up(host: Make) -> None:
    remote = host()
    with pytest.raises(RemoteError, match="no answer in 1 s") as caught:
        remote.call("subprocess:run", {"args": ["sleep", "4"]}, timeout_s=1)
    assert caught.value.kind == "silent"


def test_nobody_listens(client: Client, tmp_path: Path) -> None:
    client.alias("gone", "127.0.0.1", take_port())
    error = refused(Remote("worker", "gone", tmp_path / "known", client.config))
    assert error.kind == "refused" and "nothing listens" in str(error)


@pytest.mark.cases(42)
def test_a_failure_there_is_a_failure_here(host: Make) -> None:
    with pytest.raises(RemoteError, match="TypeError") as caught:
        host().call(LOOK, {})
    assert caught.value.kind == "failed"


@pytest.mark.cases(42)
def test_a_shell_that_ends_early_is_no_answer(
    host: Make, account: Callable[[str], Account]
) -> None:
    user = account("/bin/bash")
    (user.home / ".bashrc").write_text("echo maintenance until noon; exit 0\n")
    error = refused(host(user.name))
    assert error.kind == "no answer" and "maintenance until noon" in str(error)


@pytest.mark.cases(45)
def test_a_host_without_python_says_shell_and_path(
    host: Make, account: Callable[[str], Account], monkeypatch: pytest.MonkeyPatch
) -> None:
    user = account("/bin/sh")
    monkeypatch.setattr("glmspark.shipped.PYTHONS", ("python9",))
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    error = refused(host(user.name))
    assert error.kind == "no python"
    assert "login shell /bin/sh, PATH /" in str(error)


@pytest.mark.cases(42)
def test_nodes_are_asked_at_once_and_a_dead_one_stays_an_error(
    host: Make, client: Client, tmp_path: Path
) -> None:
    client.alias("gone", "127.0.0.1", take_port())
    dead = Remote("other", "gone", tmp_path / "known_hosts", client.config)
    good, bad = in_parallel(lambda one: one.call(LOOK, ASK), [host(), dead])
    assert isinstance(bad, RemoteError) and bad.node == "other"
    assert isinstance(good, dict)


def test_the_connection_ends_when_told_so(host: Make) -> None:
    remote = host()
    remote.connect()
    assert remote.socket.exists()
    remote.close()
    assert not remote.socket.exists()
    assert control_folder({"XDG_RUNTIME_DIR": ""}).stat().st_mode & 0o077 == 0
    assert run_ssh(["ssh", "-V"], 10).code == 0


def test_the_sent_modules_need_no_package() -> None:
    from glmspark.shipped import Call, parse_answer

    call = Call.of(LOOK, ASK)
    code = call.stdin().partition("\n")[2]
    start = (
        "import sys,json;call=json.load(sys.stdin);exec(call['loader'],{'call':call})"
    )
    argv: list[Any] = [sys.executable, "-I", "-S", "-c", start]
    done = subprocess.run(argv, input=code, capture_output=True, text=True, check=True)
    assert parse_answer("noise\n" + done.stdout + "noise", call.marker)["facts"]
    with pytest.raises(ValueError, match="cut short"):
        parse_answer(done.stdout[:-90], call.marker)
    with pytest.raises(ValueError, match="no answer"):
        parse_answer("noise", call.marker)


def test_an_older_python_is_named() -> None:
    from glmspark.shipped import Call, parse_answer

    call = Call.of(LOOK, ASK)
    code = call.stdin().partition("\n")[2].replace('"oldest": [3, 11]', '"oldest": [9]')
    start = (
        "import sys,json;call=json.load(sys.stdin);exec(call['loader'],{'call':call})"
    )
    argv = [sys.executable, "-I", "-c", start]
    done = subprocess.run(argv, input=code, capture_output=True, text=True, check=True)
    with pytest.raises(RuntimeError, match=r"is Python 3\."):
        parse_answer(done.stdout, call.marker)
