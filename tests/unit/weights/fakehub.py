"""A Hub on this machine: real HTTP, the answers and the faults of the real one.

Addresses, headers and error codes follow what huggingface_hub 2.4 reads: tree and
revision API, resolve with a redirect to a second host for large files, ETags, ranges.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

LFS_FROM = 1000  # files from this size on are "large"
STALL_S = 3.0


def git_oid(data: bytes) -> str:
    header = b"blob %d\0" % len(data)
    return hashlib.sha1(header + data, usedforsecurity=False).hexdigest()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass
class Seen:
    method: str
    host: str
    path: str
    range: str
    authorization: str


@dataclass
class Hub:
    """What the Hub holds and how it misbehaves; ``faults[path]`` is used up in order.

    A fault is a status such as "429", or "stall", "truncate", "reset", "wrong",
    "ignore-range", "drip" (slow), "trickle" (a byte now and then), "long" (too many
    bytes). ``always`` are faults that never end.
    """

    repos: dict[tuple[str, str], dict[str, bytes]] = field(default_factory=dict)
    refs: dict[tuple[str, str], str] = field(default_factory=dict)
    faults: dict[str, deque[str]] = field(default_factory=dict)
    always: dict[str, str] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    token: str = ""
    retry_after: str = ""
    page: int = 1000
    page_instead: str = ""  # what a proxy answers to everything
    seen: list[Seen] = field(default_factory=list)
    sent: Counter[str] = field(default_factory=Counter)
    url: str = ""
    cdn: str = ""

    def add(self, repo: str, revision: str, files: dict[str, bytes]) -> None:
        self.repos[repo, revision] = files
        self.refs[repo, "main"] = revision

    def fail(self, path: str, *kinds: str) -> None:
        self.faults.setdefault(path, deque()).extend(kinds)

    def gets(self, path: str = "") -> list[Seen]:
        """The requests that asked for bytes of ``path``."""
        return [s for s in self.seen if s.method == "GET" and s.path.endswith(path)]

    # -- the application ------------------------------------------------------------

    def _note(self, request: web.Request) -> None:
        self.seen.append(
            Seen(
                request.method,
                request.host,
                request.path,
                request.headers.get("Range", ""),
                request.headers.get("Authorization", ""),
            )
        )

    def _refusal(self, repo: str, request: web.Request) -> web.Response | None:
        known = any(name == repo for name, _ in self.repos)
        auth = request.headers.get("Authorization", "")
        if not known:
            return self._error(401 if not auth else 404, "RepoNotFound")
        if self.token and auth != f"Bearer {self.token}":
            return self._error(401, "GatedRepo" if repo in self.gated else "")
        if repo in self.gated:
            return self._error(403, "GatedRepo")
        return None

    @staticmethod
    def _error(status: int, code: str = "") -> web.Response:
        headers = {"X-Error-Code": code} if code else {}
        return web.Response(status=status, headers=headers, text="refused")

    def _find(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        commit = self.refs.get((repo, revision), revision)
        files = self.repos.get((repo, commit))
        return None if files is None else (commit, files)

    async def revision(self, request: web.Request) -> web.Response:
        self._note(request)
        repo = f"{request.match_info['owner']}/{request.match_info['name']}"
        if (refusal := self._refusal(repo, request)) is not None:
            return refusal
        found = self._find(repo, request.match_info["rev"])
        if found is None:
            return self._error(404, "RevisionNotFound")
        return web.json_response({"id": repo, "sha": found[0], "siblings": []})

    async def tree(self, request: web.Request) -> web.Response:
        self._note(request)
        repo = f"{request.match_info['owner']}/{request.match_info['name']}"
        if (refusal := self._refusal(repo, request)) is not None:
            return refusal
        if (fault := self._fault("tree")) and fault.isdigit():
            headers = {"Retry-After": self.retry_after} if self.retry_after else {}
            return web.Response(status=int(fault), headers=headers)
        found = self._find(repo, request.match_info["rev"])
        if found is None:
            return self._error(404, "RevisionNotFound")
        rows = [self._row(path, data) for path, data in found[1].items()]
        start = int(request.query.get("cursor", "0"))
        headers = {}
        if start + self.page < len(rows):
            url = request.url.update_query(cursor=str(start + self.page))
            headers["Link"] = f'<{url}>; rel="next"'
        return web.json_response(rows[start : start + self.page], headers=headers)

    @staticmethod
    def _row(path: str, data: bytes) -> dict[str, object]:
        row: dict[str, object] = {"type": "file", "path": path, "size": len(data)}
        row["oid"] = git_oid(data)
        if len(data) >= LFS_FROM:
            row["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 130}
        return row

    def _fault(self, path: str) -> str:
        if self.faults.get(path):
            return self.faults[path].popleft()
        return self.always.get(path, "")

    async def resolve(self, request: web.Request) -> web.StreamResponse:
        self._note(request)
        info = request.match_info
        repo = f"{info['owner']}/{info['name']}"
        if (refusal := self._refusal(repo, request)) is not None:
            return refusal
        found = self._find(repo, info["rev"])
        if found is None:
            return self._error(404, "RevisionNotFound")
        commit, files = found
        data = files.get(info["path"])
        if data is None:
            return self._error(404, "EntryNotFound")
        headers = {"X-Repo-Commit": commit}
        if len(data) >= LFS_FROM:
            headers["X-Linked-Etag"] = f'"{sha256(data)}"'
            headers["X-Linked-Size"] = str(len(data))
            headers["Location"] = f"{self.cdn}/cdn/{repo}/{commit}/{info['path']}?Sig=k"
            return web.Response(status=302, headers=headers)
        headers["ETag"] = f'"{git_oid(data)}"'
        return await self._bytes(request, info["path"], data, headers)

    async def from_cdn(self, request: web.Request) -> web.StreamResponse:
        self._note(request)
        info = request.match_info
        files = self.repos[f"{info['owner']}/{info['name']}", info["rev"]]
        return await self._bytes(request, info["path"], files[info["path"]], {})

    async def _bytes(
        self, request: web.Request, path: str, data: bytes, headers: dict[str, str]
    ) -> web.StreamResponse:
        fault = self._fault(path) if request.method == "GET" else ""
        if fault.isdigit():
            if self.retry_after:
                headers["Retry-After"] = self.retry_after
            return web.Response(status=int(fault), headers=headers)
        start, status = 0, 200
        asked = request.headers.get("Range", "")
        if asked and fault != "ignore-range":
            start, status = int(asked.removeprefix("bytes=").split("-")[0]), 206
            if start >= len(data):
                return web.Response(status=416)
        body = data[start:]
        if fault == "wrong":
            body = bytes(b ^ 0xFF for b in body)
        if fault == "long":
            body += body
        headers["Content-Length"] = str(len(body))
        response = web.StreamResponse(status=status, headers=headers)
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        await self._send(request, response, path, body, fault)
        return response

    async def _send(
        self,
        request: web.Request,
        response: web.StreamResponse,
        path: str,
        body: bytes,
        fault: str,
    ) -> None:
        assert request.transport is not None
        cut = len(body) // 2 if fault in ("stall", "truncate", "reset") else len(body)
        step = 1 if fault == "trickle" else 64 << 10
        for at in range(0, cut, step):
            piece = body[at : min(at + step, cut)]
            await response.write(piece)
            self.sent[path] += len(piece)
            if fault in ("drip", "trickle"):
                await asyncio.sleep(0.05)
        if fault == "stall":
            await asyncio.sleep(STALL_S)
        if fault == "truncate":
            request.transport.close()
        if fault in ("reset", "stall"):
            request.transport.abort()

    @web.middleware
    async def _proxy(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.page_instead:
            return web.Response(text=self.page_instead, content_type="text/html")
        response: web.StreamResponse = await handler(request)
        return response

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._proxy])
        repo = "/{owner}/{name}"
        app.router.add_get(f"/api/models{repo}/revision/{{rev}}", self.revision)
        app.router.add_get(f"/api/models{repo}/tree/{{rev}}", self.tree)
        app.router.add_get(f"{repo}/resolve/{{rev}}/{{path:.+}}", self.resolve)
        app.router.add_get(f"/cdn{repo}/{{rev}}/{{path:.+}}", self.from_cdn)
        return app


async def _listen(hub: Hub) -> list[web.AppRunner]:
    runners = []
    for host in ("127.0.0.1", "127.0.0.2"):  # the Hub, and where it redirects to
        runner = web.AppRunner(hub.app(), access_log=None, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, host, 0).start()
        runners.append(runner)
    hub.url, hub.cdn = (
        f"http://{r.addresses[0][0]}:{r.addresses[0][1]}" for r in runners
    )
    return runners


@contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    """The hub, served from a thread; ``url`` and ``cdn`` are its two hosts."""
    loop = asyncio.new_event_loop()
    runners = loop.run_until_complete(_listen(hub))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield hub
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for runner in runners:
            loop.run_until_complete(runner.cleanup())
        loop.close()
