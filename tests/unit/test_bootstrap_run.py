"""The set-up as a user runs it: a real environment, in a checkout with tiny wheels."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from glmspark.errors import ExitCode
from venv_setup import command, pip, steps
from venv_setup.layout import Checkout, Mode
from venv_setup.state import Action, decide

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "import sys\n\ndef main():\n    sys.stdout.write('it runs\\n')\n"


def make_wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> str:
    """Write a wheel; its sha256."""
    info = f"{name}-{version}.dist-info"
    files = files | {
        f"{info}/METADATA": "Metadata-Version: 2.1\n"
        f"Name: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    record = "".join(f"{file},,{len(text)}\n" for file, text in files.items())
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(file, text)
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the real set-up and three tiny wheels in place of the engine."""
    root = tmp_path_factory.mktemp("a folder with spaces")
    (root / "python/requirements").mkdir(parents=True)
    (root / "wheels").mkdir()
    shutil.copy(ROOT / "python/bootstrap.py", root / "python")
    for package in ("venv_setup", "glmspark"):
        (root / "python" / package).mkdir()
        for source in (ROOT / "python" / package).glob("*.py"):
            shutil.copy(source, root / "python" / package)
    entry = "glmspark-9.dist-info/entry_points.txt"
    tool = {"tool_main.py": SCRIPT, entry: "[console_scripts]\nglmspark=tool_main:main"}
    tool_hash = make_wheel(root / "wheels", "glmspark", "9", tool)
    torch_hash = make_wheel(root / "wheels", "torch", "1.0+cpu", {"torch.py": ""})
    tester_hash = make_wheel(root / "wheels", "tester", "1", {"tester.py": ""})
    requirements = root / "python/requirements"
    (requirements / "loopback.txt").write_text(lock_line("glmspark==9", tool_hash))
    (requirements / "check.txt").write_text(lock_line("tester==1", tester_hash))
    key = f"cp{sys.version_info.major}{sys.version_info.minor}-{os.uname().machine}"
    (requirements / "torch-cpu.toml").write_text(
        'version = "1.0+cpu"\nindex = "file:///nowhere"\n'
        f'[sha256]\n{key} = "{torch_hash}"\n'
    )
    return root


def lock_line(pin: str, sha256: str) -> str:
    return f"{pin} \\\n    --hash=sha256:{sha256}\n"


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    # pip splits PIP_FIND_LINKS at blanks, so the wheels lie beside the checkout.
    shutil.copytree(template / "wheels", tmp_path / "wheels")
    return Path(shutil.copytree(template, tmp_path / "a checkout"))


def run(root: Path, mode: str = "engine", **environment: str) -> tuple[int, str]:
    """Exit status and words of the set-up, which reaches nothing but the wheels."""
    done = subprocess.run(
        [sys.executable, str(root / "python/bootstrap.py"), mode],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(root),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(root.parent / "wheels"),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == ""
    # How far pip has come is said every 15 s, so on a slow machine.
    lines = [line for line in done.stderr.splitlines() if " installed, " not in line]
    return done.returncode, "\n".join(lines)


def test_from_failures_to_a_whole_environment_and_back(root: Path) -> None:
    """One chain, because making an environment costs five seconds each time."""
    refuse_another_hash(root)
    resume_after_a_missing_package(root)
    assert run(root) == (0, "")  # already
    add_the_checks(root)
    repair_what_was_cut_off(root)


def refuse_another_hash(root: Path) -> None:
    wheels = root.parent / "wheels"
    shutil.copytree(wheels, root.parent / "right")
    make_wheel(wheels, "torch", "1.0+cpu", {"torch.py": "import evil\n"})
    status, words = run(root)
    assert status == ExitCode.INTEGRITY
    assert words.startswith("making .venv\n  torch 1.0+cpu\n")
    assert "error: pip ended with status 1 while installing torch" in words
    assert "hint: the package source gives other files than locked" in words
    assert not (Checkout(root).site_packages / "torch.py").exists()
    shutil.copytree(root.parent / "right", wheels, dirs_exist_ok=True)


def resume_after_a_missing_package(root: Path) -> None:
    wheel = next((root.parent / "wheels").glob("glmspark-*"))
    wheel.rename(root / "away.whl")
    status, words = run(root)
    assert status == ExitCode.COMMAND
    assert "No matching distribution found for glmspark==9" in words
    assert Checkout(root).building.exists()
    assert not Checkout(root).stamp.exists()
    (root / "away.whl").rename(wheel)
    status, words = run(root)
    assert status == 0, words
    lines = words.splitlines()
    # torch was done in the run before
    assert lines[:2] == [Action.REPAIR.value, "  1 locked packages"]
    assert lines[-1].startswith(".venv is ready (")
    tool = subprocess.run(
        [root / ".venv/bin/glmspark"], capture_output=True, text=True, check=False
    )
    assert (tool.returncode, tool.stdout) == (0, "it runs\n")
    assert (Checkout(root).site_packages / "vllm-0.32.0+cpu.dist-info").is_dir()


def add_the_checks(root: Path) -> None:
    status, words = run(root, "check")
    assert (status, words.splitlines()[0]) == (0, Action.UPDATE.value)
    assert (Checkout(root).site_packages / "tester.py").exists()
    assert run(root, "check") == run(root) == (0, "")


def repair_what_was_cut_off(root: Path) -> None:
    site = Checkout(root).site_packages
    (site / "tool_main.py").write_text("")
    Checkout(root).stamp.unlink()
    status, words = run(root)
    assert (status, words.splitlines()[0]) == (0, Action.REPAIR.value)
    assert "glmspark-9 is incomplete: again" in words
    assert (site / "tool_main.py").read_text() == SCRIPT


def test_a_killed_run_is_finished_by_the_next_one(root: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, str(root / "python/bootstrap.py"), "engine"],
        env={"PATH": os.environ["PATH"], "HOME": str(root)},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 30
    while not Checkout(root).building.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert decide(Checkout(root), Mode.ENGINE) in {Action.REPAIR, Action.REBUILD}
    status, words = run(root)
    assert status == 0, words
    assert run(root) == (0, "")


def test_torch_that_nobody_has_leaves_nothing_behind(root: Path) -> None:
    next((root.parent / "wheels").glob("torch-*")).unlink()
    status, words = run(root)
    assert status == ExitCode.CONFIG
    assert "is in none of pip's configured sources" in words
    assert "hint: set PIP_FIND_LINKS to a folder with that wheel" in words
    assert not (root / ".venv").exists()


def test_torch_for_an_unknown_machine_is_refused_before_anything(root: Path) -> None:
    table = root / "python/requirements/torch-cpu.toml"
    table.write_text('version = "1.0+cpu"\nindex = "file:///nowhere"\n[sha256]\n')
    status, words = run(root)
    assert status == ExitCode.CONFIG
    assert "no hash of the CPU wheel of torch 1.0+cpu is known for cp" in words
    assert not (root / ".venv").exists()


# --- without an environment ----------------------------------------------------------


def test_two_runs_at_once_do_not_meet(root: Path, monkeypatch, capsys) -> None:
    checkout = Checkout(root)
    seen = []
    with command.locked(checkout):
        other = os.open(checkout.cache / "lock", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # The second one finds it held, waits, and then finds the work done.
    fcntl.flock(other, fcntl.LOCK_EX)
    monkeypatch.setattr(steps, "apply", lambda *_: seen.append("applied"))
    states = iter([Action.CREATE, Action.NOTHING])
    monkeypatch.setattr(command, "decide", lambda *_: next(states))
    real_flock = fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        if not operation & fcntl.LOCK_NB:
            os.close(other)  # the first run ends while this one waits
        real_flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    command.set_up(checkout, Mode.ENGINE)
    assert seen == []
    assert "another run is setting up .venv: waiting for it" in capsys.readouterr().err


def test_pip_keeps_the_lock_when_we_are_killed(root: Path) -> None:
    checkout = Checkout(root)
    with command.locked(checkout) as lock:
        probe = "import os, sys; os.fstat(int(sys.argv[1]))"
        argv = [sys.executable, "-c", probe, str(lock)]
        assert pip.run(argv, checkout, lock) == (0, "")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (OSError(30, "Read-only file system"), ExitCode.CONFIG),
    ],
)
def test_what_ends_the_set_up_has_its_exit_code(
    monkeypatch, capsys, error: BaseException, status: int
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(command, "set_up", fail)
    assert command.main(["engine"]) == status
    assert "Traceback" not in capsys.readouterr().err


def test_an_unknown_mode_is_a_usage_error(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["everything"])
    assert ended.value.code == ExitCode.USAGE


@pytest.mark.parametrize("named", ["/nope", "/etc/passwd", "/bin/false"])
def test_a_named_python_that_does_not_run_is_refused(named: str) -> None:
    done = subprocess.run(
        ["/bin/sh", str(ROOT / "python" / "find-python")],
        env={"PATH": os.environ["PATH"], "PYTHON": named},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ExitCode.CONFIG and done.stdout == ""
    assert f"PYTHON={named} is no Python that runs here" in done.stderr
    assert "hint: " in done.stderr


def test_the_named_python_wins() -> None:
    done = subprocess.run(
        ["/bin/sh", str(ROOT / "python" / "find-python")],
        env={"PATH": os.environ["PATH"], "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == sys.executable
