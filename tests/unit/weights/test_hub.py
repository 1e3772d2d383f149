"""What is set before huggingface_hub runs, and xet's path as far as it can be had here.

The real xet service cannot be reached in tests: what it writes is played by a stand-in.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from glmspark.errors import IntegrityError
from glmspark.weights import locks, part, transfer, trouble
from glmspark.weights.hub import Source
from glmspark.weights.manifest import FileEntry
from glmspark.weights.store import BlobState, Store

from tests.unit.weights import fakehub
from tests.unit.weights.conftest import REPO, REV, ROOT, Kit, blob
from tests.unit.weights.fakehub import sha256

DATA = blob(1, 3 << 20)
ENTRY = FileEntry("big.safetensors", len(DATA), sha256(DATA))


@pytest.fixture
def local_hub(kit: Kit) -> Iterator[fakehub.Hub]:
    with fakehub.running(fakehub.Hub()) as running:
        kit.env["HF_ENDPOINT"] = running.url
        yield running


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
    import huggingface_hub

    written = DATA if right else DATA[:-1] + b"x"

    def download(_repo: str, path: str, *, local_dir: Path, **_more: Any) -> str:
        local_dir.mkdir()
        (local_dir / path).write_bytes(written)
        return str(local_dir / path)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with part.claimed(store, ENTRY, lambda: None) as grown:
        assert grown is not None
        transfer._transfer_xet(grown, Source("kit/model", "0" * 40))
        assert store.state(ENTRY.sha256) is BlobState.ABSENT
        if right:
            grown.enter(grown.check("xet"))
        else:
            with pytest.raises(IntegrityError):
                grown.check("xet")
    assert (store.state(ENTRY.sha256) is BlobState.PRESENT) is right
    assert not list(store.root.glob("partial/*.xet"))


def test_the_librarys_own_download_lands_in_the_part(
    kit: Kit, local_hub: fakehub.Hub, store: Store
) -> None:
    """All of xet's way but the service: the library falls back to HTTP here."""
    local_hub.add(REPO, REV, {ENTRY.path: DATA})
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from glmspark.weights import hub, part, transfer\n"
        "from glmspark.weights.manifest import FileEntry\n"
        "from glmspark.weights.store import Store\n"
        "root, path, size, sha256, repo, revision = sys.argv[1:]\n"
        "store = Store(Path(root))\n"
        "hub.prepare(store.root, stall_s=30, allow_xet=True)\n"
        "entry = FileEntry(path, int(size), sha256)\n"
        "with part.claimed(store, entry, print) as grown:\n"
        "    transfer._transfer_xet(grown, hub.Source(repo, revision))\n"
        "    grown.enter(grown.check(repo))\n"
    )
    words = [store.root, ENTRY.path, len(DATA), ENTRY.sha256, REPO, REV]
    argv = [sys.executable, "-c", code, *map(str, words)]
    subprocess.run(argv, env=kit.env, check=True, cwd=kit.tmp)
    assert store.blob_path(ENTRY.sha256).read_bytes() == DATA
    assert list((store.root / "partial").iterdir()) == []
    assert list(kit.home.rglob("*")) == []


def test_a_part_that_is_taken_over_stays_locked(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "finished"
    file.write_bytes(DATA)
    with part.claimed(store, ENTRY, lambda: None) as grown:
        assert grown is not None
        grown.take_over(file)
        other = os.open(store.part_path(ENTRY.key), os.O_RDWR)
        assert not locks.try_lock(other)
        os.close(other)
        assert grown.tell() == len(DATA)


def library_imports() -> set[tuple[str, str]]:
    """(module, name) of everything that the weights take from huggingface_hub."""
    found = set()
    for file in sorted((ROOT / "python/glmspark/weights").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                if node.module.split(".")[0] == "huggingface_hub":
                    found |= {(node.module, alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
                assert not any(name.startswith("huggingface_hub") for name in names)
    return found


def test_only_what_the_library_exports_is_used() -> None:
    imports = library_imports()
    assert ("huggingface_hub", "get_session") in imports  # the search finds something
    for module, name in imports:
        assert module in ("huggingface_hub", *_PUBLIC), f"{module}.{name}"
        exported = importlib.import_module(module)
        if module != "huggingface_hub.errors":  # it has no list: all of it is public
            assert name in exported.__all__, f"{module}.{name}"
        assert getattr(exported, name) is not None


_PUBLIC = ("huggingface_hub.utils", "huggingface_hub.errors")


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"Retry-After": "7"}, 7),
        ({"ratelimit": '"api";r=0;t=55'}, 55),
        ({"Retry-After": "Fri, 01 Jan 2027 00:00:00 GMT"}, None),
        ({}, None),
    ],
)
@pytest.mark.cases(57)
def test_a_rate_limit_says_how_long_by_either_header(
    headers: dict[str, str], wait: int | None
) -> None:
    response = httpx2.Response(429, headers=headers)
    assert trouble._retry_after(response) == wait
