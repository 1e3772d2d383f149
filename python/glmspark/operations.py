"""Carry out a plan: start, stop and restart a kit. Decisions are made elsewhere."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from glmspark.backends import Backend, Launch, await_state, pick_backend
from glmspark.boost.folders import of_kit
from glmspark.boot import (
    Api,
    Boot,
    Limits,
    State,
    boot_folders,
    new_boot_name,
    read_state,
    stale_boots,
)
from glmspark.console import Narrator
from glmspark.doctor import Examination, asker, examine, with_netdevs
from glmspark.ending import boot_names, end_kit, without_ours
from glmspark.engine import engine_paths, engine_python
from glmspark.errors import (
    CommandError,
    ConfigError,
    ExitCode,
    GlmSparkError,
    IntegrityError,
    NotReadyError,
)
from glmspark.facts import Roots, probe, read_listeners
from glmspark.guards import require_head, uninterrupted
from glmspark.health import is_healthy
from glmspark.hostfacts import read_store
from glmspark.locks import operation_lock
from glmspark.paths import KitPaths, ensure_key, kit_paths, make_folder
from glmspark.plan import Action, Goal, Plan, Step, api_url, build_plan
from glmspark.preflight import (
    Finding,
    check_node,
    check_view,
    check_waivers,
    report,
)
from glmspark.remoterank import end_remote, write_access
from glmspark.runner import Command, Runner, check
from glmspark.schema import Kit

PHASE_WORDS = {
    "launch": "the ranks state what they run",
    "load": "the ranks load the model and find each other",
    "canary": "the API is healthy; waiting for a first completion",
}
_ERRORS: Mapping[int, type[GlmSparkError]] = {
    ExitCode.CONFIG: ConfigError,
    ExitCode.COMMAND: CommandError,
    ExitCode.NOT_READY: NotReadyError,
    ExitCode.INTEGRITY: IntegrityError,
}


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
        self.runner = runner
        self.narrator = narrator
        self.paths: KitPaths = kit_paths(kit)
        self.engine = engine_paths(kit, self.paths)
        self.waived: tuple[Finding, ...] = ()
        self.seen: Examination | None = None
        self.launched = False

    @property
    def backend(self) -> Backend:
        """What keeps the supervisor alive on this machine."""
        return pick_backend(self.kit.supervisor, self.runner)

    def plan(self, goal: Goal) -> Plan:
        """The plan that this operator would carry out."""
        return build_plan(self.kit, goal, self.engine)

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
        with operation_lock(self.paths.lock_file, "stop"):
            ended = self._end()
        for port in (self.kit.serve.port, self.kit.ports.master):
            self._note_taken(port)
        word = "stopped" if ended else "already stopped"
        return Outcome(word, self.state(), seconds=time.monotonic() - began_s)

    def _note_taken(self, port: int) -> None:
        """Say who holds a port of the kit now that none of its ranks is alive."""
        for one in read_listeners(Roots()):
            if one.port == port:
                owner = f"pid {one.pid} ({one.program})" if one.pid else "somebody"
                self.narrator.note(
                    f"port {port} is held by {owner}, none of this kit's ranks"
                )
                return

    def _bring_up(self, goal: Goal, waive: tuple[str, ...]) -> Outcome:
        check_waivers(waive)
        require_head(self.kit)
        of_kit(self.kit, self.paths, must_exist=True)
        self._survey(waive)
        plan = self.plan(goal)
        began_s = time.monotonic()
        make_folder(self.paths.state, "paths.state")
        make_folder(self.paths.boots, "paths.state")
        make_folder(self.paths.cache, "paths.cache")
        try:
            with operation_lock(self.paths.lock_file, goal.value):
                state = self.state()
                if state is None or not state.is_up or goal.stops:
                    self._apply(plan, waive)
                    state = None
            if state is not None:
                return self._attach(state, plan)
            return self._ready(self.state(), began_s)
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
        if not self._is_spread:
            return
        self.narrator.busy("look at every node")
        ask, boots = asker(self.kit, self.paths), boot_names(self.paths)
        self.seen = examine(self.kit, ask, self.engine.program, boots)
        self.kit = with_netdevs(self.kit, self.seen.views)
        if len(self.seen.views) < len(self.kit.nodes):
            report(list(self.seen.findings), waive)

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
        found = self._await(state.boot)  # Ctrl-C ends the waiting, not that start
        self.narrator.busy("")
        return Outcome("already", found)

    def _apply(self, plan: Plan, waive: tuple[str, ...]) -> None:
        handlers: Mapping[Action, Callable[[Step], None]] = {
            Action.CHECK: lambda step: self._check(step, waive),
            Action.MODEL: self._model,
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
        waived = [finding for finding in waived if finding.node == node]
        for finding in waived:
            self.narrator.note(f"waived: {finding.line()}")
        self.waived += tuple(waived)
        self.narrator.say(f"{node}: checked, nothing in the way")

    def _model(self, _step: Step) -> None:
        here = str(Path(__file__).parents[1])
        argv = (engine_python(self.engine.program), "-m", "glmspark.loopback")
        command = Command(
            (*argv, self.engine.model), env={"PYTHONPATH": here}, timeout_s=120
        )
        check(self.runner, command)

    def _key(self, _step: Step) -> None:
        ensure_key(self.paths.key)

    def _stop(self, _step: Step) -> None:
        self._end()

    def _end(self) -> bool:
        with uninterrupted():
            ended = end_kit(self.paths, self.backend, self.kit.timeouts.stop_s)
            boots = sorted(boot_names(self.paths))
            if self._is_spread and boots:
                end_remote(self.kit, self.paths, boots)
            return ended

    def _launch(self, plan: Plan) -> None:
        """Start the supervisor, over whatever a dead one has left of this kit."""
        if self._end():
            self.narrator.note("ranks that an earlier start had left were ended")
        folder = self._new_boot_folder()
        boot = self._boot(folder.name, plan)
        boot.write(folder)
        write_access(folder, self.kit, self.paths)
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

    def _new_boot_folder(self) -> Path:
        folder = self.paths.boots / new_boot_name()
        folder.mkdir(mode=0o700, parents=True)
        for old in stale_boots(boot_folders(self.paths.boots)):
            shutil.rmtree(old, ignore_errors=True)
        return folder

    def _boot(self, name: str, plan: Plan) -> Boot:
        kit, limits = self.kit, self.kit.timeouts
        key = self.engine.key if kit.needs_key else ""
        return Boot(
            name=name,
            kit=kit.name,
            digest=plan.digest,
            master_port=kit.ports.master,
            limits=Limits(
                limits.launch_s,
                limits.stall_s,
                limits.ready_s,
                limits.canary_s,
                limits.stop_s,
            ),
            api=Api(kit.serve.host, kit.serve.port, kit.serve.name, api_url(kit), key),
            ranks=tuple(reversed(plan.ranks)),  # launched in this order: head last
        )

    def _ready(self, state: State | None, began_s: float) -> Outcome:
        """Wait until the boot of ``state`` serves."""
        assert state is not None  # noqa: S101 - await_state has seen it
        state = self._await(state.boot)
        self.narrator.busy("")
        return Outcome("live", state, self.waived, time.monotonic() - began_s)

    def _abandon(self) -> None:
        """Take a half-started kit down."""
        self.narrator.note("interrupted: ending every rank")
        with operation_lock(self.paths.lock_file, "abandoned start"):
            self._end()

    def _await(self, boot: str) -> State:
        while True:
            state = self.state()
            if state is None or state.boot != boot:
                raise CommandError(
                    "another operation has taken this kit over", hint="glmspark status"
                )
            if state.phase == "serving":
                return state
            if state.phase == "failed" and state.failure is not None:
                raise self._failed(state)
            if state.phase == "stopped" or not state.is_current:
                how = "was stopped" if state.is_final else "lost its supervisor"
                raise CommandError(
                    f"the start {how}", hint=f"cat {self.paths.boots / boot}/*.log"
                )
            self.narrator.busy(PHASE_WORDS.get(state.phase, state.phase))
            time.sleep(0.1)

    def _failed(self, state: State) -> GlmSparkError:
        failure = state.failure
        assert failure is not None  # noqa: S101 - asked for failed states only
        node = state.nodes.get(failure.rank, "") if failure.rank is not None else ""
        logs = self.paths.boots / state.boot
        hint = failure.hint or "read the logs"
        kind = _ERRORS.get(failure.exit_code, GlmSparkError)
        return kind(failure.message, hint=f"{hint} (logs: {logs})", node=node)
