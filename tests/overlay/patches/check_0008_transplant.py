"""vLLM's default loader over two tiny checkpoints."""

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

NAME = "model.language_model.layers.{}.self_attn.o_proj.weight"


def checkpoint(folder, fill, layers=(0, 1, 2), shape=(2, 4), dtype=torch.bfloat16):
    folder.mkdir()
    tensors = {
        NAME.format(n): torch.full(shape, float(fill), dtype=dtype) for n in layers
    }
    tensors["model.norm.weight"] = torch.full((2,), float(fill))
    save_file(tensors, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps({}))
    return folder


def load(folder, spec, runner="generate"):
    extra = {"transplant": spec} if spec else {}
    loader = DefaultModelLoader(
        LoadConfig(model_loader_extra_config=extra, use_tqdm_on_load=False)
    )
    config = SimpleNamespace(
        model=str(folder),
        revision=None,
        runner_type=runner,
        architectures=["Other"],
        hf_text_config=SimpleNamespace(model_type="other"),
    )
    return dict(loader.get_all_weights(config, torch.nn.Module()))


def spec(folder, layers, tensors=("self_attn.o_proj.weight",)):
    return {"folder": str(folder), "layers": list(layers), "tensors": list(tensors)}


@pytest.fixture
def base(tmp_path):
    return checkpoint(tmp_path / "base", 1)


def test_only_the_chosen_layers_change(tmp_path, base):
    donor = checkpoint(tmp_path / "donor", 9)
    got = load(base, spec(donor, [1, 2]))
    assert [got[NAME.format(n)][0, 0].item() for n in range(3)] == [1, 9, 9]
    assert got["model.norm.weight"][0].item() == 1


def test_a_donor_without_a_layer_stops_the_load(tmp_path, base):
    donor = checkpoint(tmp_path / "donor", 9, layers=(1,))
    with pytest.raises(ValueError, match=r"lacks \[\(2, 'self_attn"):
        load(base, spec(donor, [1, 2]))


def test_a_missing_folder_stops_the_load(tmp_path, base):
    with pytest.raises(ValueError, match="nowhere lacks"):
        load(base, spec(tmp_path / "nowhere", [1]))


def test_a_model_without_a_layer_stops_the_load(tmp_path, base):
    donor = checkpoint(tmp_path / "donor", 9, layers=(1, 7))
    with pytest.raises(ValueError, match=r"the model lacks \[\(7,"):
        load(base, spec(donor, [1, 7]))


@pytest.mark.parametrize("change", [{"shape": (4, 2)}, {"dtype": torch.float32}])
def test_another_shape_or_type_stops_the_load(tmp_path, base, change):
    donor = checkpoint(tmp_path / "donor", 9, **change)
    with pytest.raises(ValueError, match="the model has"):
        load(base, spec(donor, [1]))


def test_an_unknown_key_stops_the_load(tmp_path, base):
    with pytest.raises(ValueError, match="transplant needs folder, layers, tensors"):
        load(base, {**spec(base, [1]), "alpha": 3})


def test_a_separate_drafter_may_have_none(tmp_path, base):
    donor = checkpoint(tmp_path / "donor", 9, layers=(7,))
    got = load(base, spec(donor, [7]), runner="draft")
    assert got[NAME.format(1)][0, 0].item() == 1


def test_both_load_without_a_transplant(base):
    assert load(base, None)[NAME.format(1)][0, 0].item() == 1
