"""The decisions of the watch: each phase, each failure, each time-out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from glmspark.boot import Limits
from glmspark.errors import ExitCode
from glmspark.watch import Observation, Phase, Watch

LIMITS = Limits(launch_s=10, stall_s=20, ready_s=100, canary_s=30, stop_s=5)
SAME = {0: {"model": "m"}, 1: {"model": "m"}}


def begin() -> Watch:
    return Watch.begin((1, 0), LIMITS, 0.0)


def loading() -> Watch:
    return begin().step(Observation(1, fingerprints=SAME))


def serving() -> Watch:
    watch = loading().step(Observation(2, healthy=True))
    return watch.step(Observation(3, healthy=True, canary=""))


def test_a_healthy_boot_goes_through_its_phases() -> None:
    assert begin().phase is Phase.LAUNCH
    assert loading().phase is Phase.LOAD
    assert loading().step(Observation(2, healthy=True)).phase is Phase.CANARY
    assert serving().phase is Phase.SERVING
    assert serving().step(Observation(9999, healthy=True)).phase is Phase.SERVING


@pytest.mark.cases(91)
@pytest.mark.parametrize("how", ["exit status 0", "killed by SIGKILL"])
@pytest.mark.parametrize("make", [begin, loading, serving])
def test_any_exit_is_a_failure_even_status_0(make: object, how: str) -> None:
    watch = make().step(Observation(5, exited={1: how}, healthy=True))  # type: ignore[operator]
    assert watch.phase is Phase.FAILED
    assert watch.failure is not None
    assert f"rank 1 ended while {'serving' if make is serving else 'starting'}" in (
        watch.failure.message
    )
    assert how in watch.failure.message
    assert watch.failure.exit_code == ExitCode.COMMAND


@pytest.mark.parametrize(("status", "code"), [(3, 3), (7, 7), (1, 5), (0, 5)])
def test_a_rank_that_never_became_the_engine_gives_its_own_code(
    status: int, code: int
) -> None:
    seen = Observation(5, exited={1: f"exit status {status}"})
    failure = begin().step(seen).failure
    assert failure is not None and failure.exit_code == code
    failure = loading().step(seen).failure
    assert failure is not None and failure.exit_code == ExitCode.COMMAND


def test_the_first_that_ended_is_named() -> None:
    watch = serving().step(Observation(5, exited={1: "exit status 1", 0: "x"}))
    assert watch.failure is not None and watch.failure.rank == 1


def test_a_lost_engine_process_is_a_failure_though_its_parent_lives() -> None:
    watch = serving().step(Observation(5, lost={1: "its worker"}, healthy=True))
    assert watch.failure is not None
    assert watch.failure.message == "rank 1 lost its worker while serving"


def test_stop_wins_over_everything() -> None:
    watch = serving().step(Observation(5, exited={1: "x"}, stop=True))
    assert (watch.phase, watch.failure) == (Phase.STOPPED, None)


def test_a_final_state_stays() -> None:
    stopped = serving().step(Observation(5, stop=True))
    assert stopped.step(Observation(6, exited={0: "x"})) == stopped


def test_ranks_that_state_different_things_do_not_serve() -> None:
    unlike = {0: {"model": "m", "v": "1"}, 1: {"model": "n", "v": "1"}}
    watch = begin().step(Observation(1, fingerprints=unlike))
    assert watch.failure is not None
    assert watch.failure.exit_code == ExitCode.INTEGRITY
    assert "model differs (rank 0: m, rank 1: n)" in watch.failure.message


def test_a_silent_rank_at_launch() -> None:
    watch = begin().step(Observation(9, fingerprints={0: {}}))
    assert watch.phase is Phase.LAUNCH
    watch = watch.step(Observation(11, fingerprints={0: {}}))
    assert watch.failure is not None
    assert watch.failure.message == "rank 1 has not said what it runs after 10 s"
    assert watch.failure.exit_code == ExitCode.NOT_READY


@pytest.mark.cases(73, 101)
def test_progress_extends_the_time_to_load_up_to_the_bound() -> None:
    watch = loading()
    for now in range(10, 100, 10):
        watch = watch.step(Observation(now, progress=now))
        assert watch.phase is Phase.LOAD
    watch = watch.step(Observation(102, progress=102))
    assert watch.failure is not None
    assert "not healthy after 100 s" in watch.failure.message
    assert watch.failure.exit_code == ExitCode.NOT_READY


def test_no_progress_ends_the_load() -> None:
    watch = loading().step(Observation(15, progress=7))
    watch = watch.step(Observation(34, progress=7))
    assert watch.phase is Phase.LOAD
    watch = watch.step(Observation(36, progress=7))
    assert watch.failure is not None
    assert "no progress on any rank for 21 s" in watch.failure.message


def test_a_failing_canary_is_an_integrity_failure() -> None:
    watch = loading().step(Observation(2, healthy=True))
    watch = watch.step(Observation(3, healthy=True, canary="HTTP 500: broken"))
    assert watch.failure is not None
    assert watch.failure.exit_code == ExitCode.INTEGRITY
    assert "HTTP 500: broken" in watch.failure.message


def test_a_canary_that_never_comes_back() -> None:
    watch = loading().step(Observation(2, healthy=True))
    assert watch.step(Observation(31, healthy=True)).phase is Phase.CANARY
    failure = watch.step(Observation(33, healthy=True)).failure
    assert failure is not None and failure.exit_code == ExitCode.NOT_READY


def test_an_unhealthy_engine_is_given_a_moment_not_for_ever() -> None:
    watch = serving().step(Observation(5, healthy=False))
    assert watch.phase is Phase.SERVING
    assert watch.step(Observation(6, healthy=True)).phase is Phase.SERVING
    failure = watch.step(Observation(7, healthy=False)).failure
    assert failure is not None and "dead engine" in failure.message


def test_an_api_that_cannot_be_asked_is_not_called_dead() -> None:
    watch = serving()
    assert watch.step(Observation(60, healthy=None)).phase is Phase.SERVING
    failure = watch.step(Observation(130, healthy=None)).failure
    assert failure is not None and "not answered /health for 127 s" in failure.message


def test_the_watch_is_a_value() -> None:
    watch = begin()
    assert replace(watch) == watch
