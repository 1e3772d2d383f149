"""Every patch has a check that passes with it and fails without it.

The checks (check_*.py) run in two processes: one with a patched vLLM 0.32.0, one with
the installed one. A check whose name begins with ``test_both_`` has to pass in both.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.overlay.patches.conftest import installed_vllm, load_apply

HERE = Path(__file__).parent
CHECKS = sorted(HERE.glob("check_*.py"))
PATCHES = load_apply().patch_files()


def run_checks(tree, report):
    """{file::name: outcome} of all checks in one process over one vLLM."""
    installed_vllm()
    env = {
        **os.environ,
        "PYTHONPATH": str(tree) if tree else "",
        "PYTHONDONTWRITEBYTECODE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    for name in [name for name in env if name.startswith("GLMSPARK_")]:
        del env[name]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-c", os.devnull, "--rootdir", str(HERE), "--noconftest"),
            *("--import-mode", "importlib", f"--junitxml={report}"),
            "--continue-on-collection-errors",
            *map(str, CHECKS),
        ],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=report.parent,
    )
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-3000:]
    outcome = {}
    cases = ElementTree.parse(report).iter("testcase")  # noqa: S314 - our own
    for case in cases:
        file = case.get("classname").split(".")[-1]
        bad = case.find("failure") if case.find("failure") is not None else None
        bad = case.find("error") if bad is None else bad
        skipped = case.find("skipped") is not None
        text = "" if bad is None else (bad.text or "")
        outcome[f"{file}::{case.get('name')}"] = (
            "skipped" if skipped else "passed" if bad is None else "failed",
            text,
        )
    return outcome


@pytest.fixture(scope="module")
def outcomes(patched_tree, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checks")
    with ThreadPoolExecutor(2) as pool:
        patched = pool.submit(run_checks, patched_tree, folder / "patched.xml")
        stock = pool.submit(run_checks, None, folder / "stock.xml")
        return patched.result(), stock.result()


@pytest.mark.parametrize("check", CHECKS, ids=lambda path: path.stem)
def test_check_passes_with_the_patch_only(outcomes, check):
    with_it, without = outcomes
    names = [name for name in with_it if name.startswith(f"{check.stem}::")]
    assert names, f"{check.name} holds no check"
    for name in names:
        assert with_it[name][0] == "passed", with_it[name][1]
        if not name.split("::")[1].startswith("test_both_"):
            assert without.get(name, ("failed", ""))[0] == "failed", name
        else:
            assert without[name][0] == "passed", without[name][1]
    assert any("::test_both_" not in name for name in names)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.stem)
def test_patch_names_its_check(patch):
    head = patch.read_text().split("--- ", 1)[0]
    proof = head.split("Proved by: ", 1)[1]
    named = [word.strip(",") for word in proof.split() if "check_" in word]
    assert named
    for word in named:
        assert (HERE.parents[2] / word).is_file(), word
        assert Path(word).name.startswith(f"check_{patch.name[:4]}_")


def test_patches_are_small_and_numbered_without_gaps():
    numbers = [int(patch.name[:4]) for patch in PATCHES]
    assert numbers == list(range(1, len(numbers) + 1))
    for patch in PATCHES:
        assert len(patch.read_text().splitlines()) <= 160, patch.name


def test_no_check_is_an_orphan():
    numbers = {patch.name[:4] for patch in PATCHES}
    assert {check.name[6:10] for check in CHECKS} == numbers
