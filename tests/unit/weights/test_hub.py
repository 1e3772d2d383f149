"""What is set before huggingface_hub runs, and xet's path as far as it can be had here.

The real xet service cannot be reached in tests: what it writes is played by a stand-in.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from glmspark.errors import IntegrityError
from glmspark.weights import part, transfer
from glmspark.weights.manifest import FileEntry
from glmspark.weights.store import BlobState, Store

from tests.unit.weights.conftest import Kit, blob
from tests.unit.weights.fakehub import sha256

DATA = blob(1, 3 << 20)
ENTRY = FileEntry("big.safetensors", len(DATA), sha256(DATA))


def environment_of(kit: Kit, **env: str) -> dict[str, str]:
    """What the environment is after ``prepare`` in a fresh process."""
    code = (
        "import json, os, sys\nfrom pathlib import Path\n"
        "from glmspark.weights import hub\n"
        "hub.prepare(Path(sys.argv[1]), stall_s=30, allow_xet=True)\n"
        "print(json.dumps(dict(os.environ)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, kit.store],
        env=kit.env | env,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.cases(59)
def test_xet_keeps_no_second_copy_and_its_buffers_have_an_end(kit: Kit) -> None:
    env = environment_of(kit)
    assert env["HF_XET_CHUNK_CACHE_SIZE_BYTES"] == "0"
    assert env["HF_XET_CACHE"].startswith(str(kit.store))
    assert env["HF_XET_RECONSTRUCTION_DOWNLOAD_BUFFER_LIMIT"] == str(512 << 20)


def test_what_the_user_set_stays(kit: Kit) -> None:
    env = environment_of(
        kit,
        HF_HUB_DOWNLOAD_TIMEOUT="77",
        HF_XET_RECONSTRUCTION_DOWNLOAD_BUFFER_LIMIT="1000",
    )
    assert env["HF_HUB_DOWNLOAD_TIMEOUT"] == "77"
    assert env["HF_XET_RECONSTRUCTION_DOWNLOAD_BUFFER_LIMIT"] == "1000"


@pytest.mark.cases(57)
def test_timeouts_are_longer_than_the_librarys_ten_seconds(kit: Kit) -> None:
    assert environment_of(kit)["HF_HUB_DOWNLOAD_TIMEOUT"] == "30"


@pytest.mark.parametrize("right", [True, False])
def test_a_xet_file_is_hashed_before_it_gets_its_name(
    store: Store, monkeypatch: pytest.MonkeyPatch, right: bool
) -> None:
    from huggingface_hub import file_download

    written = DATA if right else DATA[:-1] + b"x"

    def xet_get(*, incomplete_path: Path, **_more: Any) -> None:
        incomplete_path.write_bytes(written)

    monkeypatch.setattr(file_download, "xet_get", xet_get)
    meta = SimpleNamespace(xet_file_data=object())
    with part.claimed(store, ENTRY, lambda: None) as grown:
        assert grown is not None
        transfer._transfer_xet(grown, meta, {})
        assert store.state(ENTRY.sha256) is BlobState.ABSENT
        if right:
            grown.enter(grown.check("xet"))
        else:
            with pytest.raises(IntegrityError):
                grown.check("xet")
    assert (store.state(ENTRY.sha256) is BlobState.PRESENT) is right
    assert not list(store.root.glob("partial/*.xet"))
