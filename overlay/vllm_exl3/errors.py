"""The one failure of this package: a sentence, an exit code and a remedy."""

from __future__ import annotations


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
