"""Running pip inside the environment: its log, its progress, and why it failed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from enum import Enum

from glmspark.errors import (
    CommandError,
    ConfigError,
    GlmSparkError,
    IntegrityError,
    PreflightError,
)

from venv_setup.layout import Checkout
from venv_setup.state import distributions

# Settings of a user's pip that would send packages elsewhere or refuse our own folders.
UNWANTED = (
    "PIP_DRY_RUN",
    "PIP_PREFIX",
    "PIP_REQUIRE_HASHES",
    "PIP_ROOT",
    "PIP_TARGET",
    "PYTHONHOME",
    "PYTHONPATH",
)
SETTINGS = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PIP_PROGRESS_BAR": "off",
    "PIP_USER": "0",
}
TICK_S = 0.5
PLAIN_LINE_EVERY_S = 15.0


class Cause(Enum):
    """Why pip failed; the value is what its log says then, the first match counting."""

    SPACE = ("No space left on device", "Disk quota exceeded")
    HASH = ("DO NOT MATCH THE HASHES", "Hashes are required in --require-hashes")
    DENIED = ("Permission denied", "Read-only file system")
    NETWORK = (
        "connection broken by",
        "Connection refused",
        "Temporary failure in name resolution",
        "Could not fetch URL",
        "Read timed out",
        "ProxyError",
    )
    NOT_FOUND = (
        "No matching distribution found",
        "Could not find a version",
        "ResolutionImpossible",  # where a constraint names the package too
    )
    OTHER = ("",)


def cause(log: str) -> Cause:
    """Why pip failed, from its log."""
    return next(c for c in Cause if any(sign in log for sign in c.value))


class PipError(Exception):
    """pip ended with an error; ``log`` is what it said in this run."""

    def __init__(self, what: str, status: int, log: str) -> None:
        super().__init__(f"pip ended with status {status} while installing {what}")
        self.log = log
        self.cause = cause(log)

    def explained(self, checkout: Checkout) -> GlmSparkError:
        """The error for the user, with the last lines of pip's own words."""
        tail = "\n".join(self.log.strip().splitlines()[-6:])
        kind, hint = _REMEDIES[self.cause]
        return kind(
            f"{self}; the last lines of {checkout.log}:\n{tail}",
            hint=f"{hint}; a second run goes on from here",
        )


_REMEDIES: dict[Cause, tuple[type[GlmSparkError], str]] = {
    Cause.SPACE: (PreflightError, "make room (df -h), or set TMPDIR to a roomy folder"),
    Cause.HASH: (IntegrityError, "the package source gives other files than locked"),
    Cause.DENIED: (ConfigError, "make the folder writable for this user"),
    Cause.NETWORK: (CommandError, "check the network, the proxy and `pip config list`"),
    Cause.NOT_FOUND: (CommandError, "check which sources `pip config list` names"),
    Cause.OTHER: (CommandError, "read that file"),
}


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """The environment for pip: the user's sources, none of what would misplace."""
    return {k: v for k, v in base.items() if k not in UNWANTED} | SETTINGS


def run(command: list[str], checkout: Checkout, lock: int) -> tuple[int, str]:
    """Run ``command`` with its output in the log; its status, and what it said.

    It inherits ``lock``, so that the environment stays locked until the last writer
    has ended, even when we are killed.
    """
    checkout.cache.mkdir(parents=True, exist_ok=True)
    with checkout.log.open("a+") as log:
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        start = log.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(os.environ),
            pass_fds=[lock],
        )
        with _Watch(checkout) as watch:
            _wait(process, watch)
        log.seek(start)
        return process.returncode, log.read()


def _wait(process: subprocess.Popen[bytes], watch: _Watch) -> None:
    """Wait for the end, showing progress; Ctrl-C waits for pip's own clean-up."""
    try:
        while process.poll() is None:
            time.sleep(TICK_S if watch.shown else 0.05)
            watch.show()
    except KeyboardInterrupt:
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


def install(what: str, arguments: list[str], checkout: Checkout, lock: int) -> None:
    """``pip install --no-deps`` with ``arguments``; raises PipError."""
    command = [str(checkout.python), "-I", "-u", "-m", "pip", "install", "--no-deps"]
    status, log = run([*command, *arguments], checkout, lock)
    if status != 0:
        raise PipError(what, status, log)


def say(text: str) -> None:
    """One line for the user, on stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class _Watch:
    """Shows how many packages are installed, while pip itself says nothing."""

    def __init__(self, checkout: Checkout) -> None:
        self.checkout = checkout
        self.begun = time.monotonic()
        self.shown = 0.0
        self.is_terminal = sys.stderr.isatty()

    def __enter__(self) -> _Watch:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_terminal and self.shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

    def show(self) -> None:
        """Draw the line anew on a terminal; elsewhere one line now and then."""
        now = time.monotonic()
        if self.is_terminal or now - max(self.shown, self.begun) > PLAIN_LINE_EVERY_S:
            line = self._line(now)
            sys.stderr.write(f"\r\033[K{line}" if self.is_terminal else f"{line}\n")
            sys.stderr.flush()
            self.shown = now

    def _line(self, now: float) -> str:
        count = len(distributions(self.checkout.site_packages))
        return f"  {count} packages installed, {now - self.begun:.0f} s"
