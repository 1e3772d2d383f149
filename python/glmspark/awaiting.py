"""Wait for a boot to serve, and say how it failed if it does not."""

from __future__ import annotations

import time
from collections.abc import Mapping

from glmspark.boot import State, read_state
from glmspark.console import Narrator
from glmspark.errors import (
    CommandError,
    ConfigError,
    ExitCode,
    GlmSparkError,
    IntegrityError,
    NotReadyError,
)
from glmspark.paths import KitPaths

PHASE_WORDS = {
    "launch": "the ranks state what they run",
    "load": "the ranks load the model and find each other",
    "canary": "the API is healthy; waiting for a first completion",
}
_ERRORS: Mapping[int, type[GlmSparkError]] = {
    ExitCode.CONFIG: ConfigError,
    ExitCode.COMMAND: CommandError,
    ExitCode.NOT_READY: NotReadyError,
    ExitCode.INTEGRITY: IntegrityError,
}


def await_serving(paths: KitPaths, boot: str, narrator: Narrator) -> State:
    """The state of ``boot`` once it serves.

    Raises:
        GlmSparkError: it failed; of the failure's own kind, with its first cause.
        CommandError: it was stopped, lost its supervisor, or another boot took over.
    """
    while True:
        state = read_state(paths.state_file)
        if state is None or state.boot != boot:
            raise CommandError(
                "another operation has taken this kit over", hint="glmspark status"
            )
        if state.phase == "serving":
            narrator.busy("")
            return state
        if state.phase == "failed" and state.failure is not None:
            raise failure_of(state, paths)
        if state.phase == "stopped" or not state.is_current:
            how = "was stopped" if state.is_final else "lost its supervisor"
            raise CommandError(
                f"the start {how}", hint=f"cat {paths.boots / boot}/*.log"
            )
        narrator.busy(PHASE_WORDS.get(state.phase, state.phase))
        time.sleep(0.1)


def failure_of(state: State, paths: KitPaths) -> GlmSparkError:
    """The error that a failed boot is."""
    failure = state.failure
    assert failure is not None  # noqa: S101 - asked for failed states only
    node = state.nodes.get(failure.rank, "") if failure.rank is not None else ""
    logs = paths.boots / state.boot
    hint = failure.hint or "read the logs"
    kind = _ERRORS.get(failure.exit_code, GlmSparkError)
    return kind(failure.message, hint=f"{hint} (logs: {logs})", node=node)
