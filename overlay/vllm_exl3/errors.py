"""The one failure of this package: a sentence, an exit code and a remedy."""

from __future__ import annotations

import sys
from collections.abc import Callable


class Exl3Error(ValueError):
    """EXL3 data or settings cannot be used as they are.

    ``str(error)`` says what was tried, seen and needed, followed by the remedy when
    there is one. ``exit_code`` follows the tool's table: 2 usage, 3 configuration,
    5 a command failed, 7 integrity.
    """

    def __init__(self, message: str, *, hint: str = "", exit_code: int = 7) -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.hint = hint
        self.exit_code = exit_code


class Exl3ConfigError(Exl3Error):
    """A setting (``config.json``, the parallel layout) is not one that works."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, exit_code=3)


def exit_status(command: Callable[[], None]) -> int:
    """0, or the code of the failure, whose one line is then on stderr.

    An ``Exl3Error`` has its own code, a file that cannot be read or written is 5 and
    Ctrl-C 130; anything else is a bug and passes through.
    """
    try:
        command()
    except Exl3Error as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"error: {where}{error.strerror or error}\n")
        return 5
    return 0
