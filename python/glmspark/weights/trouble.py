"""What a failed transfer means: words for the user, and what is worth trying."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Any

from glmspark.errors import CommandError, GlmSparkError, IntegrityError
from glmspark.weights import hub
from glmspark.weights.hub import Source

_MAX_WAIT_S = 60.0


@dataclass(frozen=True)
class Trouble:
    """A failed transfer: what to tell the user, and what is worth trying.

    ``retry``: the same request may work later, after ``wait_s`` if that is set.
    ``elsewhere``: a mirror may have the file. ``restart``: drop the part first.
    """

    error: GlmSparkError
    retry: bool = False
    elsewhere: bool = False
    restart: bool = False
    wait_s: float | None = None


def _has_token() -> str:
    return "the token" if hub.token() else "a request without token"


def _words_401(what: str, response: Any) -> Trouble:
    code = response.headers.get("X-Error-Code", "")
    if code == "GatedRepo":
        seen = f"it is gated and {_has_token()} was not accepted (401)"
    else:
        seen = (
            f"{_has_token()} was not accepted (401): the repository is private, gated, "
            "or does not exist"
        )
    return Trouble(
        CommandError(
            f"the Hub refused {what}: {seen}", hint="set HF_TOKEN, or: hf auth login"
        ),
        elsewhere=True,
    )


def _words_403(what: str, source: Source, response: Any) -> Trouble:
    if response.headers.get("X-Error-Code", "") == "GatedRepo":
        return Trouble(
            CommandError(
                f"the Hub refused {what}: {_has_token()} is known, but the terms of "
                f"{source.repo} were not accepted with its account (403)",
                hint=f"accept them at {hub.endpoint()}/{source.repo}, then run again",
            ),
            elsewhere=True,
        )
    # A signed address that has run out is a 403 too: asking anew gives a fresh one.
    return Trouble(
        CommandError(
            f"the Hub refused {what}: {_has_token()} may not read it (403)",
            hint="give the token read access to this repository",
        ),
        retry=True,
        elsewhere=True,
    )


def _words_404(what: str, source: Source, response: Any) -> Trouble:
    code = response.headers.get("X-Error-Code", "")
    lacks = {
        "RepoNotFound": f"the repository {source.repo} does not exist, or is private",
        "RevisionNotFound": f"{source.repo} has no revision {source.revision}",
        "EntryNotFound": f"{source} has no such file",
    }.get(code, "it is not there")
    return Trouble(
        CommandError(f"the Hub does not have {what}: {lacks} (404)"), elsewhere=True
    )


def _retry_after(response: Any) -> float | None:
    """Seconds that the server asks to wait, by either of the headers for that."""
    # The library exports it by name only, which mypy does not see.
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        parse_ratelimit_headers,
    )

    value = response.headers.get("Retry-After", "")
    if value.isdigit():
        return float(value)
    limits = parse_ratelimit_headers(response.headers)
    return float(limits.reset_in_seconds) if limits is not None else None


def _words_status(what: str, source: Source, response: Any) -> Trouble:
    status = response.status_code
    match status:
        case 401:
            return _words_401(what, response)
        case 403:
            return _words_403(what, source, response)
        case 404:
            return _words_404(what, source, response)
        case 416:
            return Trouble(
                CommandError(
                    f"the Hub has less of {what} than the part that was fetched (416)"
                ),
                retry=True,
                restart=True,
            )
        case 429:
            wait = _retry_after(response)
            asked = f"; it asks to wait {wait:.0f} s" if wait else ""
            hint = "wait, or set HF_TOKEN: limits are higher with one"
            return Trouble(
                CommandError(
                    f"the Hub limits the rate of requests (429) for {what}{asked}",
                    hint=hint,
                ),
                retry=True,
                wait_s=wait,
            )
    return Trouble(
        CommandError(
            f"the Hub failed on {what} with status {status}",
            hint="a fault of the service: run again later; what arrived is kept",
        ),
        retry=status >= 500 or status == 408,
        elsewhere=True,
        wait_s=_retry_after(response),
    )


def explain(  # noqa: PLR0911 - a table of errors
    error: BaseException, what: str, source: Source
) -> Trouble:
    """What ``error``, raised while ``what`` was taken from ``source``, means."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    again = "run again: what arrived is kept"
    match error:
        case IntegrityError():
            return Trouble(error, retry=True, elsewhere=True, restart=True)
        case GlmSparkError():
            return Trouble(error)
        case OfflineModeIsEnabled():
            text = f"{what} is missing and HF_HUB_OFFLINE forbids to fetch it"
            return Trouble(CommandError(text, hint="unset HF_HUB_OFFLINE"))
        case HfHubHTTPError():
            return _words_status(what, source, error.response)
        case httpx2.TimeoutException():
            text = f"the transfer of {what} stalled: nothing came from {hub.endpoint()}"
            return Trouble(CommandError(text, hint=again), retry=True, elsewhere=True)
        case httpx2.ConnectError():
            text = f"cannot reach {hub.endpoint()} for {what}: {error}"
            hint = "check network and HF_ENDPOINT; a bundle needs none (weights apply)"
            return Trouble(CommandError(text, hint=hint), retry=True)
        case httpx2.HTTPError():
            text = f"the connection broke during {what}: {type(error).__name__}"
            return Trouble(CommandError(text, hint=again), retry=True, elsewhere=True)
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return Trouble(CommandError(f"the disk is full at {what}", hint=again))
        case TimeoutError():
            text = f"the transfer of {what} stalled: it trickled, {error}"
            return Trouble(CommandError(text, hint=again), retry=True, elsewhere=True)
        case ConnectionError():
            text = f"the Hub closed {what} before its end: {error}"
            return Trouble(CommandError(text, hint=again), retry=True, elsewhere=True)
        case OSError():
            return Trouble(CommandError(f"{what}: {error}", hint=again), retry=True)
    raise error


def transfer_errors() -> tuple[type[Exception], ...]:
    """Everything that a transfer may raise and ``explain`` understands."""
    import httpx2

    return (OSError, httpx2.HTTPError, GlmSparkError)


def backoff_s(failures: int, asked_s: float | None) -> float:
    """Seconds to wait after ``failures`` in a row; what the server asked for counts."""
    if asked_s is not None:
        return min(asked_s, 10 * _MAX_WAIT_S)
    return min(2.0 ** (failures - 1), _MAX_WAIT_S)
