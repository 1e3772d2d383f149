"""Byte ranges of files on the Hub, over huggingface_hub's own client.

Every request names the pinned commit and its answer is held against it. A range is
asked for again after a broken connection, a stall, a 5xx or a 429, a bounded number of
times; a server that ignores ranges or gives other bytes than asked for is an error.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from glmspark import __version__
from glmspark.errors import CommandError, IntegrityError
from glmspark.weights import hub, trouble
from glmspark.weights.hub import Source

# A safetensors header beyond this is none: the format's own bound.
MAX_HEADER_BYTES = 100_000_000

T = TypeVar("T")


@dataclass(frozen=True)
class Patience:
    """``attempts`` failures in a row for one range; ``stall_s`` seconds of silence."""

    attempts: int = 5
    stall_s: int = 30


@dataclass(frozen=True)
class Remote:
    """Where a file's bytes are now: address, size, and the ETag that names them."""

    location: str
    size: int
    etag: str
    headers: dict[str, str]


class Reader:
    """Reads ranges of the files of ``source``; any thread may."""

    def __init__(
        self,
        source: Source,
        patience: Patience,
        note: Callable[[str], None] = lambda _text: None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.source = source
        self.patience = patience
        self.note = note
        self.check = check  # raises where the build has to stop
        self._known: dict[str, Remote] = {}
        self._lock = threading.Lock()

    def remote(self, path: str) -> Remote:
        """Where ``path`` is; asked once, and again after a failure."""
        with self._lock:
            if path not in self._known:
                self._known[path] = self._look(path)
            return self._known[path]

    def _look(self, path: str) -> Remote:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        url = hf_hub_url(self.source.repo, path, revision=self.source.revision)
        headers = {"user-agent": f"glmspark/{__version__}"}
        if token := hub.token():
            headers["authorization"] = f"Bearer {token}"
        # Ranges count the bytes of the file, not of a compressed form of it.
        headers["accept-encoding"] = "identity"
        meta = get_hf_file_metadata(
            url,
            timeout=self.patience.stall_s,
            headers=headers,
            retry_on_errors=False,
        )
        if meta.commit_hash != self.source.revision:
            raise IntegrityError(
                f"asked for {path} of {self.source}, the Hub answers with commit "
                f"{meta.commit_hash}"
            )
        if not meta.size or not meta.etag:
            raise IntegrityError(f"the Hub gives no size or ETag for {path}")
        if urlsplit(meta.location).netloc != urlsplit(url).netloc:
            headers.pop("authorization", None)  # the token is for the Hub alone
        return Remote(meta.location, meta.size, meta.etag, headers)

    def read(self, path: str, start: int, end: int) -> bytes:
        """The bytes [start, end) of ``path``, all of them."""
        return self._again(path, lambda: self._read(path, start, end))

    def _again(self, path: str, work: Callable[[], T]) -> T:
        failures, what = 0, f"{path} of {self.source}"
        while True:
            self.check()
            try:
                return work()
            except trouble.transfer_errors() as error:
                found = trouble.explain(error, what, self.source)
                failures += 1
                with self._lock:
                    self._known.pop(path, None)  # a signed address may have run out
                if not found.retry or failures >= self.patience.attempts:
                    raise found.error from error
                wait_s = trouble.backoff_s(failures, found.wait_s)
                self.note(f"{found.error}; again in {wait_s:.0f} s")
                self._sleep(wait_s)

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.check()
            time.sleep(min(left, 0.5))

    def _read(self, path: str, start: int, end: int) -> bytes:
        from huggingface_hub import get_session, hf_raise_for_status

        remote = self.remote(path)
        if end > remote.size:
            raise IntegrityError(
                f"{path} of {self.source} has {remote.size} bytes, needed are those up "
                f"to {end}"
            )
        headers = {**remote.headers, "range": f"bytes={start}-{end - 1}"}
        stall_s = self.patience.stall_s
        with get_session().stream(
            "GET", remote.location, headers=headers, timeout=stall_s
        ) as response:
            hf_raise_for_status(response)
            _check_answer(response, path, (start, end))
            return _body(response, path, end - start)

    def text(self, path: str, most: int = MAX_HEADER_BYTES) -> bytes:
        """The whole small file ``path``; IntegrityError above ``most`` bytes."""
        size = self._again(path, lambda: self.remote(path)).size
        if size > most:
            raise IntegrityError(f"{path} of {self.source} has {size} bytes")
        return self.read(path, 0, size)

    def header(self, path: str) -> tuple[dict[str, Any], int]:
        """The safetensors header of ``path``, and where its data begins."""
        return self._again(path, lambda: self._header(path))

    def _header(self, path: str) -> tuple[dict[str, Any], int]:
        length = int.from_bytes(self._read(path, 0, 8), "little")
        if not 2 <= length <= MAX_HEADER_BYTES:
            raise IntegrityError(
                f"{path} of {self.source} has no safetensors header: its length would "
                f"be {length}"
            )
        try:
            header = json.loads(self._read(path, 8, 8 + length))
        except ValueError as error:
            raise IntegrityError(
                f"the safetensors header of {path} of {self.source} is no JSON"
            ) from error
        if not isinstance(header, dict):
            raise IntegrityError(f"{path} of {self.source} has no safetensors header")
        return header, 8 + length


def _check_answer(response: Any, path: str, span: tuple[int, int]) -> None:
    """IntegrityError unless these are the bytes that were asked for."""
    start, end = span
    told = response.headers.get("Content-Range", "")
    wanted = f"bytes {start}-{end - 1}/"
    if response.status_code == 206 and (not told or told.startswith(wanted)):
        return
    if response.status_code == 206:
        raise IntegrityError(f"asked for '{wanted}…' of {path}, the answer is '{told}'")
    raise CommandError(
        f"the server of {path} ignores ranges (status {response.status_code}); the "
        "whole file would be read for a part of it",
        hint="check HF_ENDPOINT: a mirror or proxy has to pass ranges on",
    )


def _body(response: Any, path: str, length: int) -> bytes:
    import httpx2

    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > length:
            raise IntegrityError(
                f"the server gave more of {path} than it was asked for"
            )
    if len(body) < length:
        raise httpx2.RemoteProtocolError(
            f"{len(body)} of {length} bytes of {path} came"
        )
    return bytes(body)
