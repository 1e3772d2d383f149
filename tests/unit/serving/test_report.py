"""The memory plan as printed: sums that a reader can check, and a refusal in words."""

import json
from dataclasses import replace

import pytest
from glmspark.serving.memory import Load, NodeMemory, memory_plan
from glmspark.serving.profiles import load_profile
from glmspark.serving.report import memory_lines, memory_values
from glmspark.serving.topology import topology

NODE = NodeMemory("spark-1", 130_663_153_664, 126_000_000_000, 10 * 2**30)


@pytest.fixture
def plan(model, draft):
    def make(available=NODE.available_bytes, **changes):
        engine = replace(load_profile("default").engine, **changes)
        node = replace(NODE, available_bytes=available)
        load = Load(engine, "dflash2", draft)
        return memory_plan(model, topology("tp2"), load, (node, node))

    return make


def test_printed_items_add_up_to_what_the_node_has(plan):
    lines = memory_lines(plan())
    end = lines.index("")
    numbers = [float(line.split()[0]) for line in lines[1:end] if "page" not in line]
    assert sum(numbers) == pytest.approx(NODE.available_bytes / 2**30, abs=0.15)


def test_every_line_of_a_rank_says_its_basis(plan):
    for line in memory_lines(plan())[1:8]:
        assert len(line) > 40


def test_small_memfree_is_said(plan):
    assert any("page cache has to be dropped" in line for line in memory_lines(plan()))


def test_what_does_not_fit_is_said(plan):
    found = plan(available=115_000_000_000, max_model_len=1_048_576)
    assert memory_lines(found)[-1].startswith("does not fit: ")
    values = memory_values(found)
    assert values["fits"] is False
    assert values["shortfall_bytes"] > 0


def test_values_are_json_and_agree_with_the_plan(plan):
    found = plan()
    values = json.loads(json.dumps(memory_values(found)))
    assert values["kv"]["block_tokens"] == 4608
    assert values["kv"]["draft_block_tokens"] == 768
    assert values["kv"]["blocks"] * values["kv"]["bytes_per_block"] == found.kv_bytes
    assert [rank["rank"] for rank in values["ranks"]] == [0, 1]
    for rank in values["ranks"]:
        items = sum(item["bytes"] for item in rank["items"])
        assert items + rank["left_for_kv_bytes"] == rank["available_bytes"]
