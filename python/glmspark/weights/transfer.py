"""One transfer: huggingface_hub brings the rest of a part, by HTTP or xet.

Only what the library exports is used, so that its next minor release cannot break it.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from glmspark import __version__
from glmspark.errors import IntegrityError
from glmspark.weights import hub
from glmspark.weights.hub import Source
from glmspark.weights.manifest import FileEntry
from glmspark.weights.part import Part
from glmspark.weights.stall import Trickle

if TYPE_CHECKING:
    from huggingface_hub import HfFileMetadata


def transfer(grown: Part, source: Source, *, stall_s: int, allow_xet: bool) -> None:
    """Let huggingface_hub bring the rest of the part; raises its errors as they are."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    entry = grown.entry
    if entry.size == grown.tell():
        return
    url = hf_hub_url(source.repo, entry.path, revision=source.revision)
    token = hub.token() or False
    meta = get_hf_file_metadata(url, token=token, timeout=stall_s)
    _check_promise(entry, meta, source)
    if meta.xet_file_data is not None and allow_xet and hub.has_xet():
        _transfer_xet(grown, source)
        return
    # Ranges count the bytes of the file, not of a compressed form of it.
    headers = {"accept-encoding": "identity", "user-agent": f"glmspark/{__version__}"}
    if token and _same_host(meta.location, url):  # the token is for the Hub alone
        headers["authorization"] = f"Bearer {token}"
    _transfer_http(grown, meta.location, headers, stall_s)


def _transfer_http(
    grown: Part, url: str, headers: dict[str, str], stall_s: float
) -> None:
    from huggingface_hub import get_session, hf_raise_for_status

    size, start = grown.entry.size, grown.tell()
    if start:
        headers = headers | {"range": f"bytes={start}-"}
    trickle, limit = Trickle(stall_s), hub.read_timeout_s(stall_s)
    with get_session().stream("GET", url, headers=headers, timeout=limit) as response:
        hf_raise_for_status(response)
        if start and response.status_code != 206:
            grown.restart()  # the server ignores ranges and sends all of it again
        for chunk in response.iter_bytes():
            if grown.tell() + len(chunk) > size:
                raise IntegrityError(
                    f"the Hub sends more than the {size} bytes of {grown.entry.path}"
                )
            grown.write(chunk)
            trickle.feel(len(chunk))
    if grown.tell() < size:
        raise ConnectionError(f"it ended after {grown.tell()} of {size} bytes")


def _check_promise(entry: FileEntry, meta: HfFileMetadata, source: Source) -> None:
    """Stop before the first byte if the source says itself that it has other bytes."""
    etag = meta.etag or ""
    expected = entry.sha256 if len(etag) == 64 else entry.git_oid
    if expected and len(etag) in (40, 64) and etag != expected:
        raise IntegrityError(
            f"{source} says that its {entry.path} hashes to {etag}; the lock needs "
            f"{expected}"
        )


def _same_host(one: str, other: str) -> bool:
    from urllib.parse import urlsplit

    a, b = urlsplit(one), urlsplit(other)
    return (a.scheme, a.netloc) == (b.scheme, b.netloc)


def _transfer_xet(grown: Part, source: Source) -> None:
    """Xet writes the file in its own order: it is hashed afterwards, before it counts.

    Resumed by file, not by byte. Needs the real service: tests play its part.
    """
    from huggingface_hub import hf_hub_download

    scratch = grown.path.with_suffix(".xet")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        path = hf_hub_download(
            source.repo,
            grown.entry.path,
            revision=source.revision,
            local_dir=scratch,
            cache_dir=scratch,
            token=hub.token() or False,
        )
        grown.take_over(path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
