"""Becoming a rank: its environment, its own /dev/shm, its end with the supervisor."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from glmspark.errors import ConfigError, IntegrityError
from glmspark.paths import ensure_key
from glmspark.rankexec import become, private_shm, rank_env
from glmspark.ranks import RankSpec

from tests.conftest import REPOSITORY

SPEC = RankSpec(0, "n", "local", ("vllm", "serve", "m"), {"A": "1"})
MARKS = {"GLMSPARK_BOOT": "b", "GLMSPARK_RANK": "0"}
SHM = """\
import ctypes, os, sys
sys.path.insert(0, sys.argv[1])
from glmspark.rankexec import private_shm
own = private_shm(ctypes.CDLL(None, use_errno=True))
open("/dev/shm/glmspark-unit-probe", "w").close()
print(own, os.path.exists("/dev/shm/glmspark-unit-probe"), os.getuid(), flush=True)
sys.stdin.read()
"""


def test_the_environment_is_ours_over_a_scrubbed_one(tmp_path: Path) -> None:
    file = tmp_path / "key"
    key = ensure_key(file)
    spec = RankSpec(0, "n", "local", (), {"A": "1"}, {"VLLM_API_KEY": str(file)})
    inherited = {"PATH": "/bin", "NCCL_DEBUG": "x", "VLLM_API_KEY": "old", **MARKS}
    assert rank_env(spec, inherited) == {
        "PATH": "/bin",
        "A": "1",
        "VLLM_API_KEY": key,
        **MARKS,
    }


def test_a_secret_whose_file_has_gone_is_said(tmp_path: Path) -> None:
    spec = RankSpec(0, "n", "local", (), {}, {"VLLM_API_KEY": str(tmp_path / "none")})
    with pytest.raises(ConfigError, match="cannot read the key file"):
        rank_env(spec, MARKS)


@pytest.mark.parametrize("user", ["0", "65534"])
def test_shared_memory_of_a_rank_is_its_own(user: str) -> None:
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv to try both users")
    readable = subprocess.run(
        ["setpriv", "--reuid", user, "test", "-r", str(REPOSITORY / "python")],
        check=False,
    )
    if readable.returncode != 0:
        pytest.skip(f"user {user} cannot read this checkout")
    ids = ["--reuid", user, "--regid", user, "--clear-groups"]
    child = subprocess.Popen(
        ["setpriv", *ids, sys.executable, "-c", SHM, str(REPOSITORY / "python")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    line = child.stdout.readline().split()
    outside = Path("/dev/shm/glmspark-unit-probe").exists()  # noqa: S108
    child.communicate("")
    if line[:1] == ["False"]:
        Path("/dev/shm/glmspark-unit-probe").unlink()  # noqa: S108
        pytest.skip("this kernel refuses user namespaces")
    assert line == ["True", "True", user] and not outside


class Libc:
    """A C library whose kernel refuses one call."""

    def __init__(self, refused: str) -> None:
        self.refused = refused
        self.calls = 0

    def unshare(self, _flags: int) -> int:
        self.calls += 1
        return -1 if self.refused == "unshare" else 0

    def mount(self, *_args: object) -> int:
        return -1 if self.refused == "mount" else 0


@pytest.mark.parametrize("refused", ["unshare", "mount"])
def test_a_refusal_is_an_answer(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 0)
    assert not private_shm(Libc(refused))  # type: ignore[arg-type]
    assert private_shm(Libc("nothing"))  # type: ignore[arg-type]


def test_maps_that_are_refused_leave_this_process_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The namespace is given, its maps are not: only a child may find that out.
    monkeypatch.setattr("os.getuid", lambda: 12345)

    def refuse(_path: Path, _text: str) -> int:
        raise PermissionError

    monkeypatch.setattr(Path, "write_text", refuse)
    libc = Libc("nothing")
    assert not private_shm(libc)  # type: ignore[arg-type]
    assert libc.calls == 0, "this process entered the namespace itself"


def test_a_rank_whose_supervisor_has_gone_before_it_ends_at_once() -> None:
    code = (
        "import ctypes, sys; sys.path.insert(0, sys.argv[1])\n"
        "from glmspark.scene import die_with_parent\n"
        "die_with_parent(ctypes.CDLL(None), int(sys.argv[2])); print('lives')"
    )
    for parent, said in ((os.getpid(), "lives\n"), (1, "")):
        argv = [sys.executable, "-c", code, str(REPOSITORY / "python"), str(parent)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert (done.stdout, done.returncode) == (said, 0 if said else 1)


def test_a_rank_ends_when_its_parent_is_killed() -> None:
    code = (
        "import ctypes, os, subprocess, sys\n"
        "inner = 'import ctypes, sys, time; sys.path.insert(0, sys.argv[1]); "
        "from glmspark.rankexec import die_with_parent; "
        "die_with_parent(ctypes.CDLL(None)); print(1, flush=True); time.sleep(600)'\n"
        "c = subprocess.Popen([sys.executable, '-c', inner, sys.argv[1]], "
        "stdout=subprocess.PIPE)\n"
        "c.stdout.readline(); print(c.pid, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(REPOSITORY / "python")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the rank outlived its parent")


def test_a_boot_without_that_rank(tmp_path: Path) -> None:
    from tests.unit.test_supervisor import make_boot

    make_boot(tmp_path)
    with pytest.raises(ConfigError, match="has no rank 7"):
        become(tmp_path, 7, MARKS)


def test_a_rank_holds_the_view_it_serves(tmp_path: Path) -> None:
    from glmspark.rankexec import hold_model
    from glmspark.weights import lease
    from glmspark.weights.store import Store

    root = tmp_path / "store"
    for name in ("leases", "views/.gen/model-1"):
        (root / name).mkdir(parents=True)
    (root / "views/model").symlink_to(".gen/model-1")
    store = Store(root)
    assert lease.held_views(store) == set()
    spec = replace(SPEC, argv=("vllm", "serve", str(root / "views/model"), "--x"))
    folder = str(root / "views/.gen/model-1")
    assert hold_model(spec).argv == ("vllm", "serve", folder, "--x")
    assert lease.held_views(store) == {"model-1"}
    for fd in Path("/proc/self/fd").iterdir():  # the engine ends
        with suppress(OSError):
            if fd.readlink().is_relative_to(root):
                os.close(int(fd.name))
    assert lease.held_views(store) == set()
    plain = replace(SPEC, argv=("vllm", "serve", str(tmp_path)))
    assert hold_model(plain) == plain  # a plain folder needs no lease
    with pytest.raises(IntegrityError, match=r"weights link|cannot be opened"):
        hold_model(replace(SPEC, argv=("vllm", "serve", str(root / "views/none"))))
