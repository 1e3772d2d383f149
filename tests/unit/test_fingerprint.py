"""Fingerprints: they follow what a rank would compute, and differences are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from glmspark import fingerprint
from glmspark.errors import IntegrityError


def model(root: Path, value: int = 1, rows: int = 2) -> Path:
    root.mkdir()
    (root / "config.json").write_text(json.dumps({"v": value}))
    header = json.dumps({"w": {"dtype": "BF16", "shape": [rows]}}).encode()
    (root / "m.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + bytes(2 * rows)
    )
    return root


def test_the_same_bytes_have_the_same_digest_wherever_they_lie(tmp_path: Path) -> None:
    one, two = model(tmp_path / "a"), model(tmp_path / "b")
    assert fingerprint.model_digest(one) == fingerprint.model_digest(two)


@pytest.mark.parametrize("change", [{"value": 2}, {"rows": 3}])
def test_config_and_tensor_headers_count(
    tmp_path: Path, change: dict[str, int]
) -> None:
    one, two = model(tmp_path / "a"), model(tmp_path / "b", **change)
    assert fingerprint.model_digest(one) != fingerprint.model_digest(two)


def test_a_file_more_counts(tmp_path: Path) -> None:
    one, two = model(tmp_path / "a"), model(tmp_path / "b")
    (two / "chat_template.jinja").write_text("x")
    assert fingerprint.model_digest(one) != fingerprint.model_digest(two)


def test_a_truncated_file_is_an_integrity_failure(tmp_path: Path) -> None:
    folder = model(tmp_path / "a")
    file = folder / "m.safetensors"
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(IntegrityError, match="is truncated") as caught:
        fingerprint.model_digest(folder)
    assert caught.value.exit_code == 7


def test_an_empty_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="holds no model"):
        fingerprint.model_digest(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"quantization_config": "exl3"}', "quantization_config is no object"),
        ('{"quantization_config": [1]}', "quantization_config is no object"),
        ("[]", "no JSON object"),
        ('{"model_type"', "not readable as JSON"),
        ("\udcff", "not readable as JSON"),
    ],
)
def test_a_damaged_config_is_named(tmp_path: Path, text: str, said: str) -> None:
    folder = model(tmp_path / "a")
    (folder / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(IntegrityError, match=said) as caught:
        fingerprint.model_digest(folder)
    assert "config.json is damaged" in str(caught.value)


def test_versions_and_plugins_are_read_without_importing(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.11/site-packages"
    for name, version, points in (
        ("vllm", "0.32.0+cpu", ""),
        ("vllm_exl3", "1.0", "[vllm.general_plugins]\nexl3 = vllm_exl3:register\n"),
        ("unrelated", "9", ""),
    ):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
        if points:
            (info / "entry_points.txt").write_text(points)
    (tmp_path / "bin").mkdir()
    folders = fingerprint.site_packages((str(tmp_path / "bin/vllm"),))
    assert fingerprint.engine_versions(folders) == {
        "version vllm": "0.32.0+cpu",
        "version vllm-exl3": "1.0",
        "plugins": "exl3=vllm_exl3:register",
    }
    assert fingerprint.site_packages(("vllm",)) == []


def test_differences_name_ranks_and_values() -> None:
    stated = {0: {"a": "1", "b": "2"}, 1: {"a": "1", "b": "3", "c": "4"}}
    assert fingerprint.differences(stated) == [
        "b differs (rank 0: 2, rank 1: 3)",
        "c differs (rank 0: (none), rank 1: 4)",
    ]
    assert fingerprint.differences({0: {"a": "1"}, 1: {"a": "1"}}) == []


def test_a_fingerprint_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    assert fingerprint.read(file) is None
    fingerprint.write(file, {"a": "1"})
    assert fingerprint.read(file) == {"a": "1"}
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".part"] == []


@pytest.mark.cases(36)
def test_another_nccl_on_one_rank_is_a_difference(tmp_path: Path) -> None:
    stated = {}
    for rank, version in enumerate(("2.30.3", "2.29.7")):
        site = tmp_path / str(rank)
        (site / f"nvidia_nccl_cu13-{version}.dist-info").mkdir(parents=True)
        stated[rank] = fingerprint.engine_versions([str(site)])
    (line,) = fingerprint.differences(stated)
    assert line.startswith("version nvidia-nccl-cu13 differs (rank 0: 2.30.3, rank 1")
