"""Parts of the supervisor that need no ranks: logs, words, the file of a boot."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from glmspark import supervisor as module
from glmspark.boot import (
    Api,
    Boot,
    Failure,
    Limits,
    boot_folders,
    new_boot_name,
    read_state,
    stale_boots,
)
from glmspark.probing import how_it_ended
from glmspark.ranks import RankSpec
from glmspark.supervisor import Supervisor, log_file


def make_boot(folder: Path) -> Boot:
    """A boot of two ranks, written to ``folder``."""
    ranks = tuple(
        RankSpec(rank, f"n{rank}", "local", ("vllm", "serve", "m"), {"A": str(rank)})
        for rank in (1, 0)
    )
    boot = Boot(
        "20260101T000000-abcdef",
        "unit",
        "digest",
        29555,
        Limits(1, 2, 3, 4, 5),
        Api("127.0.0.1", 8888, "m", "http://127.0.0.1:8888/v1", ""),
        ranks,
    )
    boot.write(folder)
    return boot


@pytest.fixture
def watcher(tmp_path: Path) -> Supervisor:
    make_boot(tmp_path)
    made = Supervisor(tmp_path, tmp_path / "state.json")
    for rank in (0, 1):
        log_file(tmp_path, rank).touch()
    made.scratch.rmdir()
    return made


def test_a_boot_comes_back_from_its_file(tmp_path: Path) -> None:
    boot = make_boot(tmp_path)
    assert Boot.read(tmp_path) == boot


def test_state_comes_back_from_its_file(watcher: Supervisor, tmp_path: Path) -> None:
    failure = Failure("m", "h", 5, 1)
    state = replace(watcher.state, failure=failure, phase="failed")
    state.write(tmp_path / "s.json")
    assert read_state(tmp_path / "s.json") == state
    assert state.is_final and state.is_current and not state.is_up


def test_boot_names_sort_by_time_and_old_ones_go(tmp_path: Path) -> None:
    names = [f"2026010{d}T000000-abcdef" for d in range(1, 5)]
    for name in [*reversed(names), "other", new_boot_name()]:
        (tmp_path / name).mkdir()
    folders = boot_folders(tmp_path)
    assert [f.name for f in folders[:4]] == names and len(folders) == 5
    assert [f.name for f in stale_boots(folders, keep=2)] == names[:3]
    assert boot_folders(tmp_path / "none") == []


def test_a_log_is_kept_below_its_bound(
    watcher: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOG_BYTES", 10)
    log = log_file(tmp_path, 0)
    with log.open("ab") as writer:  # as the rank has it open
        writer.write(b"0123456789abcdef\n")
        writer.flush()
        watcher._rotate()
        assert log.read_bytes() == b""
        writer.write(b"more\n")
    assert log.read_bytes() == b"more\n"
    assert log.with_suffix(".log.1").read_bytes() == b"0123456789abcdef\n"


def test_ends_in_words() -> None:
    assert how_it_ended(subprocess.call(["false"]) << 8) == "exit status 1"
    assert how_it_ended(9) == "killed by SIGKILL"
    assert how_it_ended(0) == "exit status 0"


def test_the_first_cause_comes_from_the_rank_that_failed(
    watcher: Supervisor, tmp_path: Path
) -> None:
    log_file(tmp_path, 0).write_text("RuntimeError: peer has gone\n")
    log_file(tmp_path, 1).write_text("OSError: [Errno 28] No space left on device\n")
    said = watcher._explain(Failure("rank 1 ended", "", 5, 1))
    assert said is not None
    cause = "OSError: [Errno 28] No space left on device"
    assert said.message == f"rank 1 ended; first cause (rank 1): {cause}"
    assert "disk" in said.hint
    assert watcher._explain(None) is None


def test_a_silent_rank_is_explained_by_the_others(
    watcher: Supervisor, tmp_path: Path
) -> None:
    log_file(tmp_path, 0).write_text("ValueError: bad\n")
    said = watcher._explain(Failure("rank 1 ended", "", 5, 1))
    assert said is not None and "first cause (rank 0): ValueError: bad" in said.message
