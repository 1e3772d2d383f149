"""What a start will do, decided before anything is done (pure): kit -> Plan."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from glmspark.boot import Trial
from glmspark.ranks import EnginePaths, RankSpec, render_ranks
from glmspark.runner import quote
from glmspark.schema import Kit, Runtime

if TYPE_CHECKING:
    from glmspark.serving.kit import KitShape


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
    DRAFT = "draft"
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
    trial: Trial = field(default_factory=Trial)
    measured: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """A hash of what would run, to tell whether a running kit is this plan.

        The values of ``measured`` flags are left out: they follow from the memory that
        is available at the moment, which is never twice the same.
        """
        ranks = [_unmeasured(rank, self.measured).to_json() for rank in self.ranks]
        data = json.dumps(ranks, sort_keys=True)
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


def _unmeasured(rank: RankSpec, flags: tuple[str, ...]) -> RankSpec:
    if not flags:
        return rank
    argv = [
        "" if before in flags else word
        for before, word in zip(("", *rank.argv), rank.argv, strict=False)
    ]
    shape = {name: value for name, value in rank.shape.items() if name not in flags}
    return replace(rank, argv=tuple(argv), shape=shape)


def _check_steps(kit: Kit) -> list[Step]:
    nodes = {node.ssh: node.name for node in reversed(kit.nodes)}
    return [
        Step(Action.CHECK, name, "check the node: engine, ports, memory, stale ranks")
        for name in reversed(nodes.values())
    ]


def _trial_title(kit: Kit, trial: Trial) -> str:
    """What stands between health and the announcement, for people."""
    url = api_url(kit)
    if not trial.judges:
        return f"wait until every rank agrees and {url} answers a completion"
    shapes = f"takes {len(trial.warm_up)} warm-up shapes and " if trial.warm_up else ""
    return (
        f"wait until every rank agrees and {url} {shapes}answers the canary "
        "(words, tool, reasoning" + (", drafts)" if trial.drafts else ")")
    )


def _engine_steps(kit: Kit, program: tuple[str, ...]) -> list[Step]:
    """How the engine comes to the nodes that may lack it."""
    if kit.runtime is Runtime.OCI:
        image = kit.image.config or kit.image.archive
        detail = {"archive": kit.image.archive, "config": kit.image.config}
        title = f"load image {image}, if it is not there; nothing is pulled"
        return [Step(Action.ENGINE, node.name, title, detail) for node in kit.nodes]
    if kit.runtime is Runtime.VENV:
        return []
    from glmspark.closures import store_path  # takes long to load

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


def _launch_steps(kit: Kit, ranks: tuple[RankSpec, ...], trial: Trial) -> list[Step]:
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
    return [*launches, Step(Action.READY, head, _trial_title(kit, trial))]


def api_url(kit: Kit) -> str:
    """The base URL of the API as a client on the head would write it."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(  # noqa: S104
        kit.serve.host, kit.serve.host
    )
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"http://{host}:{kit.serve.port}/v1"


def without_verdict(plan: Plan, waive: Iterable[str]) -> Plan:
    """``plan`` with answers that only have to be there, where that is waived."""
    if "canary.answers" not in waive:
        return plan
    return replace(plan, trial=replace(plan.trial, judges=False))


def _draft_steps(
    kit: Kit, paths: EnginePaths, changes: Mapping[str, Any] | None
) -> list[Step]:
    """Three ranks: the drafter's folder with padded heads, on each node."""
    if not changes:
        return []
    detail = {"view": paths.draft, "folder": paths.padded_draft, "changes": changes}
    title = f"make the drafter's folder for {kit.topology.ranks} ranks"
    return [Step(Action.DRAFT, node.name, title, detail) for node in kit.nodes]


def _render(
    kit: Kit, paths: EnginePaths, shape: KitShape | None, *, fit: bool
) -> tuple[tuple[RankSpec, ...], Trial]:
    if shape is None:
        return render_ranks(kit, paths), Trial(judges=kit.judges_answers)
    from glmspark.serving.gpukit import rank_specs, render_kit, trial_of

    rendered = render_kit(kit, paths, shape, fit=fit)
    return rank_specs(kit, paths, rendered), trial_of(kit, rendered)


def build_plan(
    kit: Kit,
    goal: Goal,
    paths: EnginePaths,
    shape: KitShape | None = None,
    *,
    fit: bool = True,
) -> Plan:
    """The plan that brings ``kit`` to ``goal``.

    ``shape`` holds what the nodes of a GPU kit answered; ``fit`` False plans what the
    memory plan says does not fit.

    Raises:
        ConfigError: a rank cannot be rendered from what the kit says.
        PreflightError: it does not fit; says what is short and what would fit.
    """
    head, steps = kit.nodes[0].name, []
    ranks: tuple[RankSpec, ...] = ()
    trial = Trial()
    measured: tuple[str, ...] = ()
    if goal.launches:
        ranks, trial = _render(kit, paths, shape, fit=fit)
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
        if shape is not None:
            from glmspark.serving.gpukit import draft_changes, measured_flags

            measured = measured_flags(kit)
            steps += _draft_steps(kit, paths, draft_changes(kit, paths))
        if kit.needs_key:
            steps.append(
                Step(Action.KEY, head, f"read or make the API key {paths.key}")
            )
    if goal.stops:
        steps.append(
            Step(Action.STOP, head, "stop every rank and prove that it is gone")
        )
    if goal.launches:
        steps += _launch_steps(kit, ranks, trial)
    return Plan(kit.name, goal, tuple(steps), ranks, trial, measured)
