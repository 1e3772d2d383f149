"""The command line of the set-up, its lock, and where errors become exit codes."""

from __future__ import annotations

import argparse
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glmspark.errors import ConfigError, ExitCode, GlmSparkError

from venv_setup import machine, pip, steps
from venv_setup.layout import Checkout, Mode
from venv_setup.state import Action, decide


@contextmanager
def locked(checkout: Checkout) -> Iterator[int]:
    """Hold the set-up of this checkout alone; gives the lock's descriptor.

    Another run that holds it is waited for, and said.
    """
    checkout.cache.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(checkout.cache / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pip.say("another run is setting up .venv: waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def set_up(checkout: Checkout, mode: Mode) -> None:
    """Bring the environment to what ``mode`` needs; raises GlmSparkError."""
    if decide(checkout, mode) is Action.NOTHING:
        return
    machine.check_system()
    machine.check_folder(checkout.root)
    with locked(checkout) as lock:
        action = decide(checkout, mode)
        if action is Action.NOTHING:
            return
        begun = time.monotonic()
        checkout.log.unlink(missing_ok=True)
        pip.say(action.value)
        steps.apply(action, mode, checkout, lock)
        pip.say(f".venv is ready ({time.monotonic() - begun:.0f} s)")


def main(arguments: list[str]) -> int:
    """Set up ``.venv`` beside the ``python`` folder; the exit status."""
    parser = argparse.ArgumentParser(prog="bootstrap.py", description=__doc__)
    parser.add_argument("mode", type=Mode, choices=list(Mode))
    mode = parser.parse_args(arguments).mode
    root = Path(__file__).resolve().parents[2]
    try:
        set_up(Checkout(root), mode)
    except GlmSparkError as error:
        return _report(error)
    except OSError as error:  # a folder that cannot be written, a full disk
        return _report(ConfigError(f"cannot set up {root}/.venv: {error}"))
    except KeyboardInterrupt:
        pip.say("interrupted; a second run goes on from here")
        return ExitCode.INTERRUPTED
    return ExitCode.DONE


def _report(error: GlmSparkError) -> int:
    pip.say(f"error: {error}")
    if error.hint:
        pip.say(f"hint: {error.hint}")
    return error.exit_code
