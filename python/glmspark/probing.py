"""What the supervisor hears of its ranks: how one ended, and what the API says."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

from glmspark import health, processes, trial
from glmspark.boot import Boot, Failure
from glmspark.errors import ExitCode
from glmspark.paths import read_key


def how_it_ended(status: int, kills: int | None = None) -> str:
    """A wait status in words; ``kills`` is the kernel's OOM counter at the start."""
    if os.WIFSIGNALED(status):
        said = f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
        # SIGKILL alone is no proof of it; the kernel's counter is a sign.
        killed = os.WTERMSIG(status) == signal.SIGKILL and kills is not None
        if killed and processes.oom_kills() > (kills or 0):
            said += f"; {processes.OUT_OF_MEMORY}"
        return said
    return f"exit status {os.WEXITSTATUS(status)}"


TRIAL_HINT = (
    "canary.log has what was asked and answered; glmspark start again; if it repeats, "
    "glmspark weights verify --deep"
)


def trial_log(folder: Path) -> Path:
    """What the engine was asked before it was announced, and what it answered."""
    return folder / "canary.log"


def with_trial_hint(failure: Failure, folder: Path) -> Failure:
    """``failure`` with where to look, if it is the verdict on the first answers."""
    is_verdict = failure.exit_code == ExitCode.INTEGRITY and trial_log(folder).exists()
    return replace(failure, hint=failure.hint or TRIAL_HINT) if is_verdict else failure


class Prober(threading.Thread):
    """Asks the API beside the watch, so that a slow answer delays no decision."""

    def __init__(self, boot: Boot, folder: Path) -> None:
        super().__init__(daemon=True)
        self._boot = boot
        self._folder = folder
        self.healthy: bool | None = None
        self.canary: str | None = None
        self.wants_canary = threading.Event()

    def run(self) -> None:
        """Probe twice a second until the process ends."""
        while True:
            self.healthy = health.is_healthy(self._boot.api)
            if self.wants_canary.is_set() and self.canary is None:
                self.canary = self._ask_canary()
            time.sleep(0.5 if self.canary is None else 1.0)

    def _ask_canary(self) -> str:
        """What is wrong with the first answers; whatever goes wrong is said."""
        api, limit_s = self._boot.api, self._boot.limits.canary_s
        try:
            key = read_key(Path(api.key_file)) if api.key_file else ""
            with trial_log(self._folder).open("a") as log:

                def note(line: str) -> None:
                    log.write(line + "\n")
                    log.flush()

                return trial.run(api, key, self._boot.trial, limit_s, note)
        except Exception as error:  # noqa: BLE001 - a thread's words reach nobody else
            return f"it could not be asked for: {error}"
