"""The Hub: huggingface_hub set up for the store.

huggingface_hub is imported here and in the modules beside, and late: a
complete store needs neither the library nor a network.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from glmspark.errors import ConfigError
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
    stands still for ``stall_s`` seconds is given up and taken up again. ConfigError
    for an ``HF_ENDPOINT`` that is no address.
    """
    env = os.environ
    _check_endpoint(env.get("HF_ENDPOINT", ""))
    env["HF_HUB_DISABLE_TELEMETRY"] = "1"  # its agent registry is written to HF_HOME
    env["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    env["HF_XET_CACHE"] = str(store_root / "partial" / "xet.cache")
    env.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", str(stall_s))
    env.setdefault("HF_HUB_ETAG_TIMEOUT", str(stall_s))
    for name, value in _XET_LIMITS.items():
        env.setdefault(name, str(value))
    if not allow_xet:
        env["HF_HUB_DISABLE_XET"] = "1"


def _check_endpoint(text: str) -> None:
    try:
        parts = urlsplit(text)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_address = False
    if text and not is_address:
        raise ConfigError(
            f"HF_ENDPOINT is {text!r}, which is no address of a Hub",
            hint="unset HF_ENDPOINT, or set it to one such as https://host",
        )


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
