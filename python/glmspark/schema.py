"""The settings of a kit: one typed schema that kit.toml, NixOS and --help share."""

from __future__ import annotations

import ipaddress
import os
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

# Looking for pydantic's plugins in every installed distribution takes longer than all
# else that this module does. The variable is ours alone: gone again below.
_NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
_ours = _NO_PLUGINS not in os.environ
os.environ.setdefault(_NO_PLUGINS, "__all__")

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$"
PROFILE_PATTERN = r"^([a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?|/.+\.toml)$"


class Topology(StrEnum):
    """How many nodes there are and how they are cabled."""

    LOOPBACK = "loopback"
    TP2 = "tp2"
    TP3 = "tp3"
    TP4 = "tp4"
    TP4_RING = "tp4-ring"

    @property
    def ranks(self) -> int:
        """The number of tensor-parallel ranks, one a node."""
        return {"loopback": 2, "tp2": 2, "tp3": 3}.get(self.value, 4)


class Runtime(StrEnum):
    """What brings the engine to a node."""

    NIX = "nix"
    OCI = "oci"
    VENV = "venv"


class Engine(StrEnum):
    """Which engine the ranks run."""

    VLLM_GB10 = "vllm-gb10"
    VLLM_CPU = "vllm-cpu"
    STUB = "stub"

    @property
    def uses_gpu(self) -> bool:
        """Whether GPU and RDMA facts matter to this engine."""
        return self is Engine.VLLM_GB10


class Table(BaseModel):
    """A table of kit.toml: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86400)]


def is_loopback(host: str) -> bool:
    """Whether binding to ``host`` reaches this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_address(value: str) -> str:
    try:
        ipaddress.ip_address(value)
    except ValueError as error:
        raise ValueError("it must be an IP address") from error
    return value


Address = Annotated[str, AfterValidator(_check_address)]
BindAddress = Annotated[
    str, AfterValidator(lambda v: v if v == "localhost" else _check_address(v))
]


class Node(Table):
    """One host of the kit; the first in the list is rank 0, the head."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)] = Field(
        description="Name of the node in reports and logs."
    )
    ssh: str = Field(
        default="local",
        pattern=r"^[A-Za-z0-9_.@:\[\]-]+$",
        description='ssh target (user@host or an alias), or "local" for this machine.',
    )
    fabric: Address = Field(
        description="Address of the node on the fabric, for rendezvous, NCCL, Gloo."
    )
    netdev: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_.-]{0,15}$",
        description="Netdev with the fabric address; empty: looked up at start.",
    )


class Weights(Table):
    """Where the model comes from."""

    target: str = Field(
        default="brandonmusic/GLM-5.3-Flash-EXL3-4bpw@4739eb1bcfd478e8a32da6358908567bc3a9ac51",
        min_length=1,
        description='REPOSITORY@REVISION, an absolute folder, or "loopback" for the '
        "tiny random model that is built on the spot.",
    )
    drafter: Literal["dflash2", "mtp", "none"] = Field(
        default="mtp",
        description="Speculative decoding. The DFlash2 drafter is licensed for "
        "non-commercial use only (CC BY-NC-ND 4.0), so it is never the default.",
    )
    store: str = Field(
        default="",
        description="Root of the weights store; empty: ~/.local/share/glmspark/store.",
    )
    source: Literal["store", "nfs"] = Field(
        default="store",
        description="Each node has its own store, or all mount one over NFS.",
    )


class Serve(Table):
    """The API and the limits of a request."""

    host: BindAddress = Field(
        default="127.0.0.1", description="Address that the API binds to."
    )
    port: Port = Field(default=8888, description="TCP port of the API.")
    name: str = Field(
        default="GLM-5.3-Flash-EXL3",
        min_length=1,
        max_length=96,
        pattern=r"^[A-Za-z0-9._/-]+$",
        description="Model name that clients send.",
    )
    max_model_len: int = Field(
        default=131072,
        ge=256,
        le=1048576,
        description="Longest prompt plus answer, in tokens; GPU kits: the profile's.",
    )
    max_num_seqs: int = Field(
        default=4,
        ge=1,
        le=256,
        description="Requests that run at the same time; GPU kits: the profile's.",
    )
    kv_cache_bytes: int = Field(
        default=0,
        ge=0,
        description="KV cache of each rank in bytes; 0: from the memory plan.",
    )
    extra_args: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="Further arguments of `vllm serve`, the same on every rank.",
    )
    warm_up: bool = Field(
        default=True,
        description="GPU kits: before the API is announced, send every shape that "
        "would compile in traffic.",
    )
    canary: Literal["auto", "answers", "structure"] = Field(
        default="auto",
        description="What the first completions must show. answers: that the model "
        "makes sense (words, a tool call, reasoning, accepted drafts). structure: that "
        "tokens come back. auto: answers on GPU kits, structure elsewhere.",
    )


class Auth(Table):
    """Who may use the API."""

    mode: Literal["auto", "key", "none"] = Field(
        default="auto",
        description="key: clients send a key. none: nobody asks, allowed on loopback "
        "addresses only. auto: none for the loopback kit on loopback, else key.",
    )
    key_file: str = Field(
        default="",
        description="File of the key (mode 0600); empty: made below paths.state.",
    )


class Ports(Table):
    """TCP ports that the ranks need on the fabric."""

    master: Port = Field(
        default=29555, description="Rendezvous of the ranks on the head."
    )


class Timeouts(Table):
    """How long each phase of a start may take, in seconds."""

    launch_s: Seconds = Field(
        default=60.0, description="From launch until every rank states what it runs."
    )
    stall_s: Seconds = Field(
        default=300.0, description="Longest time without any progress while loading."
    )
    ready_s: Seconds = Field(
        default=3600.0, description="Longest time until the API is healthy."
    )
    canary_s: Seconds = Field(
        default=300.0, description="Longest time for the first real completion."
    )
    stop_s: Seconds = Field(
        default=5.0, description="Grace after SIGTERM before a rank is killed."
    )
    request_s: Seconds = Field(
        default=300.0, description="Longest engine step before a request fails."
    )


class Paths(Table):
    """Folders and programs on each node."""

    state: str = Field(
        default="",
        description="State, logs and keys; empty: $XDG_STATE_HOME/glmspark.",
    )
    cache: str = Field(
        default="", description="Compile caches; empty: $XDG_CACHE_HOME/glmspark."
    )
    ssh_config: str = Field(
        default="",
        description="OpenSSH client configuration for the nodes; empty: the user's.",
    )
    engine: str = Field(
        default="",
        description="The engine's `vllm` program; empty: beside this tool, else PATH.",
    )


class Image(Table):
    """The container image of runtime oci; nothing is ever pulled."""

    archive: str = Field(
        default="",
        description="Archive of the image on the head (docker or OCI, a tar file), "
        "loaded on every node that lacks it.",
    )
    config: str = Field(
        default="",
        pattern=r"^(sha256:[0-9a-f]{64})?$",
        description="Digest of the image's config; empty: the archive's.",
    )
    tool: Literal["auto", "podman", "docker"] = Field(
        default="auto", description="Container engine; auto: podman, else docker."
    )


class Kit(Table):
    """Everything that a start needs to know."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)] = Field(
        default="spark", description="Name of the kit; state and logs are kept by it."
    )
    topology: Topology = Field(
        default=Topology.LOOPBACK,
        strict=False,
        description="Number of nodes and their cabling.",
    )
    runtime: Runtime = Field(
        default=Runtime.VENV,
        strict=False,
        description="What brings the engine to the nodes.",
    )
    engine: Engine = Field(
        default=Engine.VLLM_GB10,
        strict=False,
        description="What the ranks run; vllm-cpu and stub ask for no GPU and no RDMA.",
    )
    supervisor: Literal["auto", "systemd", "own"] = Field(
        default="auto",
        description="Who watches the ranks of a node; auto: systemd where the user has "
        "a manager, else the tool itself.",
    )
    profile: Annotated[str, Field(pattern=PROFILE_PATTERN)] = Field(
        default="default",
        description="Set of serving values (`glmspark profile list`), or the absolute "
        "path of a file of one's own that ends in .toml.",
    )
    nodes: tuple[Node, ...] = Field(
        strict=False, description="The hosts, rank 0 (the head) first."
    )
    weights: Weights = Weights()
    serve: Serve = Serve()
    auth: Auth = Auth()
    ports: Ports = Ports()
    timeouts: Timeouts = Timeouts()
    paths: Paths = Paths()
    image: Image = Image()

    @property
    def judges_answers(self) -> bool:
        """Whether a start ends where the model's answers make no sense."""
        if self.serve.canary != "auto":
            return self.serve.canary == "answers"
        return self.engine.uses_gpu

    @property
    def needs_key(self) -> bool:
        """Whether clients must send a key."""
        if self.auth.mode != "auto":
            return self.auth.mode == "key"
        local = is_loopback(self.serve.host) and self.topology is Topology.LOOPBACK
        return not local

    @model_validator(mode="after")
    def _relations(self) -> Kit:
        wanted, got = self.topology.ranks, len(self.nodes)
        if got != wanted:
            raise ValueError(
                f"nodes: topology {self.topology} has {wanted} nodes, kit names {got}"
            )
        for field in ("name", "fabric"):
            values = [getattr(node, field) for node in self.nodes]
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(
                    f"nodes: {field} {twice[0]} stands twice; "
                    f"each node has a {field} of its own"
                )
        if self.auth.mode == "none" and not is_loopback(self.serve.host):
            raise ValueError(
                f"auth: mode none with serve.host {self.serve.host} opens the API "
                "to the network; set auth.mode to key, or serve.host to 127.0.0.1"
            )
        if self.serve.port == self.ports.master:
            raise ValueError(
                f"ports: master and serve.port are both {self.serve.port}; "
                "they are two servers on the head"
            )
        if self.runtime is Runtime.VENV and self.engine is Engine.VLLM_GB10:
            raise ValueError(
                "runtime: venv brings the CPU engine only; set runtime to nix or oci, "
                "or engine to vllm-cpu"
            )
        return self


if _ours:
    del os.environ[_NO_PLUGINS]
