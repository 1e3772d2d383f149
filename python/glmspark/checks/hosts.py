"""Checks of the hosts: kernel, memory, limits, GPU, clock, tools, sameness."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence

from glmspark import closures, images
from glmspark.preflight import GIB, Finding
from glmspark.schema import Kit, Runtime
from glmspark.views import NodeView

CHECKS = {
    "host.kernel": "all nodes run one kernel",
    "host.cma": "the kernel's CMA counters are sound",
    "host.memlock": "RDMA may lock memory",
    "host.hugepages": "no memory is set aside as huge pages",
    "host.killers": "no memory guard kills large processes",
    "host.pages": "pages are 4 KiB",
    "host.gpu": "the node has a GPU",
    "host.gpu-users": "nobody else computes on the GPU",
    "host.power": "a busy GPU clocks and draws what it should",
    "host.driver": "all nodes have one driver",
    "host.clocks": "all GPUs may clock alike",
    "host.clock": "the nodes' clocks agree",
    "host.tools": "the runtime is there and may be used",
    "engine.same": "every node has the same engine packages",
    "engine.image": "the engine's image is there, or can be loaded",
    "engine.cdi": "podman knows how to give a container the GPU",
    "engine.closure": "the engine's store path is there, or can be brought",
    "weights.same": "every node has the same weights",
}
SKEW_S = 2.0
# A GB10 under load clocks above 2 GHz; stuck ones were seen at 800 MHz and 19 W.
BUSY_PERCENT, SLOW_MHZ, SLOW_W = 90, 1000, 30


def _cma(view: NodeView) -> Iterator[Finding]:
    free = view.facts.memory.get("CmaFree", 0)
    total = view.facts.memory.get("CmaTotal", 0)
    if free > total:
        yield Finding(
            "host.cma",
            view.name,
            f"kernel {view.facts.kernel} counts {free >> 20} MiB of free CMA out of "
            f"{total >> 20} MiB",
            "sound counters; with these, NCCL cannot register memory",
            "boot with kho=off on the kernel's command line, or an older kernel",
        )


def _memlock(view: NodeView) -> Iterator[Finding]:
    limit, total = view.facts.memlock_bytes, view.facts.memory.get("MemTotal", 0)
    if limit != resource.RLIM_INFINITY and limit < total:
        yield Finding(
            "host.memlock",
            view.name,
            f"locked memory is limited to {limit >> 20} MiB",
            "unlimited, in a shell of this user over ssh",
            "add `USER - memlock unlimited` to /etc/security/limits.d/glmspark.conf",
        )


def _set_aside(view: NodeView) -> Iterator[Finding]:
    if view.host.hugepage_bytes >= GIB:
        yield Finding(
            "host.hugepages",
            view.name,
            f"{view.host.hugepage_bytes / GIB:.1f} GiB are set aside as huge pages",
            "memory that the rank can have",
            "sysctl -w vm.nr_hugepages=0",
            "warning",
        )
    if view.host.killers:
        yield Finding(
            "host.killers",
            view.name,
            f"{', '.join(view.host.killers)} runs and may kill the rank",
            "no guard that takes the largest process",
            f"systemctl disable --now {view.host.killers[0]}",
            "advice",
        )
    if view.facts.page_bytes > 4096:
        yield Finding(
            "host.pages",
            view.name,
            f"pages of {view.facts.page_bytes >> 10} KiB",
            "4 KiB; copies from mapped files can hang with larger ones",
            "boot the kernel with 4 KiB pages",
            "warning",
        )


def _gpu(view: NodeView) -> Iterator[Finding]:
    if not (view.facts.gpus or view.host.gpus):
        yield Finding(
            "host.gpu",
            view.name,
            "no NVIDIA GPU is bound to the driver",
            "a GB10",
            "nvidia-smi; or set engine to vllm-cpu",
        )
    ours = {stray.pid for stray in view.facts.strays}
    others = [one for one in view.host.gpu_users if one.pid not in ours]
    if others:
        named = ", ".join(f"{one.name} (pid {one.pid})" for one in others[:4])
        yield Finding(
            "host.gpu-users",
            view.name,
            f"on the GPU: {named}",
            "a GPU of its own",
            f"end it: kill {others[0].pid}",
            "warning",
        )


def _power(view: NodeView) -> Iterator[Finding]:
    """The sign of a machine that is stuck at low power; a reboot does not end it."""
    for gpu in view.host.gpus:
        slow = 0 < gpu.clock_mhz < SLOW_MHZ and 0 < gpu.power_w < SLOW_W
        if gpu.busy_percent >= BUSY_PERCENT and slow:
            yield Finding(
                "host.power",
                view.name,
                f"the GPU is {gpu.busy_percent:.0f} % busy at {gpu.clock_mhz:.0f} MHz "
                f"and {gpu.power_w:.0f} W",
                "above 1 GHz and 30 W under load",
                "shut it down, unplug its power supply for a minute, then start it",
                "advice",
            )


def _tools(kit: Kit, view: NodeView) -> Iterator[Finding]:
    tools = view.host.tools
    seen, remedy = "", ""
    if kit.runtime is Runtime.NIX and "nix" not in tools:
        seen, remedy = "no nix", "install Nix, or set runtime to oci"
    elif kit.runtime is Runtime.OCI and not {"docker", "podman"} & set(tools):
        seen, remedy = "neither podman nor docker", "apt install podman"
    elif kit.runtime is Runtime.OCI and "podman" not in tools:
        denied = [what for what in view.host.unread if what.startswith("containers:")]
        seen = denied[0] if denied else ""
        remedy = "sudo usermod -aG docker USER, then log in again"
    if seen:
        where = f"login shell {view.host.shell}, PATH {view.host.path}"
        yield Finding(
            "host.tools",
            view.name,
            f"{seen} ({where})",
            f"what runtime = {kit.runtime} needs",
            remedy,
        )


def _clock(view: NodeView) -> Iterator[Finding]:
    low, high = view.skew_s
    off = low if low > SKEW_S else high if high < -SKEW_S else 0.0
    if off:
        yield Finding(
            "host.clock",
            view.name,
            f"its clock is {abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} "
            "the head's",
            f"at most {SKEW_S:.0f} s",
            "timedatectl set-ntp true",
            "warning",
        )


def _same(
    what: tuple[str, str, str],
    views: Sequence[NodeView],
    value: Callable[[NodeView], str],
    severity: str,
) -> Iterator[Finding]:
    """A finding for each node whose value is not the head's."""
    check, name, remedy = what
    wanted = value(views[0])
    for view in views[1:]:
        if value(view) != wanted:
            yield Finding(
                check,
                view.name,
                f"{name} {value(view) or 'none'}",
                f"{wanted or 'none'}, as on {views[0].name}",
                remedy,
                severity,
            )


def _engine(view: NodeView) -> str:
    return " ".join(f"{k}={v}" for k, v in sorted(view.facts.engine.items()))


def _gpu_nodes(kit: Kit, views: Sequence[NodeView]) -> Iterator[Finding]:
    for view in views:
        yield from _cma(view)
        yield from _memlock(view)
        yield from _set_aside(view)
        yield from _gpu(view)
        yield from _power(view)
        yield from _tools(kit, view)
    driver = ("host.driver", "driver", "install one driver version on all nodes")
    yield from _same(driver, views, lambda view: view.host.driver, "warning")
    clocks = ("host.clocks", "GPU clock limit", "nvidia-smi -rgc on both, or one cap")
    yield from _same(clocks, views, _clock_limit, "advice")
    kernel = ("host.kernel", "kernel", "boot the same kernel on all nodes")
    yield from _same(kernel, views, lambda view: view.facts.kernel, "warning")


def _clock_limit(view: NodeView) -> str:
    return ", ".join(f"{one.clock_max_mhz:.0f} MHz" for one in view.host.gpus)


def check(kit: Kit, views: Sequence[NodeView]) -> Iterator[Finding]:
    """What is wrong with the hosts; GPU, RDMA and driver only where they are used."""
    if not views:
        return
    for view in views[1:]:
        yield from _clock(view)
    engine = ("engine.same", "engine", "bring the head's engine to the node")
    # Elsewhere than in a virtual environment a start brings it where there is none.
    brought = kit.runtime is not Runtime.VENV
    having = [v for v in views if v.facts.engine or v.rank == 0 or not brought]
    yield from _same(engine, having, _engine, "error")
    for view in views:
        if view.store is not None:
            yield from closures.findings(view.name, view.store, head=view.rank == 0)
        if view.image is not None:
            yield from images.findings(kit, view.name, view.image)
    weights = ("weights.same", "store has", "glmspark weights share")
    yield from _same(weights, views, lambda view: " ".join(view.host.store), "warning")
    if kit.engine.uses_gpu:
        yield from _gpu_nodes(kit, views)
