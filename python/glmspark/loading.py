"""Load the engine's image on the nodes that lack it, all at once, from one archive."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

from glmspark.boot import write_json
from glmspark.bringing import Bringer, end_group, how_it_failed, route
from glmspark.console import Narrator
from glmspark.doctor import remote_of
from glmspark.errors import CommandError, IntegrityError
from glmspark.imageside import ImageFacts, ImageId
from glmspark.leash import end_boots
from glmspark.nodeside import find_image
from glmspark.paths import KitPaths, expand
from glmspark.remote import in_parallel
from glmspark.remoteerrors import RemoteError
from glmspark.runner import quote
from glmspark.schema import Kit, Node
from glmspark.shipped import REMOTE_COMMAND
from glmspark.views import NodeView, Wanted

CHUNK = 1 << 20
TICK_S = 0.2


@dataclass
class Stream:
    """The archive on its way into one node's container engine."""

    node: Node
    argv: Sequence[str]
    first: bytes
    archive: Path
    over: str
    sent: int = 0
    said: bytes = b""
    process: subprocess.Popen[bytes] | None = None
    threads: list[threading.Thread] = field(default_factory=list)

    def begin(self) -> None:
        """Start it; :attr:`is_alive` says for how long."""
        self.process = subprocess.Popen(
            self.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdin is not None and self.process.stderr is not None  # noqa: S101 - both are pipes
        pump = (self.process.stdin,)
        self.threads = [
            threading.Thread(target=self._pump, args=pump, daemon=True),
            threading.Thread(target=self._hear, args=(self.process.stderr,)),
        ]
        for thread in self.threads:
            thread.start()

    def _pump(self, out: BinaryIO) -> None:
        with suppress(OSError), out, self.archive.open("rb") as archive:
            out.write(self.first)
            while chunk := archive.read(CHUNK):
                out.write(chunk)
                self.sent += len(chunk)

    def _hear(self, err: BinaryIO) -> None:
        self.said = err.read()
        assert self.process is not None  # noqa: S101 - begun
        self.process.wait()

    @property
    def is_alive(self) -> bool:
        """Whether it still goes on."""
        return any(thread.is_alive() for thread in self.threads)

    def end(self) -> None:
        """End it now."""
        end_group(self.process)

    def failure(self) -> str:
        """What went wrong; "" if nothing did."""
        words = self.said.decode(errors="replace").strip().splitlines() or ["nothing"]
        return how_it_failed(self.node, self.process, words[-1])


class Loader:
    """Sees that every node has the image, by content."""

    def __init__(
        self, kit: Kit, paths: KitPaths, image: ImageId, teller: Narrator
    ) -> None:
        self.kit = kit
        self.paths = paths
        self.image = image
        self.teller = teller

    def load(self, views: Sequence[NodeView]) -> dict[str, ImageFacts]:
        """The container engine of each node, each with the image, by node.

        Raises:
            CommandError: a node could not load it, with its words.
            IntegrityError: it was loaded, and what is there now is another image.
        """
        seen = {view.name: view.image for view in views}
        have = {name: one for name, one in seen.items() if one is not None}
        streams = []
        for node in self.kit.nodes:
            if node.name in have and have[node.name].found:
                self.teller.say(f"{node.name}: has the image, nothing loaded")
            elif node.name in have:
                streams.append(self._stream(node, have[node.name].tool))
        self._run(streams)
        return have | self._confirm([one.node for one in streams], have)

    def _stream(self, node: Node, tool: str) -> Stream:
        archive = expand(self.kit.image.archive, "image.archive")
        load = [tool, "load", "--quiet"]
        if node.ssh == "local":
            return Stream(node, load, b"", archive, "no wire")
        remote = remote_of(self.kit, node, self.paths)
        options, over = route(node, remote)
        control = {"ControlMaster": "no", "ControlPath": "none"}
        argv = ["ssh", "-T", *remote.options(**options, **control)]
        argv += ["--", remote.target, REMOTE_COMMAND]
        return Stream(node, argv, f"exec {quote(load)}\n".encode(), archive, over)

    def _run(self, streams: Sequence[Stream]) -> None:
        began_s = time.monotonic()
        try:
            for one in streams:
                one.begin()
            while any(one.is_alive for one in streams):
                self.teller.busy(self._progress(streams))
                time.sleep(TICK_S)
        finally:
            for one in streams:
                one.end()
        if wrong := [text for one in streams if (text := one.failure())]:
            raise CommandError(
                "the image could not be loaded: " + "; ".join(wrong),
                hint="nothing was started; glmspark doctor looks at every node",
            )
        passed_s = max(time.monotonic() - began_s, 1e-3)
        for one in streams:
            rate = one.sent / 1e6 / passed_s
            self.teller.say(
                f"{one.node.name}: image loaded over {one.over}, "
                f"{one.sent / 1e6:.0f} MB, {rate:.0f} MB/s"
            )

    def _progress(self, streams: Sequence[Stream]) -> str:
        size = streams[0].archive.stat().st_size / 1e6
        parts = [f"{one.node.name} {one.sent / 1e6:.0f}" for one in streams]
        return f"load the image: {', '.join(parts)} of {size:.0f} MB"

    def _confirm(
        self, nodes: Sequence[Node], have: Mapping[str, ImageFacts]
    ) -> dict[str, ImageFacts]:
        """Look again on every node that has loaded it."""
        image = asdict(self.image)

        def one(node: Node) -> str:
            tool = have[node.name].tool
            if node.ssh == "local":
                return find_image(tool, image)
            remote = remote_of(self.kit, node, self.paths)
            arguments = {"tool": tool, "image": image}
            return str(remote.call("glmspark.nodeside:find_image", arguments, 60))

        found: dict[str, ImageFacts] = {}
        for node, answer in zip(nodes, in_parallel(one, nodes), strict=True):
            if isinstance(answer, RemoteError):
                raise answer
            if not answer:
                raise IntegrityError(
                    f"what was loaded is not {self.image.config}",
                    hint="compare the archive's sha256 with where it came from",
                    node=node.name,
                )
            before = have[node.name]
            found[node.name] = ImageFacts(before.tool, answer, before.cdi)
        return found


def bring_engine(
    place: tuple[Kit, KitPaths],
    wanted: Wanted,
    views: Sequence[NodeView],
    teller: Narrator,
    kept: Mapping[str, str],
) -> dict[str, ImageFacts]:
    """Bring the wanted engine to the nodes of ``place`` (kit, paths) that lack it.

    Gives each node's container engine where it is an image. ``kept`` names further
    closures that nodes must not collect.
    """
    if wanted.image is not None:
        return Loader(*place, wanted.image, teller).load(views)
    Bringer(*place, wanted.closure, teller, kept).bring(views)
    return {}


def write_containers(folder: Path, kit: Kit, images: Mapping[str, ImageFacts]) -> None:
    """Leave in the boot's folder in which image each rank runs, and how."""
    boxes = {
        str(rank): {
            "kit": kit.name,
            "tool": images[node.name].tool,
            "image": images[node.name].found,
            "gpu": kit.engine.uses_gpu,
            "cdi": images[node.name].cdi,
        }
        for rank, node in enumerate(kit.nodes)
        if node.name in images
    }
    if boxes:
        write_json(folder / "containers.json", boxes)


def end_containers(boots: Sequence[str], tool: str) -> None:
    """End every process and container of ``boots`` on this machine.

    Raises:
        CommandError: the container engine cannot be asked, or something stays.
    """
    try:
        left = end_boots(boots, tool)
    except OSError as error:
        raise CommandError(
            f"the containers of this kit cannot be looked for: {error}",
            hint="see that this user may use the container engine, then: glmspark stop",
        ) from error
    if left:
        raise CommandError(
            f"{left} processes or containers of this kit cannot be ended",
            hint="podman ps -a --filter label=glmspark.kit (or docker)",
        )
