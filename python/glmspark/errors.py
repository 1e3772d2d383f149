"""The failures that the tool reports on purpose, each with exit code and remedy."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process exit status means; the table in the README is this enum."""

    DONE = 0
    BUG = 1
    USAGE = 2
    CONFIG = 3
    PREFLIGHT = 4
    COMMAND = 5
    NOT_READY = 6
    INTEGRITY = 7
    INTERRUPTED = 130


class GlmSparkError(Exception):
    """A failure with a sentence for the user, an exit code, and the remedy.

    ``str(error)`` is what was tried, what was seen and what is needed, in lower
    case without a full stop. ``hint`` is one line, the command that mends it.
    ``node`` names the host where it was seen, if it was seen on one.
    """

    exit_code: ExitCode = ExitCode.BUG

    def __init__(self, message: str, *, hint: str = "", node: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.node = node


class ConfigError(GlmSparkError):
    """The settings, or the folders they name, cannot be used as they are."""

    exit_code = ExitCode.CONFIG


class PreflightError(GlmSparkError):
    """A check on some node failed; nothing has been changed."""

    exit_code = ExitCode.PREFLIGHT


class CommandError(GlmSparkError):
    """A command that the tool ran failed; the message carries its own exit status."""

    exit_code = ExitCode.COMMAND


class NotReadyError(GlmSparkError):
    """The ranks did not come to serve, or stopped serving, in time."""

    exit_code = ExitCode.NOT_READY


class IntegrityError(GlmSparkError):
    """Bytes, patches, fingerprints or answers are not what they must be."""

    exit_code = ExitCode.INTEGRITY
