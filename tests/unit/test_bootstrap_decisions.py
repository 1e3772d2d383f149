"""The decisions of the set-up, each called without its effect."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import bootstrap
import pytest
from glmspark.errors import ConfigError, ExitCode, PreflightError
from venv_setup import machine
from venv_setup.layout import Checkout, Mode, fingerprint
from venv_setup.state import Action, decide, incomplete, missing

ROOT = Path(__file__).resolve().parents[2]


def test_the_entry_parses_on_old_pythons_to_refuse_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = (ROOT / "python/bootstrap.py").read_text()
    ast.parse(source, feature_version=(3, 6))
    assert bootstrap.refuse_old_python("3.8.18") == ExitCode.CONFIG
    assert capsys.readouterr().err == (
        "error: glmspark needs Python 3.11 or newer and this is Python 3.8.18\n"
        "hint: sudo apt-get install python3.11 python3.11-venv"
        " (another one: make PYTHON=/path/to/python3 ...)\n"
    )


def test_the_entry_refuses_before_it_imports_anything_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 8, 18))
    monkeypatch.setitem(sys.modules, "venv_setup.command", None)  # an import fails
    assert bootstrap.run() == ExitCode.CONFIG


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_a_python_without_venv_or_ensurepip_is_refused(
    monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    present = machine.importlib.util.find_spec
    monkeypatch.setattr(
        machine.importlib.util,
        "find_spec",
        lambda name: None if name == module else present(name),
    )
    monkeypatch.setattr(machine, "LIBRARIES", {})
    with pytest.raises(ConfigError, match=f"on this machine lacks {module}$"):
        machine.check_system()


def test_all_that_is_missing_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(machine, "LIBRARIES", {"libnowhere.so.9": "libnowhere9"})
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    with pytest.raises(ConfigError, match="lacks venv, ensurepip, libno") as refused:
        machine.check_system()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    install = f"apt-get install python{version}-venv libnowhere9"
    assert refused.value.hint.removeprefix("sudo ") == install


def test_a_machine_that_has_all_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "LIBRARIES", {"libc.so.6": "libc6"})
    machine.check_system()


@pytest.mark.parametrize(
    ("executable", "modules", "libraries", "user", "hint"),
    [
        ("/usr/bin/python3", ["venv"], [], 1000, "sudo apt-get install {python}-venv"),
        ("/usr/bin/python3", ["venv"], [], 0, "apt-get install {python}-venv"),
        ("/opt/python", [], ["libnuma.so.1"], 0, "apt-get install libnuma1"),
        (
            "/opt/python",
            ["ensurepip"],
            ["libnuma.so.1"],
            0,
            "name a complete Python: make PYTHON=/usr/bin/python3 ...",
        ),
    ],
)
def test_the_hint_names_the_very_packages(
    executable: str, modules: list[str], libraries: list[str], user: int, hint: str
) -> None:
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    said = machine.system_hint(executable, modules, libraries, user)
    assert said == hint.format(python=python)


def test_a_folder_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot write into /proc"):
        machine.check_folder(Path("/proc"))


@pytest.mark.parametrize("short", ["checkout", "temporary"])
def test_too_little_space_is_refused_with_the_numbers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, short: str
) -> None:
    class Usage:
        def __init__(self, free: int) -> None:
            self.free = free

    def disk_usage(place: Path) -> Usage:
        is_short = (place == tmp_path) == (short == "checkout")
        return Usage(500_000_000 if is_short else 10**12)

    monkeypatch.setattr(machine.shutil, "disk_usage", disk_usage)
    needed = {"checkout": "2.2", "temporary": "0.6"}[short]
    with pytest.raises(PreflightError, match=rf"0\.5 GB free and {needed} GB"):
        machine.check_space(tmp_path)


# --- the state of an environment -----------------------------------------------------


def add_distribution(site: Path, name: str, files: dict[str, str]) -> Path:
    info = site / f"{name}.dist-info"
    info.mkdir(parents=True)
    rows = [f"{file},,{len(text)}" for file, text in files.items()]
    for file, text in files.items():
        (site / file).write_text(text)
    (info / "RECORD").write_text("\n".join([*rows, f"{name}.dist-info/RECORD,,", ""]))
    return info


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A checkout whose environment looks whole."""
    here = Checkout(tmp_path / "a folder")
    for name in ("loopback.txt", "check.txt", "torch-cpu.toml"):
        here.requirements(name).parent.mkdir(parents=True, exist_ok=True)
        here.requirements(name).write_text("")
    (here.venv / "bin").mkdir(parents=True)
    here.python.write_text("")
    (here.venv / "bin/glmspark").write_text("")
    (here.site_packages / "pip").mkdir(parents=True)
    (here.site_packages / "pip/__main__.py").write_text("")
    version = f"{sys.version_info.major}.{sys.version_info.minor}.7"
    (here.venv / "pyvenv.cfg").write_text(f"home = /usr/bin\nversion = {version}\n")
    add_distribution(here.site_packages, "click-8.5.1", {"click.py": "x = 1\n"})
    stamp = {"venv": str(here.venv), "distributions": ["click-8.5.1.dist-info"]}
    stamp |= {str(mode): fingerprint(here, mode) for mode in Mode}
    here.stamp.write_text(json.dumps(stamp))
    return here


def test_a_whole_environment_needs_nothing(checkout: Checkout) -> None:
    assert [decide(checkout, mode) for mode in Mode] == [Action.NOTHING] * 2


def test_no_environment_is_made(tmp_path: Path) -> None:
    assert decide(Checkout(tmp_path), Mode.ENGINE) is Action.CREATE


def test_a_changed_lock_updates_the_mode_that_has_it(
    checkout: Checkout,
) -> None:
    checkout.requirements("check.txt").write_text("pytest==9\n")
    assert decide(checkout, Mode.ENGINE) is Action.NOTHING
    assert decide(checkout, Mode.CHECK) is Action.UPDATE


def test_a_new_package_of_ours_is_an_update(checkout: Checkout) -> None:
    plugin = checkout.root / "overlay/vllm_exl3"
    plugin.mkdir(parents=True)
    (plugin / "pyproject.toml").write_text("")
    assert decide(checkout, Mode.ENGINE) is Action.UPDATE


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: c.stamp.unlink(),
        lambda c: c.stamp.write_text("{"),
        lambda c: c.building.touch(),
        lambda c: (c.venv / "bin/glmspark").unlink(),
        lambda c: (c.site_packages / "click-8.5.1.dist-info").rename(
            c.site_packages / "click-8.5.2.dist-info"
        ),
    ],
    ids=["no stamp", "torn stamp", "building", "no script", "other version"],
)
def test_a_half_installed_environment_is_repaired(checkout: Checkout, damage) -> None:
    damage(checkout)
    assert decide(checkout, Mode.ENGINE) is Action.REPAIR


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: c.python.unlink(),
        lambda c: (c.site_packages / "pip/__main__.py").unlink(),
        lambda c: (c.venv / "pyvenv.cfg").write_text("version = 3.9.1\n"),
        lambda c: c.stamp.write_text('{"venv": "/elsewhere/.venv"}'),
    ],
    ids=["no python", "no pip", "other python", "moved"],
)
def test_what_cannot_be_repaired_is_made_again(checkout: Checkout, damage) -> None:
    damage(checkout)
    assert decide(checkout, Mode.ENGINE) is Action.REBUILD


def test_something_else_named_venv_is_left_alone(tmp_path: Path) -> None:
    here = Checkout(tmp_path)
    here.venv.mkdir()
    assert decide(here, Mode.ENGINE) is Action.REBUILD  # an empty folder is no loss
    (here.venv / "thesis.txt").write_text("")
    with pytest.raises(ConfigError, match="is not a Python environment"):
        decide(here, Mode.ENGINE)


def test_a_link_named_venv_is_left_alone(tmp_path: Path, checkout: Checkout) -> None:
    here = Checkout(tmp_path)
    here.venv.symlink_to(checkout.venv)
    with pytest.raises(ConfigError, match="is not a Python environment"):
        decide(here, Mode.ENGINE)


@pytest.mark.parametrize(
    "damage",
    [
        lambda site: (site / "b.py").unlink(),
        lambda site: (site / "b.py").write_text("short"),
        lambda site: (site / "b-1.dist-info/RECORD").unlink(),
        lambda site: (site / "b-1.dist-info/RECORD").write_text("b.py,,not a size\n"),
    ],
    ids=["missing file", "truncated file", "no RECORD", "torn RECORD"],
)
def test_a_package_that_was_cut_off_is_found(tmp_path: Path, damage) -> None:
    add_distribution(tmp_path, "a-1", {"a.py": "a = 1\n"})
    add_distribution(tmp_path, "b-1", {"b.py": "a longer one\n"})
    assert incomplete(tmp_path) == []
    damage(tmp_path)
    assert incomplete(tmp_path) == ["b-1.dist-info"]


def test_missing_pins_are_by_version_and_by_python(tmp_path: Path) -> None:
    add_distribution(tmp_path, "Some_Name-1.0", {})
    lock = tmp_path / "lock.txt"
    lock.write_text(
        "some-name==1.0 \\\n    --hash=sha256:00\n"
        "other==2.0 \\\n    --hash=sha256:00\n"
        'old==3.0 ; python_version >= "3.10" \\\n    --hash=sha256:00\n'
        'future==3.0 ; python_version >= "3.99" \\\n    --hash=sha256:00\n'
    )
    assert missing([lock], tmp_path) == ["other==2.0", "old==3.0"]
