"""Environment of one rank: fabric values from its own node, the rest for all."""

from __future__ import annotations

from glmspark.fabric import network_env
from glmspark.serving.kit import NodeShape, Serving
from glmspark.serving.topology import Topology

# Values that shape captured graphs or collective calls: equal on every rank.
COMMON = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # Kernels that a first request compiles must not outlast the default 300 s.
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1800",
    "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
    "TORCH_CUDA_ARCH_LIST": "12.1a",
    "FLASHINFER_CUDA_ARCH_LIST": "12.1a",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "NCCL_NET_PLUGIN": "none",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_IB_MERGE_NICS": "0",
    "NCCL_IGNORE_CPU_AFFINITY": "1",
    "NCCL_DEBUG": "WARN",
}

# Three and four ranks reach each peer over another port and subnet. The buffer caps
# keep 512 connections from pinning 9 MiB each (public recipe, TP3).
MESH = {
    "NCCL_CROSS_NIC": "1",
    "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_BUFFSIZE": "1048576",
    "NCCL_LL128_BUFFSIZE": "262144",
    "NCCL_PROTO": "^LL128",
    "NCCL_MIN_NCHANNELS": "8",
    "NCCL_MAX_NCHANNELS": "8",
}


def _topology_env(topo: Topology, node: NodeShape) -> dict[str, str]:
    if topo.ranks == 2:
        return {"NCCL_CROSS_NIC": "0"}
    if topo.ring:
        prefix = str(node.subnet_bits)
        return {**MESH, "NCCL_ALGO": "Ring", "NCCL_IB_SUBNET_PREFIX_LEN": prefix}
    return dict(MESH)


def _cache_env(cache_dir: str) -> dict[str, str]:
    return {
        "VLLM_CACHE_ROOT": f"{cache_dir}/vllm",
        "TRITON_CACHE_DIR": f"{cache_dir}/triton",
        "TILELANG_CACHE_DIR": f"{cache_dir}/tilelang",
        "FLASHINFER_WORKSPACE_BASE": f"{cache_dir}/flashinfer",
        "DG_JIT_CACHE_DIR": f"{cache_dir}/deep_gemm",
        "CUDA_CACHE_PATH": f"{cache_dir}/cuda",
    }


# Patched at build (overlay/vllm): PDL off on SM12x until it was compared on hardware,
# idle readers that sleep instead of burning the power budget of the shared die, and
# stop strings that do not end a request inside its reasoning.
PATCHED = {
    "GLMSPARK_SM12X_PDL": "0",
    "GLMSPARK_SPIN_MS": "16",
    "GLMSPARK_STOPS_AFTER_REASONING": "1",
}

# Named so that a test can tell them from values that must agree.
PER_NODE = frozenset(
    {
        "NCCL_SOCKET_IFNAME",
        "GLOO_SOCKET_IFNAME",
        "NCCL_IB_HCA",
        "NCCL_IB_GID_INDEX",
        "VLLM_HOST_IP",
    }
)


def rank_environment(
    topo: Topology, node: NodeShape, serving: Serving, *, dense: str
) -> dict[str, str]:
    """The environment of the rank on ``node``, without secrets.

    Everything outside :data:`PER_NODE` is the same on every rank.
    """
    return {
        **COMMON,
        **_topology_env(topo, node),
        **_cache_env(serving.cache_dir),
        **PATCHED,
        "GLMSPARK_DENSE": dense,
        "VLLM_PLUGINS": ",".join(serving.plugins),
        **network_env(
            node.meeting_netdev, node.meeting_address, node.hcas, node.gid_index
        ),
    }
