"""The tensors that we count are the checkpoint's, to the byte."""

from dataclasses import replace

import pytest
from glmspark.errors import ConfigError
from glmspark.serving.census import Kind, checkpoint_tensors, draft_tensors
from glmspark.serving.model import draft_shape, model_shape, shipped_config

# The index of Mia-AiLab/GLM-5.3-Flash-EXL3-4bpw-TensorFold: names and total_size.
NAMES = 150_226
TOTAL_BYTES = 175_622_979_576
EXPERT_FIELDS = 148_608
EXPERT_BYTES = 12_619_788
# model.safetensors of the drafter, 81 tensors, less a header of that many bytes.
DRAFTER_FILE = 2_342_169_800
DRAFTER_HEADER = 8_904


def test_names_and_bytes_are_the_index(model):
    tensors = checkpoint_tensors(model)
    assert sum(t.count for t in tensors) == NAMES
    assert sum(t.stored_bytes for t in tensors) == TOTAL_BYTES


def test_routed_experts_are_the_census(model):
    fields = [t for t in checkpoint_tensors(model) if ".experts." in t.name]
    assert sum(t.count for t in fields) == EXPERT_FIELDS
    blocks = 43 * model.experts
    assert sum(t.stored_bytes for t in fields) == blocks * EXPERT_BYTES


def test_four_bits_cost_4_0117(model):
    weights = 43 * model.experts * 3 * model.hidden * model.expert_intermediate
    fields = [t for t in checkpoint_tensors(model) if ".experts." in t.name]
    bits = 8 * sum(t.stored_bytes for t in fields) / weights
    assert bits == pytest.approx(4.0117, abs=5e-5)


def test_other_bits_change_the_trellis_only(model):
    three = checkpoint_tensors(replace(model, expert_bits=3))
    four = checkpoint_tensors(model)
    saved = sum(t.stored_bytes for t in four) - sum(t.stored_bytes for t in three)
    assert saved == 43 * model.experts * 3 * 4_194_304 // 4


def test_drafter_is_the_published_file(draft):
    tensors = draft_tensors(draft)
    total = sum(t.stored_bytes for t in tensors)
    assert total + DRAFTER_HEADER == DRAFTER_FILE
    assert sum(t.count for t in tensors) == 81
    assert {t.kind for t in tensors} == {Kind.DRAFTER}


def test_vision_is_347_tensors(model):
    vision = [t for t in checkpoint_tensors(model) if t.kind is Kind.VISION]
    assert sum(t.count for t in vision) == 347


def test_missing_field_is_named():
    config = shipped_config("glm-5.3-flash")
    del config["text_config"]["kv_lora_rank"]
    with pytest.raises(ConfigError, match="'kv_lora_rank'"):
        model_shape(config)


def test_other_drafter_is_refused():
    with pytest.raises(ConfigError, match=r"LlamaForCausalLM.*DFlash2DraftModel"):
        draft_shape({"architectures": ["LlamaForCausalLM"]})
