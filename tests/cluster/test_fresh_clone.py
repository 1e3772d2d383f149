"""The two commands of the README, from a clone in an empty home."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.conftest import REPOSITORY


@pytest.mark.full
@pytest.mark.engine
@pytest.mark.timeout(1200)
def test_a_fresh_clone_serves_answers_and_stops() -> None:
    if shutil.which("git") is None or not (REPOSITORY / ".git").exists():
        pytest.skip("this is no git checkout, so there is nothing to clone")
    done = subprocess.run(
        ["bash", str(REPOSITORY / "tests/fresh_clone.sh")],
        env=dict(os.environ),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("fresh clone: serves, answers and stops\n")
