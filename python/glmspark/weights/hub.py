"""The Hub: huggingface_hub set up for the store, and its failures in words.

huggingface_hub is imported here, in ``hublock`` and in ``transfer``, and late: a
complete store needs neither the library nor a network.
"""

from __future__ import annotations

import errno
import importlib.util
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmspark.errors import CommandError, GlmSparkError, IntegrityError
from glmspark.weights.progress import Progress

# Room for xet's reassembly of one file and of all files. The library's own defaults
# grow with the machine's memory (up to 16 GiB), which the engine may be using.
# Source: xet-runtime 1.7.0, config/groups/reconstruction.rs and chunk_cache.rs.
XET_BUFFER_BYTES = 512 << 20
_XET_LIMITS = {
    "HF_XET_RECONSTRUCTION_DOWNLOAD_BUFFER_SIZE": XET_BUFFER_BYTES,
    "HF_XET_RECONSTRUCTION_DOWNLOAD_BUFFER_PERFILE_SIZE": XET_BUFFER_BYTES // 4,
    "HF_XET_RECONSTRUCTION_DOWNLOAD_BUFFER_LIMIT": XET_BUFFER_BYTES,
    "HF_XET_CHUNK_CACHE_SIZE_BYTES": 0,  # a second copy of what the store will hold
}
_MAX_WAIT_S = 60.0
_TRUE = ("1", "ON", "YES", "TRUE")  # as the library reads its variables
_QUERY = re.compile(r"\?[^\s'\"]*")


@dataclass(frozen=True)
class Source:
    """A repository at a commit, as one place to take files from."""

    repo: str
    revision: str

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision[:12]}"


def prepare(store_root: Path, *, stall_s: int, allow_xet: bool) -> None:
    """Set huggingface_hub's environment; must come before its first import.

    Nothing is written outside the store, nothing is reported home, a transfer that
    stands still for ``stall_s`` seconds is given up and taken up again.
    """
    env = os.environ
    env["HF_HUB_DISABLE_TELEMETRY"] = "1"  # its agent registry is written to HF_HOME
    env["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    env["HF_XET_CACHE"] = str(store_root / "partial" / "xet.cache")
    env.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", str(stall_s))
    env.setdefault("HF_HUB_ETAG_TIMEOUT", str(stall_s))
    for name, value in _XET_LIMITS.items():
        env.setdefault(name, str(value))
    if not allow_xet:
        env["HF_HUB_DISABLE_XET"] = "1"


def token() -> str | None:
    """The user's token (``HF_TOKEN`` or the Hub's own token file), or None."""
    from huggingface_hub import get_token

    return get_token()


def has_xet() -> bool:
    """Whether huggingface_hub can use xet: hf_xet is installed and not switched off."""
    off = os.environ.get("HF_HUB_DISABLE_XET", "").upper() in _TRUE
    return not off and importlib.util.find_spec("hf_xet") is not None


def read_timeout_s(stall_s: float) -> float:
    """Seconds without a byte that end a request; the library's own variable counts."""
    try:
        return float(os.environ["HF_HUB_DOWNLOAD_TIMEOUT"])
    except (KeyError, ValueError):
        return stall_s


def endpoint() -> str:
    """The Hub's address: ``HF_ENDPOINT`` or the public one."""
    from huggingface_hub import HfApi

    return str(HfApi().endpoint)


@contextmanager
def narrated(progress: Progress) -> Iterator[None]:
    """Let the library's warnings (waits, retries) reach the user as notes."""

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            # A signed address is a key to the file: its query is not for logs.
            text = _QUERY.sub("", record.getMessage()).strip()
            progress.note(f"hub: {text.splitlines()[0] if text else ''}")

    logger = logging.getLogger("huggingface_hub")
    handlers, propagate = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [Notes(logging.WARNING)], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagate


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
    return "the token" if token() else "a request without token"


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
                hint=f"accept them at {endpoint()}/{source.repo}, then run again",
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
            text = f"the transfer of {what} stalled: nothing came from {endpoint()}"
            return Trouble(CommandError(text, hint=again), retry=True, elsewhere=True)
        case httpx2.ConnectError():
            text = f"cannot reach {endpoint()} for {what}: {error}"
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
