"""Carry out a plan: start, stop and restart a kit. Decisions are made elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from glmspark import paddeddraft
from glmspark.awaiting import await_serving
from glmspark.backends import Backend, Launch, await_state, pick_backend
from glmspark.boost.folders import of_kit
from glmspark.boot import (
    State,
    read_state,
)
from glmspark.bringing import wanted_of
from glmspark.causes import deserves_retry
from glmspark.console import Narrator
from glmspark.doctor import Examination, asker, examine, remote_of, with_netdevs
from glmspark.ending import await_memory, boot_names, end_kit, note_taken, without_ours
from glmspark.engine import engine_paths, engine_python
from glmspark.errors import GlmSparkError, NotReadyError
from glmspark.facts import Roots, probe, read_memory
from glmspark.generations import (
    closures_of,
    read_generations,
    record,
    with_way_back,
)
from glmspark.guards import require_head, uninterrupted
from glmspark.health import is_healthy
from glmspark.hostfacts import read_store
from glmspark.imageside import ImageFacts
from glmspark.launching import make_boot, new_boot_folder
from glmspark.loading import bring_engine, end_containers, write_containers
from glmspark.locks import lock_file, operation_lock
from glmspark.nodesmemory import remembering, write_nodes_memory
from glmspark.paths import KitPaths, ensure_key, kit_paths, make_folder
from glmspark.plan import Action, Goal, Plan, Step, build_plan, without_verdict
from glmspark.preflight import (
    Finding,
    check_node,
    check_view,
    check_waivers,
    report,
    unjudged,
)
from glmspark.remoterank import end_remote, write_access
from glmspark.runner import Command, Runner, check
from glmspark.schema import Kit, Runtime
from glmspark.views import ANYTHING

if TYPE_CHECKING:
    from glmspark.serving.kit import KitShape
    from glmspark.views import NodeView


@dataclass(frozen=True)
class Outcome:
    """How an operation ended: a word for it, and the state it left."""

    word: str
    state: State | None = None
    waived: tuple[Finding, ...] = ()
    seconds: float = 0.0


class Operator:
    """Everything that an operation on one kit needs, in one place."""

    def __init__(self, kit: Kit, runner: Runner, narrator: Narrator) -> None:
        self.kit = kit
        self.configured = kit
        self.runner = runner
        self.narrator = narrator
        self.paths: KitPaths = kit_paths(kit)
        self.engine = engine_paths(kit, self.paths)
        self.waived: tuple[Finding, ...] = ()
        self.seen: Examination | None = None
        self.wanted = ANYTHING
        self.launched = False
        self.shape: KitShape | None = None
        self.brought = self.retried = False
        self.images: dict[str, ImageFacts] = {}

    @property
    def backend(self) -> Backend:
        """What keeps the supervisor alive on this machine."""
        return pick_backend(self.kit.supervisor, self.runner)

    def plan(self, goal: Goal, waive: tuple[str, ...] = ()) -> Plan:
        """The plan that this operator would carry out; GPU kits' nodes are asked.

        Raises:
            PreflightError: a node of a GPU kit does not answer, or the ranks do not
                fit.
        """
        if self.kit.engine.uses_gpu and goal.launches and self.shape is None:
            self._look()
        fit = "host.memory" not in waive
        return build_plan(self.kit, goal, self.engine, self.shape, fit=fit)

    @property
    def lock(self) -> Path:
        """Held by the one operation that changes the kit on this machine."""
        return lock_file(self.kit.name, self.kit.ports.master)

    def state(self) -> State | None:
        """What the last supervisor said, current or not."""
        return read_state(self.paths.state_file)

    def start(self, waive: tuple[str, ...] = ()) -> Outcome:
        """Bring the kit to serve, or say that it does already."""
        return self._bring_up(Goal.START, waive)

    def restart(self, waive: tuple[str, ...] = ()) -> Outcome:
        """Check everything, then stop the kit and start it anew."""
        return self._bring_up(Goal.RESTART, waive)

    def stop(self) -> Outcome:
        """End every rank of the kit and prove it; safe to repeat."""
        began_s = time.monotonic()
        if not self.paths.state.is_dir():
            return Outcome("already stopped")
        with operation_lock(self.lock, "stop"):
            ended = self._end()
        for port in (self.kit.serve.port, self.kit.ports.master):
            note_taken(port, self.narrator)
        word = "stopped" if ended else "already stopped"
        return Outcome(word, self.state(), seconds=time.monotonic() - began_s)

    def _bring_up(self, goal: Goal, waive: tuple[str, ...]) -> Outcome:
        check_waivers(waive)
        require_head(self.kit)
        of_kit(self.kit, self.paths, must_exist=True)
        self._survey(waive)
        plan = without_verdict(self.plan(goal, waive), waive)
        if "canary.answers" in waive and self.kit.judges_answers:
            self._say_waived([unjudged(self.kit.nodes[0].name)])
        began_s = time.monotonic()
        make_folder(self.paths.state, "paths.state")
        make_folder(self.paths.boots, "paths.state")
        make_folder(self.paths.cache, "paths.cache")
        try:
            with operation_lock(self.lock, goal.value):
                state = self.state()
                if state is None or not state.is_up or goal.stops:
                    self._apply(plan, waive)
                    state = None
            if state is not None:
                return self._attach(state, plan)
            return self._ready(self.state(), began_s, plan)
        except KeyboardInterrupt:
            if self.launched:  # what somebody else launched is not ours to end
                self._abandon()
            raise

    @property
    def _is_spread(self) -> bool:
        """Whether some rank runs on another machine."""
        return any(node.ssh != "local" for node in self.kit.nodes)

    def _survey(self, waive: tuple[str, ...]) -> None:
        """Look at all hosts of a spread kit; their devices are part of the plan."""
        is_alone = not (self._is_spread or self.kit.engine.uses_gpu)
        if is_alone and self.kit.runtime is Runtime.VENV:
            return
        seen = self._look(waive)
        if len(seen.views) < len(self.kit.nodes):
            report(list(seen.findings), waive)

    def _look(self, waive: tuple[str, ...] | None = None) -> Examination:
        """Look at all hosts and plan from what they say.

        ``waive`` makes a GPU kit that is not up stop at the findings, all of which
        say more than what could not be rendered for one of them.
        """
        self.narrator.busy("look at every node")
        self.seen = self._examine()
        is_strict = self.kit.engine.uses_gpu and not self._is_up
        if waive is not None and is_strict:
            report(list(self.seen.findings), waive)
        elif waive is None and self.seen.errors:
            count = len(self.seen.errors)
            self.narrator.note(f"{count} in the way of a start: glmspark doctor")
        self.assume(self.seen.views)
        return self.seen

    def assume(self, views: tuple[NodeView, ...]) -> None:
        """Plan from ``views``, without asking any node."""
        self.kit = with_netdevs(self.kit, views)
        if self.kit.engine.uses_gpu:
            from glmspark.serving.gpukit import shape_of

            self.shape = shape_of(self.kit, views)

    @property
    def _is_up(self) -> bool:
        state = self.state()
        return state is not None and state.is_up

    def _examine(self) -> Examination:
        """Ask every node; a serving kit's memory is what was there before it."""
        ask, boots = asker(self.kit, self.paths), boot_names(self.paths)
        ask = remembering(ask, self.paths)
        self.wanted = wanted_of(self.kit, self.paths, self.engine.program)
        return examine(self.kit, ask, self.engine.program, boots, wanted=self.wanted)

    def _attach(self, state: State, plan: Plan) -> Outcome:
        if state.digest != plan.digest:
            self.narrator.note(
                "it runs with other settings than now; `glmspark restart` applies them"
            )
        if state.phase == "serving":
            if not is_healthy(state.api, timeout_s=5.0):
                raise NotReadyError(
                    f"the ranks run, and {state.url} does not answer /health",
                    hint="glmspark logs; glmspark restart starts them anew",
                )
            return Outcome("already", state)
        self.narrator.note(f"a start is under way (boot {state.boot}); waiting for it")
        # Ctrl-C ends the waiting, not that start.
        found = await_serving(self.paths, state.boot, self.narrator)
        return Outcome("already", found)

    def _apply(self, plan: Plan, waive: tuple[str, ...]) -> None:
        handlers: Mapping[Action, Callable[[Step], None]] = {
            Action.CHECK: lambda step: self._check(step, waive),
            Action.ENGINE: self._bring,
            Action.MODEL: self._model,
            Action.DRAFT: self._draft,
            Action.KEY: self._key,
            Action.STOP: self._stop,
        }
        for step in plan.steps:
            if step.action in handlers:
                self.narrator.busy(step.title)
                handlers[step.action](step)
        self._launch(plan)

    def _check(self, step: Step, waive: tuple[str, ...]) -> None:
        """Check a node as it will be when the kit's own old ranks have ended."""
        if self.seen is not None:
            self._judge(report(list(self.seen.findings), waive), step.node)
            return
        facts = probe(self.paths, self.engine.program)
        facts = without_ours(facts, boot_names(self.paths))
        found = check_node(self.kit, step.node, facts)
        found += check_view(self.kit, step.node, read_store(self.paths.store))
        self._judge(report(found, waive), step.node)

    def _judge(self, waived: list[Finding], node: str) -> None:
        """Say what was waived for ``node``, and that nothing else is in the way."""
        self._say_waived([finding for finding in waived if finding.node == node])
        self.narrator.say(f"{node}: checked, nothing in the way")

    def _say_waived(self, waived: list[Finding]) -> None:
        for finding in waived:
            self.narrator.note(f"waived: {finding.line()}")
        self.waived += tuple(waived)

    def _bring(self, _step: Step) -> None:
        """Bring the engine to every node that lacks it, at the first such step."""
        if self.seen is None or self.brought:
            return
        self.brought = True
        kept = closures_of(read_generations(self.paths))
        place = (self.kit, self.paths)
        self.images = bring_engine(
            place, self.wanted, self.seen.views, self.narrator, kept
        )

    def _model(self, _step: Step) -> None:
        here = str(Path(__file__).parents[1])
        argv = (engine_python(self.engine.program), "-m", "glmspark.loopback")
        command = Command(
            (*argv, self.engine.model), env={"PYTHONPATH": here}, timeout_s=120
        )
        check(self.runner, command)

    def _draft(self, step: Step) -> None:
        node = next(one for one in self.kit.nodes if one.name == step.node)
        if node.ssh == "local":
            paddeddraft.make(**step.detail)
        else:
            remote = remote_of(self.kit, node, self.paths)
            remote.call("glmspark.paddeddraft:make", step.detail)

    def _key(self, _step: Step) -> None:
        ensure_key(self.paths.key)

    def _stop(self, _step: Step) -> None:
        self._end()

    def _end(self) -> bool:
        with uninterrupted():
            ended = end_kit(self.paths, self.backend, self.kit.timeouts.stop_s)
            boots = sorted(boot_names(self.paths))
            if self.kit.runtime is Runtime.OCI:
                end_containers(boots, self.kit.image.tool)
            if self._is_spread and boots:
                end_remote(self.kit, self.paths, boots)
            return ended

    def _launch(self, plan: Plan) -> None:
        """Start the supervisor, over whatever a dead one has left of this kit."""
        if self._end():
            self.narrator.note("ranks that an earlier start had left were ended")
            self.narrator.busy("wait until their memory is back")
            await_memory(lambda: read_memory(Roots())["MemAvailable"], time.sleep)
        folder = new_boot_folder(self.paths)
        boot = make_boot(self.kit, folder.name, plan, self.engine.key)
        boot.write(folder)
        if self.seen is not None:
            write_nodes_memory(folder, self.seen.views)
        write_access(folder, self.kit, self.paths)
        write_containers(folder, self.kit, self.images)
        launch = Launch(
            self.kit.name, folder, self.paths.state_file, self.kit.engine.uses_gpu
        )
        try:
            with uninterrupted():  # until its first word, nobody could stop it
                launched = self.backend.launch(launch)
                try:
                    await_state(launch, boot.name, launched)
                    self.launched = True
                except BaseException:
                    launched.abort()
                    raise
        except BaseException:
            self._end()
            raise
        self.narrator.say(f"ranks launched (boot {boot.name})")

    def _ready(self, state: State | None, began_s: float, plan: Plan) -> Outcome:
        """Wait until the boot of ``state`` serves, then keep it as a generation."""
        assert state is not None  # noqa: S101 - await_state has seen it
        state = self._await(state.boot, plan)
        image = self.wanted.image.config if self.wanted.image else ""
        engine = (self.wanted.closure, image)
        record(self.paths, self.configured, plan, state.boot, engine)
        return Outcome("live", state, self.waived, time.monotonic() - began_s)

    def _await(self, boot: str, plan: Plan) -> State:
        """The state of ``boot`` once it serves, or of the one try that follows it.

        Raises:
            GlmSparkError: it failed, for a reason that another try does not mend.
        """
        try:
            return await_serving(self.paths, boot, self.narrator)
        except GlmSparkError as error:
            if self.retried or not deserves_retry(str(error)):
                raise with_way_back(error, self.paths, plan) from error
            self.retried = True
            self.narrator.note(f"{error}")
            self.narrator.note("such a first connection deserves one more try")
        with operation_lock(self.lock, f"{plan.goal.value}, second try"):
            self._launch(plan)
        state = self.state()
        assert state is not None  # noqa: S101 - its supervisor has spoken
        return self._await(state.boot, plan)

    def _abandon(self) -> None:
        """Take a half-started kit down."""
        self.narrator.note("interrupted: ending every rank")
        with operation_lock(self.lock, "abandoned start"):
            self._end()
