"""The speed-boost build: one address per input, resumed, and never beside a kit."""

from copy import deepcopy

import pytest
from glmspark.errors import ConfigError, PreflightError
from glmspark.serving.boost import (
    MERGE_GAP_BYTES,
    HeadState,
    Inputs,
    byte_ranges,
    check_inputs,
    check_may_build,
    remaining,
)
from glmspark.serving.profiles import load_profile

IDLE = HeadState("spark-1", serving_ranks=0, has_cuda=True, disk_free_bytes=2**40)


def inputs(**changes):
    build = deepcopy(dict(load_profile("speed-boost").build))
    build["drafter"].update(changes)
    return Inputs(build, "exllamav3 1.6.5")


def test_shipped_inputs_are_pinned():
    check_inputs(inputs())
    assert len(inputs().address) == 64


def test_address_follows_every_input():
    ways = [
        inputs(),
        inputs(bits=5),
        inputs(revision="0" * 40),
        Inputs(inputs().build, "exllamav3 1.6.6"),
    ]
    assert len({way.address for way in ways}) == len(ways)
    assert inputs().address == inputs().address


def test_order_of_keys_does_not_matter():
    build = inputs().build
    turned = {name: dict(reversed(step.items())) for name, step in build.items()}
    turned = dict(reversed(turned.items()))
    assert Inputs(turned, "exllamav3 1.6.5").address == inputs().address


@pytest.mark.parametrize("revision", ["main", "", "A" * 40])
def test_a_branch_is_refused(revision):
    with pytest.raises(ConfigError, match="not 40 hex digits"):
        check_inputs(inputs(revision=revision))


def test_the_cpu_is_refused():
    with pytest.raises(ConfigError, match="takes days"):
        check_inputs(inputs(device="cpu"))


def test_an_idle_head_may_build():
    check_may_build(IDLE, 20 * 2**30)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"serving_ranks": 1}, "1 ranks serve"),
        ({"has_cuda": False}, "on a GPU only"),
        ({"disk_free_bytes": 2**30}, "19.0 GiB are missing"),
    ],
)
def test_it_never_blocks_a_kit_nor_runs_where_it_cannot(change, words):
    head = HeadState(**{**vars(IDLE), **change})
    with pytest.raises(PreflightError, match=words) as error:
        check_may_build(head, 20 * 2**30)
    assert error.value.node == "spark-1"
    assert error.value.hint


def test_finished_tensors_are_not_made_again():
    done = {"b": "0" * 64, "c": ""}
    assert remaining(["a", "b", "c"], done) == ["a", "c"]
    assert remaining(["b"], done) == []


def test_near_ranges_merge_and_far_ones_do_not():
    far = 20 + MERGE_GAP_BYTES
    header = {
        "__metadata__": {},
        "a": {"data_offsets": [0, 10]},
        "skip": {"data_offsets": [10, 15]},
        "b": {"data_offsets": [15, 20]},
        "c": {"data_offsets": [far + 1, far + 9]},
    }
    first, second = byte_ranges(header, 100, ["c", "b", "a"])
    assert (first.start, first.end, first.tensors) == (100, 120, ("a", "b"))
    assert (second.start, second.end) == (far + 101, far + 109)


def test_a_tensor_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match="no tensor 'z'"):
        byte_ranges({}, 8, ["z"])
