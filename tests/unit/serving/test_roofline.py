"""The ceiling: bytes that add up, and nothing measured above it."""

from dataclasses import replace

import pytest
from glmspark.serving.kv import Drafting
from glmspark.serving.profiles import load_profile
from glmspark.serving.roofline import (
    ACCEPTED,
    LINK_BYTES_S,
    MEMORY_BYTES_S,
    ceiling,
    collectives,
    distinct_experts,
)
from glmspark.serving.topology import TOPOLOGIES, topology

GIB = 2**30


@pytest.fixture
def ask(model, draft):
    def make(name="tp2", method="dflash2", dense="bf16", context=8192):
        tokens = {"dflash2": 7, "mtp": 2, "none": 0}[method]
        drafting = Drafting(method, tokens, draft if method == "dflash2" else None)
        engine = replace(load_profile("default").engine, dense=dense)
        return ceiling(model, topology(name), engine, drafting, context)

    return make


def test_one_token_reads_eight_experts_of_each_layer(model, ask):
    reads = ask(method="none").reads
    # Half the trellis and half of one side's scales; the other side's, and mcg, whole.
    one = 3 * 4_194_304 // 2 + 2 * (8192 + 2048) + 2048 + 8192 + 3 * 4
    assert reads.by_kind["routed experts"] == pytest.approx(42 * 8 * one)
    assert reads.apart_bytes == pytest.approx(0, abs=1)


def test_parts_add_up_to_the_time(ask):
    found = ask()
    assert found.memory_ms == pytest.approx(1000 * found.reads.total / MEMORY_BYTES_S)
    step = found.memory_ms + found.latency_ms + found.link_ms
    assert found.tokens_s(1) == pytest.approx(1000 / step)
    apart = step + 1000 * found.reads.apart_bytes / MEMORY_BYTES_S
    assert found.tokens_s(2, apart=True) == pytest.approx(2000 / apart)


def test_latency_is_two_collectives_a_layer(model, ask):
    assert collectives(model) == 90
    assert ask("tp2").latency_ms == pytest.approx(90 * 0.032)
    moved = 90 * 8 * 4096 * 2  # 2 (n-1)/n is 1 at two ranks
    assert ask("tp2").link_ms == pytest.approx(1000 * moved / LINK_BYTES_S)


# tok/s with one stream at two Sparks, DFlash2 k = 7: dense, text, figure.
MEASURED = [
    ("fp8", "prose", 36.1),
    ("fp8", "structured", 83.0),
    ("exl3", "prose", 37.5),
    ("exl3", "structured", 92.3),
]


@pytest.mark.parametrize(("dense", "text", "figure"), MEASURED)
def test_nothing_measured_is_above_the_ceiling(ask, dense, text, figure):
    assert figure < ask(dense=dense).tokens_s(ACCEPTED[text])


@pytest.mark.parametrize("method", ["dflash2", "mtp", "none"])
def test_more_ranks_and_fewer_bits_allow_more(ask, method):
    by_ranks = [ask(name, method).tokens_s(1) for name in ("tp2", "tp3", "tp4")]
    assert by_ranks == sorted(by_ranks)
    by_bits = [ask("tp2", method, d).tokens_s(1) for d in ("bf16", "fp8", "exl3")]
    assert by_bits == sorted(by_bits)


def test_dense_matrices_outweigh_the_experts_of_one_token(ask):
    kinds = ask(method="none").reads.by_kind
    assert (
        kinds["KDA"] + kinds["MLA"] + kinds["shared experts"]
        > 3 * (kinds["routed experts"])
    )


def test_long_context_costs_indexer_keys_only(ask):
    near, far = ask(context=8192).reads, ask(context=1_048_576).reads
    grown = far.total - near.total
    keys = 11 * (1_048_576 - 8192) / 4 * 132
    assert grown == pytest.approx(keys)


def test_distinct_experts_are_between_eight_and_all():
    assert distinct_experts(288, 8, 1) == pytest.approx(8)
    assert 50 < distinct_experts(288, 8, 8) < 64
    assert distinct_experts(288, 8, 10_000) == pytest.approx(288)


def test_every_topology_has_one(ask):
    assert all(ask(name).tokens_s(1) > 0 for name in TOPOLOGIES)
