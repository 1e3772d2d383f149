"""What a start will do, decided before anything is done (pure): kit -> Plan."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from glmspark.closures import store_path
from glmspark.ranks import EnginePaths, RankSpec, render_ranks
from glmspark.runner import quote
from glmspark.schema import Kit, Runtime


class Goal(StrEnum):
    """What the user asked for."""

    START = "start"
    RESTART = "restart"
    STOP = "stop"

    @property
    def stops(self) -> bool:
        """Whether running ranks are ended."""
        return self in {Goal.STOP, Goal.RESTART}

    @property
    def launches(self) -> bool:
        """Whether ranks are started."""
        return self in {Goal.START, Goal.RESTART}


class Action(StrEnum):
    """The kinds of steps; ``apply`` has one handler for each."""

    CHECK = "check"
    ENGINE = "engine"
    MODEL = "model"
    KEY = "key"
    STOP = "stop"
    LAUNCH = "launch"
    READY = "ready"


@dataclass(frozen=True)
class Step:
    """One thing to do: the action, the node, a title for people, and its details."""

    action: Action
    node: str
    title: str
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """The ordered steps and the exact ranks; what --dry-run prints and apply does."""

    kit: str
    goal: Goal
    steps: tuple[Step, ...]
    ranks: tuple[RankSpec, ...]

    @property
    def digest(self) -> str:
        """A hash of what would run, to tell whether a running kit is this plan."""
        data = json.dumps([rank.to_json() for rank in self.ranks], sort_keys=True)
        return hashlib.sha256(data.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data, secrets by file name."""
        return {
            "kit": self.kit,
            "goal": self.goal.value,
            "digest": self.digest,
            "steps": [
                {
                    "action": step.action.value,
                    "node": step.node,
                    "title": step.title,
                    **({"detail": dict(step.detail)} if step.detail else {}),
                }
                for step in self.steps
            ],
            "ranks": [rank.to_json() for rank in self.ranks],
        }

    def lines(self) -> list[str]:
        """The plan for people: numbered steps, then each rank as a command line."""
        out = [f"plan to {self.goal} kit {self.kit} ({self.digest})", ""]
        width = max((len(step.node) for step in self.steps), default=0)
        for number, step in enumerate(self.steps, start=1):
            out.append(f"{number:3}. {step.node:{width}}  {step.title}")
        for rank in self.ranks:
            out += ["", f"rank {rank.rank} on {rank.node}:"]
            out += [f"    {k}={quote([v])} \\" for k, v in sorted(rank.env.items())]
            out += [f"    {k}=*** (from {v}) \\" for k, v in rank.secrets.items()]
            out.append(f"    {quote(rank.argv)}")
        return out


def _check_steps(kit: Kit) -> list[Step]:
    nodes = {node.ssh: node.name for node in reversed(kit.nodes)}
    return [
        Step(Action.CHECK, name, "check the node: engine, ports, memory, stale ranks")
        for name in reversed(nodes.values())
    ]


def _engine_steps(kit: Kit, program: tuple[str, ...]) -> list[Step]:
    """How the engine comes to the nodes that may lack it."""
    if kit.runtime is Runtime.OCI:
        image = kit.image.config or kit.image.archive
        detail = {"archive": kit.image.archive, "config": kit.image.config}
        title = f"load image {image}, if it is not there; nothing is pulled"
        return [Step(Action.ENGINE, node.name, title, detail) for node in kit.nodes]
    if kit.runtime is Runtime.VENV:
        return []
    closure = store_path(program) or program[0]  # a start refuses what is no closure
    return [
        Step(
            Action.ENGINE,
            node.name,
            f"bring {closure} with all that it needs, if it is not there (nix copy)",
            {"closure": closure},
        )
        for node in kit.nodes
        if node.ssh != "local"
    ]


def _launch_steps(kit: Kit, ranks: tuple[RankSpec, ...]) -> list[Step]:
    head = kit.nodes[0].name
    launches = [
        Step(
            Action.LAUNCH,
            rank.node,
            f"launch rank {rank.rank}" + (" (head)" if rank.rank == 0 else ""),
            {"rank": rank.rank},
        )
        for rank in reversed(ranks)  # workers first, head last
    ]
    url = api_url(kit)
    ready = Step(
        Action.READY,
        head,
        f"wait until every rank agrees and {url} answers a completion",
    )
    return [*launches, ready]


def api_url(kit: Kit) -> str:
    """The base URL of the API as a client on the head would write it."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(  # noqa: S104
        kit.serve.host, kit.serve.host
    )
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"http://{host}:{kit.serve.port}/v1"


def build_plan(kit: Kit, goal: Goal, paths: EnginePaths) -> Plan:
    """The plan that brings ``kit`` to ``goal``.

    Raises:
        ConfigError: a rank cannot be rendered from what the kit says.
    """
    head, steps = kit.nodes[0].name, []
    ranks = render_ranks(kit, paths) if goal.launches else ()
    if goal.launches:
        steps += _check_steps(kit)
        steps += _engine_steps(kit, paths.program)
        if kit.weights.target == "loopback":
            steps.append(
                Step(
                    Action.MODEL,
                    head,
                    f"build the tiny random model in {paths.model} if it is not there",
                )
            )
        if kit.needs_key:
            steps.append(
                Step(Action.KEY, head, f"read or make the API key {paths.key}")
            )
    if goal.stops:
        steps.append(
            Step(Action.STOP, head, "stop every rank and prove that it is gone")
        )
    if goal.launches:
        steps += _launch_steps(kit, ranks)
    return Plan(kit.name, goal, tuple(steps), ranks)
