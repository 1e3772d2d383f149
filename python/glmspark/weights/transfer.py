"""One transfer: huggingface_hub brings the rest of a part, by HTTP or xet."""

from __future__ import annotations

from typing import Any

from glmspark.errors import IntegrityError
from glmspark.weights import hashing, hub
from glmspark.weights.hub import Source
from glmspark.weights.manifest import FileEntry
from glmspark.weights.part import Part


def transfer(grown: Part, source: Source, *, stall_s: int, allow_xet: bool) -> None:
    """Let huggingface_hub bring the rest of the part; raises its errors as they are."""
    from huggingface_hub.file_download import get_hf_file_metadata, hf_hub_url, http_get
    from huggingface_hub.utils._headers import build_hf_headers

    entry = grown.entry
    if entry.size == grown.tell():
        return
    url = hf_hub_url(source.repo, entry.path, revision=source.revision)
    headers = build_hf_headers(token=hub.token() or False)
    # Ranges count the bytes of the file, not of a compressed form of it.
    headers["accept-encoding"] = "identity"
    meta = get_hf_file_metadata(
        url, timeout=stall_s, headers=headers, retry_on_errors=False
    )
    _check_promise(entry, meta, source)
    if meta.xet_file_data is not None and allow_xet and hub.has_xet():
        _transfer_xet(grown, meta, headers)
        return
    if not _same_host(meta.location, url):
        headers.pop("authorization", None)  # the token is for the Hub alone
    http_get(
        meta.location,
        grown,  # type: ignore[arg-type]  # writes, seeks to 0, truncates: a Part
        resume_size=grown.tell(),
        headers=headers,
        expected_size=entry.size,
        _nb_retries=0,  # retries are counted in one place, ours
    )


def _check_promise(entry: FileEntry, meta: Any, source: Source) -> None:
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

    return urlsplit(one).netloc == urlsplit(other).netloc


def _transfer_xet(grown: Part, meta: Any, headers: dict[str, str]) -> None:
    """Xet writes the file in its own order: it is hashed afterwards, before it counts.

    Resumed by file, not by byte. Needs the real service: not tested here.
    """
    from huggingface_hub.file_download import xet_get

    scratch = grown.path.with_suffix(".xet")
    scratch.unlink(missing_ok=True)
    try:
        xet_get(
            incomplete_path=scratch,
            xet_file_data=meta.xet_file_data,
            headers=headers,
            expected_size=grown.entry.size,
            displayed_filename=grown.entry.path,
        )
        grown.restart()
        with scratch.open("rb") as file:
            while chunk := file.read(hashing.CHUNK_BYTES):
                grown.write(chunk)
    finally:
        scratch.unlink(missing_ok=True)
