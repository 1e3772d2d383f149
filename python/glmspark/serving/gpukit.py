"""From a kit of Sparks and what its nodes answered to what rank rendering takes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glmspark.boot import Trial
from glmspark.errors import ConfigError, PreflightError
from glmspark.ranks import EnginePaths, RankSpec
from glmspark.schema import Kit, Topology
from glmspark.serving.drafter import padded_draft_config
from glmspark.serving.kit import KitShape, NodeShape, Serving
from glmspark.serving.memory import GIB
from glmspark.serving.model import shipped_config
from glmspark.serving.profiles import Profile, load_profile
from glmspark.serving.render import RankCommand, Rendered, render
from glmspark.serving.topology import topology

if TYPE_CHECKING:
    from glmspark.fabric import Rail
    from glmspark.views import NodeView

# A supervised rank: its log is read while it runs, and its environment marks it as
# ours, which process titles would overwrite.
SUPERVISED = {"PYTHONUNBUFFERED": "1", "SPT_NOENV": "1"}
# Differ between ranks on purpose; everything else of the line has to agree.
OWN_FLAGS = frozenset({"--node-rank", "--headless"})


def kit_profile(kit: Kit) -> Profile:
    """The kit's profile with the values that the kit itself sets.

    Raises:
        ConfigError: there is no such profile.
    """
    profile = load_profile(kit.profile)
    given = profile.engine
    engine = replace(
        given,
        max_model_len=kit.serve.max_model_len,
        max_num_seqs=kit.serve.max_num_seqs,
        kv_gib=kit.serve.kv_cache_bytes / GIB or given.kv_gib,
        extra_args=(*given.extra_args, *kit.serve.extra_args),
    )
    return replace(profile, engine=engine)


def _node(view: NodeView, rails: Sequence[Rail]) -> NodeShape:
    from glmspark.fabric import carrier

    netdev = carrier(view.fabric, view.address)
    if netdev is None:
        raise PreflightError(
            f"no device has the fabric address {view.address}",
            hint="glmspark doctor",
            node=view.name,
        )
    first = rails[0] if rails else None
    held = first.netdev.ipv4 if first else ()
    bits = [one.prefix for one in held if first and one.address == first.address]
    memory = view.facts.memory
    return NodeShape(
        name=view.name,
        address=view.address,
        netdev=netdev.name,
        hcas=tuple(rail.hca for rail in rails),
        gid_index=first.gid if first else -1,
        mem_total_bytes=memory.get("MemTotal", 0),
        mem_available_bytes=memory.get("MemAvailable", 0),
        mem_free_bytes=memory.get("MemFree", 0),
        subnet_bits=bits[0] if bits else 24,
    )


def shape_of(kit: Kit, views: Sequence[NodeView]) -> KitShape:
    """The kit's shape from what all of its nodes answered, rank 0 first.

    Raises:
        PreflightError: a node has not answered, or the nodes share no RDMA rail.
    """
    from glmspark.checks.fabric import fabric_rails

    missing = [n.name for n in kit.nodes if n.name not in {v.name for v in views}]
    if missing:
        raise PreflightError(
            "its fabric facts are needed and it has not answered",
            hint="glmspark doctor",
            node=missing[0],
        )
    rails, _, faults = fabric_rails(kit, views)
    if faults:
        raise PreflightError(faults[0].seen, hint=faults[0].remedy, node=faults[0].node)
    order = {node.name: number for number, node in enumerate(kit.nodes)}
    ranked = sorted(views, key=lambda view: order[view.name])
    nodes = tuple(_node(view, rails.get(view.name, ())) for view in ranked)
    return KitShape(kit.topology.value, nodes)


def shape_alone(kit: Kit, rank: int, view: NodeView) -> KitShape:
    """The shape as one node sees it, for a unit that cannot ask the others.

    The others' addresses are the kit's; their devices are not needed for this rank's
    line, and their memory is taken to be like this node's. vLLM itself settles for
    the smallest KV pool.
    """
    from glmspark.fabric import own_rails

    mesh = kit.topology in {Topology.TP3, Topology.TP4_RING}
    own = _node(view, own_rails(view.fabric, view.address, mesh=mesh))
    nodes = [
        own if at == rank else replace(own, name=node.name, address=node.fabric)
        for at, node in enumerate(kit.nodes)
    ]
    return KitShape(kit.topology.value, tuple(nodes))


def _config(folder: str, shipped: str) -> Mapping[str, Any]:
    """The config.json in ``folder``, or the published one before the weights came."""
    path = Path(folder) / "config.json"
    if not folder or not path.is_file():
        return shipped_config(shipped)
    try:
        config: Mapping[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read {path}: {error}", hint="glmspark weights verify --deep"
        ) from error
    return config


def serving_of(kit: Kit, paths: EnginePaths) -> Serving:
    """What the kit serves from where; each config.json is read where it is there."""
    draft = paths.draft if kit.weights.drafter == "dflash2" else ""
    return Serving(
        model_dir=paths.model,
        draft_dir=draft,
        config=_config(paths.model, "glm-5.3-flash"),
        draft_config=_config(draft, "dflash2"),
        cache_dir=paths.cache,
        drafter=kit.weights.drafter,
        served_name=kit.serve.name,
        host=kit.serve.host,
        port=kit.serve.port,
        master_port=kit.ports.master,
        donor_dir=paths.donor,
        padded_draft_dir=paths.padded_draft,
    )


def render_kit(
    kit: Kit, paths: EnginePaths, shape: KitShape, *, fit: bool = True
) -> Rendered:
    """Every rank's line and the memory plan.

    ``fit`` False goes on where the plan says that it does not fit.

    Raises:
        ConfigError: settings, profile and topology contradict each other.
        PreflightError: it does not fit; says what is short and what would fit.
    """
    return render(shape, kit_profile(kit), serving_of(kit, paths), fit=fit)


def shared_flags(argv: Sequence[str]) -> dict[str, str]:
    """The flags of a rank's line that must be the same on every rank, with values."""
    found: dict[str, str] = {}
    flag = "model"
    for word in itertools.islice(argv, argv.index("serve") + 1, None):
        if word.startswith("--"):
            flag = word
            found[flag] = ""
        else:
            found[flag] = f"{found.get(flag, '')} {word}".strip()
    return {name: value for name, value in found.items() if name not in OWN_FLAGS}


def _spec(kit: Kit, paths: EnginePaths, command: RankCommand) -> RankSpec:
    argv = (*paths.program, *command.argv[1:])
    step_s = str(int(kit.timeouts.request_s))
    env = {
        **command.env,
        **SUPERVISED,
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": step_s,
    }
    is_head = command.rank == 0
    secrets = {"VLLM_API_KEY": paths.key} if kit.needs_key and is_head else {}
    host = kit.nodes[command.rank].ssh
    shape = shared_flags(argv)
    del shape["model"]  # stated by its contents
    return RankSpec(command.rank, command.node, host, argv, env, secrets, shape)


def measured_flags(kit: Kit) -> tuple[str, ...]:
    """The flags whose values follow from the memory that happens to be available."""
    pool = () if kit.serve.kv_cache_bytes else ("--kv-cache-memory-bytes",)
    return (*pool, "--gpu-memory-utilization")


def draft_changes(kit: Kit, paths: EnginePaths) -> dict[str, Any] | None:
    """What the drafter's config.json must say at this topology; None: what it says."""
    serving = serving_of(kit, paths)
    padded = padded_draft_config(topology(kit.topology.value), serving)
    if padded is None:
        return None
    plain = serving.draft_config
    return {key: value for key, value in padded.items() if plain.get(key) != value}


def trial_of(kit: Kit, rendered: Rendered) -> Trial:
    """What the engine is asked before it is announced."""
    from glmspark.serving.warmup import warm_up

    engine = kit_profile(kit).engine
    shapes = warm_up(engine, rendered.memory) if kit.serve.warm_up else ()
    return Trial(
        tuple(asdict(shape) for shape in shapes),
        judges=kit.judges_answers,
        drafts=kit.weights.drafter != "none",
    )


def rank_specs(
    kit: Kit, paths: EnginePaths, rendered: Rendered
) -> tuple[RankSpec, ...]:
    """The rendered lines as the ranks that a start launches, head first."""
    return tuple(_spec(kit, paths, command) for command in rendered.ranks)
