"""Our page arithmetic against vLLM 0.32.0's own functions, in one vLLM process."""

import itertools

import pytest
from glmspark.serving.kv import Drafting, KvKind, layout
from glmspark.serving.topology import draft_heads, topology

TOPOLOGY = ("tp2", "tp3", "tp4")
METHODS = [
    ("dflash2", 7, None),
    ("dflash2", 7, "computed"),
    ("dflash2", 7, 256),
    ("dflash2", 3, None),
    ("mtp", 2, None),
    ("mtp", 3, None),
    ("none", 0, None),
]
CASES = list(itertools.product(TOPOLOGY, METHODS, ("fp8", "auto")))
FLIGHT, POOL, LENGTH = 18_496, 14 * 2**30, 524_288
COMPUTED = {("tp2", "fp8"): 768, ("tp3", "fp8"): 832, ("tp4", "fp8"): 768}


def _drafting(draft, name, method, dtype):
    kind, tokens, block = method
    if block == "computed":
        block = COMPUTED.get((name, dtype), 256)
    return Drafting(kind, tokens, draft if kind == "dflash2" else None, block)


def _case(model, draft, name, method, dtype):
    topo = topology(name)
    drafting = _drafting(draft, name, method, dtype)
    kv = draft_heads(topo, draft)[1] // topo.ranks
    return {
        "tp": topo.ranks,
        "heads": topo.pad(model.kda_heads),
        "spec": drafting.tokens,
        "mtp": 1 if drafting.method == "mtp" else 0,
        "draft_layers": draft.layers if drafting.draft else 0,
        "draft_kv_heads": kv,
        "draft_block": drafting.block_tokens,
        "cache_dtype": dtype,
        "block": None,
        "max_model_len": LENGTH,
        "in_flight": FLIGHT,
        "kv_bytes": POOL,
    }


@pytest.fixture(scope="module")
def answers(model, draft, vllm_oracle):
    cases = [_case(model, draft, *case) for case in CASES]
    return dict(zip(CASES, vllm_oracle.ask("kv", cases), strict=True))


@pytest.mark.parametrize(
    "case", CASES, ids=lambda c: f"{c[0]}-{c[1][0]}{c[1][1:]}-{c[2]}"
)
def test_vllm_agrees(model, draft, answers, case):
    name, method, dtype = case
    kind = KvKind(counted_bytes=512 if dtype == "fp8" else 1024)
    found = layout(
        model, topology(name), _drafting(draft, name, method, dtype), kind=kind
    )
    # vLLM keeps MLA and indexer as two layers of one group.
    groups = [g.layers * (2 if g.kind == "mla" else 1) for g in found.groups]
    assert {
        "block": found.block_tokens,
        "bytes_per_block": found.bytes_per_block,
        "groups": sorted(groups),
        "blocks": found.pool_blocks(POOL),
        "per_request": found.blocks(LENGTH, FLIGHT),
        "longest": found.longest(POOL, FLIGHT, LENGTH),
    } == answers[case]
