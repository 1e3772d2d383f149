"""Share: the head sends every node what that node lacks, over the fabric."""

from __future__ import annotations

import json
import secrets
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from glmspark import errors
from glmspark.errors import GlmSparkError, IntegrityError
from glmspark.weights import locks
from glmspark.weights.fetch import settle_touched
from glmspark.weights.manifest import Manifest
from glmspark.weights.progress import Progress
from glmspark.weights.puller import PullJob, Rail
from glmspark.weights.remote import (
    Node,
    local_address,
    pull_command,
    rebuilt,
    ssh_error,
)
from glmspark.weights.store import Store

_STDERR_LINES = 20


@dataclass
class NodeResult:
    """What a node received; ``error`` is None if all of it is there."""

    node: str
    result: dict[str, Any] = field(default_factory=dict)
    error: GlmSparkError | None = None


class _Session:
    """One node's pull, run over ssh and followed line by line."""

    def __init__(self, node: Node, out: Progress) -> None:
        self.node = node
        self.out = out
        self.done = 0
        self.skipped = 0
        self.stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self.outcome = NodeResult(node.name)
        self.process: subprocess.Popen[str] | None = None

    @contextmanager
    def opened(self) -> Iterator[Self]:
        """The session with its ssh on the way; at the end the node's side has ended."""
        with subprocess.Popen(
            pull_command(self.node),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as self.process:
            try:
                yield self
            finally:
                self._send("")  # the end of stdin tells the node to end

    def run(self, job: PullJob) -> NodeResult:
        """Send the job, follow the pull to its end."""
        process = self.process
        assert process is not None and process.stdout is not None  # noqa: S101
        watcher = threading.Thread(target=self._listen_stderr, daemon=True)
        watcher.start()
        self._send(json.dumps(job.to_json()))
        for line in process.stdout:
            self._heard(line)
        # stdin stays open until here: its end tells the node that the head is gone.
        self._send("")
        status = process.wait()
        watcher.join(5)
        if self.outcome.error is None and (status or not self.outcome.result):
            self.outcome.error = ssh_error(self.node, status, list(self.stderr))
        return self.outcome

    def _send(self, line: str) -> None:
        assert self.process is not None and self.process.stdin is not None  # noqa: S101
        try:
            if line:
                self.process.stdin.write(line + "\n")
                self.process.stdin.flush()
            else:
                self.process.stdin.close()
        except (BrokenPipeError, ValueError):
            pass  # ssh has ended; its status and words are read below

    def _listen_stderr(self) -> None:
        assert self.process is not None and self.process.stderr is not None  # noqa: S101
        for line in self.process.stderr:
            self.stderr.append(line.strip())

    def _heard(self, line: str) -> None:
        try:
            fields = json.loads(line)
            kind = fields.pop("glmspark")
        except (ValueError, KeyError, TypeError, AttributeError):
            return  # a talkative start-up file of the remote shell
        match kind:
            case "begin":
                self.out.add_total(fields["total"])
            case "bytes":
                fresh = fields["skipped"] - self.skipped
                if fresh:
                    self.out.open_file(self.node.name, fields["done"], fresh)
                self.out.advance(self.node.name, fields["done"] - self.done - fresh)
                self.done, self.skipped = fields["done"], fields["skipped"]
            case "note":
                self.out.note(f"[{self.node.name}] {fields['text']}")
            case "result":
                self.outcome.result = fields
            case "error":
                self.outcome.error = rebuilt(fields, self.node.name)


def _rails(node: Node, ports: dict[str, int]) -> tuple[Rail, ...]:
    return tuple(
        Rail(head, ports[head], peer)
        for peer in node.fabric
        for head in [local_address(peer)]
    )


@dataclass(frozen=True)
class ShareOptions:
    """``connections`` on each link; ``link`` builds the view on the node as well."""

    connections: int = 4
    link: bool = True


def share(
    store: Store,
    chosen: list[Manifest],
    nodes: list[Node],
    options: ShareOptions | None = None,
    progress: Progress | None = None,
) -> list[NodeResult]:
    """Bring every node to the state of the head, all nodes at once.

    The blob server listens on the fabric addresses only, for as long as this call;
    each node has a token of its own, handed over in the ssh channel, that opens the
    blobs of ``chosen`` and ends with its pull. One node's failure does not end the
    others': it is in its result.
    """
    options = options or ShareOptions()
    progress = progress or Progress()
    addresses = sorted({local_address(peer) for n in nodes for peer in n.fabric})
    for manifest in chosen:
        settle_touched(store, manifest, progress)
    with locks.using(store):
        chosen = [store.register(manifest) for manifest in chosen]
        _check_complete(store, chosen)
        blobs = frozenset(entry.sha256 for m in chosen for entry in m.files)
        progress.begin(f"share with {', '.join(n.name for n in nodes)}", 0)
        with ExitStack() as stack:
            # ssh and the nodes' programs start while the server is being imported.
            sessions = [
                stack.enter_context(_Session(node, progress).opened()) for node in nodes
            ]
            from glmspark.weights.blobserver import Grants, serving

            grants = Grants()
            ports = stack.enter_context(serving(store, grants, addresses))

            def one(session: _Session) -> NodeResult:
                token = secrets.token_urlsafe(32)
                grants.give(token, blobs)
                rails = _rails(session.node, ports)
                try:
                    return session.run(
                        PullJob(
                            token,
                            rails,
                            tuple(chosen),
                            options.connections,
                            options.link,
                        )
                    )
                finally:
                    grants.take_back(token)

            with ThreadPoolExecutor(len(nodes)) as pool:
                return list(pool.map(one, sessions))


def _check_complete(store: Store, chosen: list[Manifest]) -> None:
    for manifest in chosen:
        if missing := store.missing(manifest):
            raise IntegrityError(
                f"the head itself lacks {len(missing)} files of {manifest.ref}",
                hint="glmspark weights fetch",
            )


def serve_pull(
    pull: Callable[[PullJob], dict[str, Any]], emit: Callable[..., None], line: str
) -> int:
    """Run the pull that ``line`` describes and emit its result or its error.

    The exit code of the error is the status, so that the head sees it either way.
    """
    try:
        job = PullJob.from_json(json.loads(line))
    except (ValueError, KeyError, TypeError) as error:
        emit("error", message=f"no job came over ssh: {error}", exit_code=2)
        return int(errors.ExitCode.USAGE)
    try:
        emit("result", **pull(job))
    except GlmSparkError as error:
        code = int(error.exit_code)
        emit("error", message=str(error), hint=error.hint, exit_code=code)
        return code
    return int(errors.ExitCode.DONE)
