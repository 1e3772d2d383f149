"""The command line and environment of each rank, from the kit alone (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from glmspark.errors import ConfigError
from glmspark.schema import Engine, Kit, Node, is_loopback

# Inherited variables that would steer a rank behind the kit's back: a shell's or an
# image's NCCL pins, another launcher's rendezvous, a Python path with another vLLM.
SCRUBBED_PREFIXES = (
    "NCCL_",
    "GLOO_",
    "VLLM_",
    "PYTHON",
    "TORCH_",
    "OMP_",
    "MKL_",
    "RAY_",
    "MASTER_",
    "TP_SOCKET_",
    "GLMSPARK_",
)
SCRUBBED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


@dataclass(frozen=True)
class EnginePaths:
    """What a rank needs to find on its node.

    ``program`` is the argv prefix that stands for ``vllm``, ``model`` the folder that
    is served, ``cache`` the root of the compile caches, ``key`` the API key's file.
    For GPU kits ``draft`` is the drafter's folder, ``padded_draft`` the one that is
    made from it for three ranks, ``donor`` a transplant's second repository; "" where
    there is none.
    """

    program: tuple[str, ...]
    model: str
    cache: str
    key: str
    draft: str = ""
    padded_draft: str = ""
    donor: str = ""


@dataclass(frozen=True)
class RankSpec:
    """One rank: where it runs, what is executed, and what must agree with the others.

    ``secrets`` maps a variable's name to the file with its value. ``shape`` holds the
    arguments that shape the graphs and the collectives; every rank states them, and
    they must be equal.
    """

    rank: int
    node: str
    host: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    secrets: Mapping[str, str] = field(default_factory=dict)
    shape: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The rank as plain data; secrets stand as file names, never as values."""
        return {
            "rank": self.rank,
            "node": self.node,
            "host": self.host,
            "argv": list(self.argv),
            "env": dict(self.env),
            "secrets": dict(self.secrets),
            "shape": dict(self.shape),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> RankSpec:
        """The rank that :meth:`to_json` wrote."""
        return RankSpec(**{**data, "argv": tuple(data["argv"])})


def _shape(kit: Kit) -> dict[str, str]:
    """Arguments of ``vllm serve`` that must be the same on every rank."""
    return {
        "--served-model-name": kit.serve.name,
        "--max-model-len": str(kit.serve.max_model_len),
        "--max-num-seqs": str(kit.serve.max_num_seqs),
        "--kv-cache-memory-bytes": str(kit.serve.kv_cache_bytes),
        "--tensor-parallel-size": str(kit.topology.ranks),
        "--distributed-executor-backend": "mp",
        "--nnodes": str(kit.topology.ranks),
        "--master-addr": kit.nodes[0].fabric,
        "--master-port": str(kit.ports.master),
        # torch's default is 30 minutes; a rank that never comes should show sooner.
        "--distributed-timeout-seconds": str(int(kit.timeouts.stall_s)),
    }


def _netdev(node: Node) -> str:
    if node.netdev:
        return node.netdev
    if is_loopback(node.fabric):
        return "lo"
    raise ConfigError(
        f"node {node.name} has fabric address {node.fabric} and no netdev",
        hint=f"set netdev of node {node.name} in kit.toml to the port that carries it",
        node=node.name,
    )


def _cpu_env(kit: Kit, node: Node, paths: EnginePaths) -> dict[str, str]:
    """Environment of a CPU rank; what each is for was measured on vLLM 0.32.0."""
    return {
        # Without it a rank takes the default route's address, or 0.0.0.0 and hangs.
        "VLLM_HOST_IP": node.fabric,
        # Gloo would resolve the host name, which is 127.0.0.1 on many machines.
        "GLOO_SOCKET_IFNAME": _netdev(node),
        # One thread a rank: with more, two ranks on two cores spin against each other
        # (14 s instead of 1.5 s for 100 tokens).
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        # --enforce-eager leaves one compiled layer, which needs a C++ compiler at the
        # first request and kills the engine where there is none.
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(int(kit.timeouts.request_s)),
        "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "1",
        "VLLM_CACHE_ROOT": paths.cache,
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        # Process titles would overwrite the environment, which marks what is ours.
        "SPT_NOENV": "1",
    }


def _render_cpu(kit: Kit, rank: int, paths: EnginePaths) -> RankSpec:
    node, shape = kit.nodes[rank], _shape(kit)
    argv = [*paths.program, "serve", paths.model]
    for name, value in shape.items():
        argv += [name, value]
    argv += ["--enforce-eager", *kit.serve.extra_args, "--node-rank", str(rank)]
    if rank == 0:
        argv += ["--host", kit.serve.host, "--port", str(kit.serve.port)]
        # The supervisor asks every second; the log is for what clients do.
        argv += ["--disable-access-log-for-endpoints", "/health"]
    else:
        argv += ["--headless"]
    shape["--enforce-eager"] = ""
    shape["extra"] = " ".join(kit.serve.extra_args)
    secrets = {"VLLM_API_KEY": paths.key} if kit.needs_key and rank == 0 else {}
    env = _cpu_env(kit, node, paths)
    return RankSpec(rank, node.name, node.ssh, tuple(argv), env, secrets, shape)


def render_ranks(kit: Kit, paths: EnginePaths) -> tuple[RankSpec, ...]:
    """Every rank of ``kit``, rank 0 (the head) first.

    Raises:
        ConfigError: a node's netdev is not known, or the engine is not for this kit.
    """
    if kit.engine is Engine.VLLM_GB10:
        raise ConfigError(
            "engine vllm-gb10 cannot be rendered without the fabric facts of the nodes",
            hint="set engine to vllm-cpu for a kit without GPUs",
        )
    return tuple(_render_cpu(kit, rank, paths) for rank in range(len(kit.nodes)))


def scrub(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` without what would steer a rank; secrets of the Hub go as well."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(SCRUBBED_PREFIXES) and name not in SCRUBBED
    }
