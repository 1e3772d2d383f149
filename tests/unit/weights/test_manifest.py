"""Manifests, and the locks that ship: the published lists, safe paths, one order."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from glmspark.errors import ConfigError
from glmspark.weights import builtin
from glmspark.weights import manifest as manifests
from glmspark.weights.manifest import FileEntry, make_manifest
from glmspark.weights.store import Store
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.weights.conftest import REPO, REV

SHA = "a" * 64


def test_the_target_lock_is_the_published_list() -> None:
    target = builtin.builtin("target")
    shards = [e for e in target.files if e.path.endswith(".safetensors")]
    assert target.repo == "brandonmusic/GLM-5.3-Flash-EXL3-4bpw"
    assert target.revision == "4739eb1bcfd478e8a32da6358908567bc3a9ac51"
    assert (len(target.files), len(shards)) == (135, 120)
    assert round(sum(e.size for e in shards) / 2**30, 2) == 163.58
    assert [m.repo for m in target.mirrors] == [
        "brandonmusic/GLM-5.3-Flash-tr3-4bpw",
        "Mia-AiLab/GLM-5.3-Flash-EXL3-TR3-4bpw",
    ]


def test_the_drafter_lock_is_the_published_list() -> None:
    drafter = builtin.builtin("drafter")
    assert drafter.ref == (
        "incoai/GLM-5.3-Flash-DFlash2@7d74cdd881ed7e32c31175984a67823127b66cfe"
    )
    assert sum(e.size for e in drafter.files if "safetensors" in e.path) == 2342169800
    assert drafter.license == "CC-BY-NC-ND-4.0"


def test_every_shipped_lock_is_in_byte_order_and_survives_a_round_trip() -> None:
    for manifest in builtin.builtins().values():
        paths = [e.path.encode() for e in manifest.files]
        assert paths == sorted(paths)
        assert manifests.from_json(manifest.to_json()) == manifest
        assert manifest.is_resolved


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../up",
        "a/../../up",
        "a//b",
        "./a",
        "a/",
        "a\nb",
        "a\0b",
        ".",
        "\udcff",
    ],
)
def test_a_path_that_leaves_the_view_is_refused(path: str) -> None:
    with pytest.raises(ConfigError):
        make_manifest(REPO, REV, [FileEntry(path, 1, SHA)])


@pytest.mark.parametrize(
    "files",
    [
        [FileEntry("a", 1, SHA), FileEntry("a", 2, SHA)],
        [FileEntry("a", 1, SHA), FileEntry("a/b", 2, SHA)],
        [FileEntry("a", -1, SHA)],
        [FileEntry("a", 1)],
        [FileEntry("a", 1, "../../../../etc/passwd")],
        [FileEntry("a", 1, SHA.upper())],
        [FileEntry("a", 1, "", "../x")],
        [FileEntry("a", 1, SHA), FileEntry("b", 2, SHA)],
        [FileEntry("a", 1.0, SHA)],  # type: ignore[arg-type]
        [FileEntry("a", True, SHA)],
    ],
)
def test_a_list_that_cannot_be_right_is_refused(files: list[FileEntry]) -> None:
    with pytest.raises(ConfigError):
        make_manifest(REPO, REV, files)


@pytest.mark.parametrize("revision", ["main", "", REV[:12], REV.upper(), REV + "0"])
def test_only_a_whole_commit_is_a_revision(revision: str) -> None:
    with pytest.raises(ConfigError):
        make_manifest(REPO, revision, [])


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"format": 2},
        {"format": 1, "repo": REPO, "files": [3]},
        {"format": 1, "repo": "../up", "revision": REV, "files": []},
        {"format": 1, "repo": "a--b/c", "revision": REV, "files": []},
        {
            "format": 1,
            "repo": REPO,
            "revision": REV,
            "files": [],
            "mirrors": [{"repo": "a/b", "revision": "main"}],
        },
    ],
)
def test_a_file_that_is_no_lock_is_a_configuration_error(data: Any) -> None:
    with pytest.raises(ConfigError):
        manifests.from_json(data)


@pytest.mark.parametrize("text", ["", "{", "\xff", "[" * 100_000, "null"])
def test_a_file_that_is_no_json_is_a_configuration_error(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "x.lock.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError):
        manifests.load(tmp_path / "x.lock.json")


@given(st.lists(st.text("abzäÄ_-.Z0", min_size=1, max_size=6), unique=True))
@pytest.mark.cases(41)
def test_order_and_digest_do_not_depend_on_where_the_list_came_from(
    names: list[str],
) -> None:
    files = [FileEntry(f"f{name}", 1, SHA) for name in names]
    shuffled = list(reversed(files))
    one, other = make_manifest(REPO, REV, files), make_manifest(REPO, REV, shuffled)
    assert one == other
    assert one.digest() == other.digest()
    assert [e.path for e in one.files] == sorted(
        (f"f{name}" for name in names), key=lambda name: name.encode()
    )


def test_the_digest_sees_every_field() -> None:
    base = make_manifest(REPO, REV, [FileEntry("a", 1, SHA)]).digest()
    for other in (FileEntry("b", 1, SHA), FileEntry("a", 2, SHA)):
        assert make_manifest(REPO, REV, [other]).digest() != base
    changed = FileEntry("a", 1, hashlib.sha256(b"").hexdigest())
    assert make_manifest(REPO, REV, [changed]).digest() != base


def test_a_word_means_one_manifest_or_none(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", create=True)
    target = builtin.builtin("target")
    for word in (
        "target",
        target.repo,
        target.slug,
        f"{target.repo}@4739eb1b",
        target.ref,
    ):
        assert builtin.select(store, word) == target
    with pytest.raises(ConfigError, match="no lock is known"):
        builtin.select(store, "incoai/GLM-5.3-Flash-DFlash2@dc77ff1c")
    entry = [FileEntry("a", 1, SHA)]
    store.register(make_manifest(REPO, REV, entry))
    store.register(make_manifest(REPO, "e" * 40, entry))
    with pytest.raises(ConfigError, match="can mean"):
        builtin.select(store, REPO)
    assert builtin.select(store, f"{REPO}@e").revision == "e" * 40
