"""The tiny model: the same bytes every time, whole or made again."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from glmspark.loopback import folder, model, tensors, tokenizer

# Of model.safetensors. A change of any bit of the weights is meant, or is a bug.
WEIGHTS_SHA256 = "868aa3a21fce070559f57dc0826f8a157ffdce374afd5cb9650e66f8ffec4854"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> folder.GeneratedModel:
    return model.build_tiny_model(tmp_path_factory.mktemp("kit") / "model")


def test_two_builds_are_the_same_bytes(
    built: folder.GeneratedModel, tmp_path: Path
) -> None:
    again = model.build_tiny_model(tmp_path / "model")
    assert again.files == built.files
    assert again.content_hash == built.content_hash
    (weights,) = [f for f in built.files if f.path == "model.safetensors"]
    assert weights.sha256 == WEIGHTS_SHA256


def test_the_manifest_is_true(built: folder.GeneratedModel) -> None:
    names = {entry["path"] for entry in built.manifest()}
    assert names | {folder.MANIFEST} == {p.name for p in built.path.iterdir()}
    for entry in built.manifest():
        assert (built.path / str(entry["path"])).stat().st_size == entry["size"]


def test_neither_torch_nor_transformers_is_imported(tmp_path: Path) -> None:
    probe = (
        "import sys; from pathlib import Path\n"
        "from glmspark.loopback.model import build_tiny_model\n"
        "build_tiny_model(Path(sys.argv[1]))\n"
        "loaded = {'torch', 'transformers', 'tokenizers'} & set(sys.modules)\n"
        "sys.exit(f'imported {loaded}' if loaded else 0)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(model.__file__).parents[2])}
    subprocess.run(
        [sys.executable, "-c", probe, str(tmp_path / "model")],
        env=environment,
        check=True,
        timeout=60,
    )


# --- the folder ----------------------------------------------------------------------


def files() -> dict[str, bytes]:
    return {"a.json": b"{}", "b.bin": bytes(100)}


def test_a_whole_folder_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "new" / "model"
    first = folder.ensure(target, "recipe", files)

    def make_again() -> dict[str, bytes]:
        pytest.fail("a whole folder was made again")

    assert folder.ensure(target, "recipe", make_again) == first
    assert [f.path for f in first.files] == ["a.json", "b.bin"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: (d / "b.bin").unlink(),
        lambda d: (d / "b.bin").write_bytes(bytes(99)),
        lambda d: (d / "b.bin").write_bytes(b"x" * 100),
        lambda d: (d / folder.MANIFEST).write_text('{"recipe": "recipe", "files'),
        lambda d: (d / folder.MANIFEST).write_text("[]"),
    ],
    ids=[
        "file lost",
        "file cut off",
        "byte changed",
        "manifest cut off",
        "no manifest",
    ],
)
def test_a_damaged_folder_is_made_again(tmp_path: Path, damage) -> None:
    target = tmp_path / "model"
    first = folder.ensure(target, "recipe", files)
    damage(target)
    assert folder.ensure(target, "recipe", files) == first
    assert (target / "b.bin").read_bytes() == bytes(100)


def test_another_recipe_replaces_the_folder_whole(tmp_path: Path) -> None:
    target = tmp_path / "model"
    folder.ensure(target, "recipe", files)
    other = folder.ensure(target, "other", lambda: {"c.json": b"1"})
    assert sorted(p.name for p in target.iterdir()) == ["c.json", folder.MANIFEST]
    assert [f.path for f in other.files] == ["c.json"]


def test_a_builder_that_fails_changes_nothing(tmp_path: Path) -> None:
    target = tmp_path / "model"
    first = folder.ensure(target, "recipe", files)

    def fail() -> dict[str, bytes]:
        raise MemoryError

    with pytest.raises(MemoryError):
        folder.ensure(target, "other", fail)
    assert folder.ensure(target, "recipe", fail) == first


def test_what_a_cut_off_run_left_beside_is_no_obstacle(tmp_path: Path) -> None:
    for rest in (".model.draft", ".model.old"):
        (tmp_path / rest).mkdir()
        (tmp_path / rest / "a.json").write_bytes(b"half")
    folder.ensure(tmp_path / "model", "recipe", files)
    assert {p.name for p in tmp_path.iterdir()} - {"home"} == {"model", ".model.lock"}


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "thesis.txt").write_text("years")
    with pytest.raises(FileExistsError, match="glmspark did not make"):
        folder.ensure(target, "recipe", files)
    assert (target / "thesis.txt").read_text() == "years"


def test_two_callers_at_once_make_it_once(tmp_path: Path) -> None:
    made = []
    inside = threading.Event()

    def slowly() -> dict[str, bytes]:
        made.append(1)
        inside.wait(1)
        return files()

    def call() -> None:
        folder.ensure(tmp_path / "model", "recipe", slowly)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.set()
    for thread in threads:
        thread.join(10)
    assert made == [1]


# --- config, shapes, weights ---------------------------------------------------------


def test_the_config_says_what_the_engine_must_load(
    built: folder.GeneratedModel,
) -> None:
    config = json.loads((built.path / "config.json").read_text())
    expected = {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "hidden_size": 256,
        "num_hidden_layers": 3,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 256,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 512,
        "num_nextn_predict_layers": 0,
    }
    assert config | expected == config


def test_each_of_two_ranks_keeps_whole_blocks_of_128() -> None:
    split_by_rows = ("q_proj", "gate_proj", "up_proj", "lm_head", "embed_tokens")
    split_by_columns = ("o_proj", "down_proj")
    checked = set()
    for name, (rows, columns) in model.matrices().items():
        part = name.split(".")[-2]
        if part in split_by_rows:
            assert rows % 256 == 0 and columns % 128 == 0, name
            checked.add(part)
        if part in split_by_columns:
            assert columns % 256 == 0 and rows % 128 == 0, name
            checked.add(part)
    assert checked == {*split_by_rows, *split_by_columns}


def read_safetensors(path: Path) -> dict[str, dict]:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert length % 8 == 0
    assert header.pop("__metadata__") == {"format": "pt"}
    ends = [entry["data_offsets"] for entry in header.values()]
    assert ends[-1][1] == len(content) - 8 - length
    return header


def test_the_weights_file_holds_every_tensor_once(built: folder.GeneratedModel) -> None:
    header = read_safetensors(built.path / "model.safetensors")
    shapes = {name: list(shape) for name, shape in model.matrices().items()}
    shapes |= {name: [length] for name, (length, _) in model.vectors().items()}
    assert {name: entry["shape"] for name, entry in header.items()} == shapes
    wide = {name for name, entry in header.items() if entry["dtype"] == "F32"}
    assert wide == {n for n in shapes if n.endswith("e_score_correction_bias")}
    assert len(wide) == 2


def test_the_engines_reader_reads_the_file(built: folder.GeneratedModel) -> None:
    torch_reader = pytest.importorskip("safetensors.torch", reason="needs torch")
    loaded = torch_reader.load_file(built.path / "model.safetensors")
    gate = loaded["model.layers.1.mlp.experts.7.gate_proj.weight"].float().numpy()
    assert gate.shape == (256, 256)
    assert abs(gate.mean()) < 0.01
    expected = model.scale("model.layers.1.mlp.experts.7.gate_proj.weight")
    assert gate.std() == pytest.approx(expected, rel=0.02)


def test_only_plain_text_can_be_the_greedy_answer(built: folder.GeneratedModel) -> None:
    content = model.weights()["lm_head.weight"]
    rows = np.frombuffer(content.data, "<u2").reshape(content.shape)
    silent = [not row.any() for row in rows]
    assert silent == [not tokenizer.is_plain(t) for t in tokenizer.vocabulary()]
    assert 150 < silent.count(False) < 512


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, 0x3F80),
        (-2.0, 0xC000),
        (1.00390625, 0x3F80),  # halfway, to the even one below
        (1.01171875, 0x3F82),  # halfway, to the even one above
        (1.004, 0x3F81),  # just above halfway
        (0.0, 0x0000),
    ],
)
def test_rounding_to_bfloat16_is_to_nearest_even(value: float, bits: int) -> None:
    rounded = tensors.bfloat16(np.array([value], np.float32))
    assert rounded == tensors.Tensor("BF16", (1,), struct.pack("<H", bits))


def test_random_values_have_the_asked_spread_and_differ_by_name() -> None:
    first, second = (tensors.random_values(n, (512, 256), 0.5) for n in ("a", "b"))
    assert first.std() == pytest.approx(0.5, rel=0.01)
    assert abs(first.mean()) < 0.01
    assert not np.array_equal(first, second)
    assert np.array_equal(first, tensors.random_values("a", (512, 256), 0.5))
