"""Logs of several ranks in the order of time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from glmspark.errors import ConfigError
from glmspark.logread import Tail, boot_time, clock_file, merge, parse_since, stamp

BOOT = "20261130T225600-0a0b0c"


def at(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S"))


@pytest.fixture
def boot(tmp_path: Path) -> Path:
    folder = tmp_path / BOOT
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("line", "when"),
    [
        ("INFO 11-30 22:57:01 [core.py:1] up", "2026-11-30 22:57:01"),
        ("(Worker_TP0 pid=7) ERROR 11-30 23:59:59 [x] a", "2026-11-30 23:59:59"),
        ("INFO 11-29 22:57:01 behind", "2026-11-29 22:57:01"),
        ("INFO 11-01 00:00:00 long after", "2027-11-01 00:00:00"),
        ("(EngineCore_DP0 pid=7) WARNING 01-02 00:00:00 b", "2027-01-02 00:00:00"),
    ],
)
def test_the_time_of_a_line_is_that_of_vllms_logger(line: str, when: str) -> None:
    assert stamp(line, boot_time(BOOT)) == at(when)


@pytest.mark.parametrize("line", ["Traceback", "INFO 13-40 22:57:01 x", "INFO up", ""])
def test_a_line_without_a_time_has_none(line: str) -> None:
    assert stamp(line, boot_time(BOOT)) is None


@pytest.mark.cases(104)
def test_ranks_are_merged_by_the_heads_clock_and_tracebacks_stay_together(
    boot: Path,
) -> None:
    (boot / "rank-0.log").write_text(
        "starting\nINFO 11-30 22:57:00 a\nINFO 11-30 22:57:04 d\nTraceback:\n  e\n"
    )
    # The other node's clock is ten minutes ahead.
    (boot / "rank-1.log").write_text(
        "INFO 11-30 23:07:02 b\n  c\nINFO 11-30 23:07:05 f\n"
    )
    clock_file(boot, 1).write_text("600.0")
    tails = [Tail(boot / f"rank-{rank}.log") for rank in (0, 1)]
    lines = [one.shown().split()[-1] for one in merge(t.fresh() for t in tails)]
    assert lines == ["starting", "a", "b", "c", "d", "Traceback:", "e", "f"]
    assert [list(t.fresh()) for t in tails] == [[], []]


def test_a_log_that_grows_or_is_cut_is_read_on(boot: Path) -> None:
    log = boot / "rank-0.log"
    log.write_text("one\ntw")
    tail = Tail(log)
    assert [one.text for one in tail.fresh()] == ["one"]
    log.write_text("one\ntwo\n")
    assert [one.text for one in tail.fresh()] == ["two"]
    log.write_text("x\n")
    assert [one.text for one in tail.fresh()] == ["x"]


def test_since_is_a_span_a_time_or_a_date() -> None:
    now = at("2026-11-30 23:00:00")
    assert parse_since("10m", now) == now - 600
    assert parse_since("1.5 h", now) == now - 5400
    assert parse_since("22:57", now) == at("2026-11-30 22:57:00")
    assert parse_since("2026-11-29 01:02:03", now) == at("2026-11-29 01:02:03")
    with pytest.raises(ConfigError, match="is no time"):
        parse_since("yesterday", now)
