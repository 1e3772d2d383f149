"""The head's blob server: sendfile over the fabric address, for one share only."""

from __future__ import annotations

import asyncio
import hmac
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from glmspark.errors import PreflightError
from glmspark.weights.store import Store

_START_S = 15.0


class Grants:
    """Which token may read which blobs; a token ends with its node's pull."""

    def __init__(self) -> None:
        self._blobs: dict[str, frozenset[str]] = {}

    def give(self, token: str, blobs: frozenset[str]) -> None:
        """Let the bearer of ``token`` read ``blobs``, and nothing else."""
        self._blobs = self._blobs | {token: blobs}

    def take_back(self, token: str) -> None:
        """The token opens nothing from now on."""
        self._blobs = {t: b for t, b in self._blobs.items() if t != token}

    def blobs_of(self, header: str) -> frozenset[str] | None:
        """What the ``Authorization`` header opens; None if it is not known."""
        found = None
        for token, blobs in self._blobs.items():  # all compared, in constant time
            if hmac.compare_digest(header.encode(), f"Bearer {token}".encode()):
                found = blobs
        return found


def make_app(store: Store, grants: Grants) -> web.Application:
    """``GET /blob/<sha256>`` with ranges, for bearers of a granted token."""

    async def blob(request: web.Request) -> web.StreamResponse:
        allowed = grants.blobs_of(request.headers.get("Authorization", ""))
        if allowed is None:
            raise web.HTTPUnauthorized
        sha256 = request.match_info["sha256"]
        if sha256 not in allowed:
            raise web.HTTPNotFound
        return web.FileResponse(
            store.blob_path(sha256),
            headers={"Content-Type": "application/octet-stream"},
        )

    app = web.Application()
    app.router.add_get("/blob/{sha256:[0-9a-f]{64}}", blob)
    return app


class _Server:
    """An aiohttp server in a thread of its own, on one port for each address."""

    def __init__(self, app: web.Application, addresses: list[str]) -> None:
        self._app = app
        self._addresses = addresses
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._failed: OSError | None = None
        self.ports: dict[str, int] = {}
        self._thread = threading.Thread(target=self._main, daemon=True)

    def start(self) -> None:
        """Listen; PreflightError if an address is not this machine's."""
        self._thread.start()
        self._up.wait(_START_S)
        if self._failed is not None:
            raise PreflightError(
                f"cannot serve blobs on {', '.join(self._addresses)}: {self._failed}",
                hint="the fabric address must be up on the head: ip -br addr",
            )

    def stop(self) -> None:
        """Close every connection and end the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_S)

    def _main(self) -> None:
        runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=0.1)
        try:
            self._loop.run_until_complete(self._listen(runner))
        except OSError as error:
            self._failed = error
        self._up.set()
        if self._failed is None:
            self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _listen(self, runner: web.AppRunner) -> None:
        await runner.setup()
        for address in self._addresses:
            site = web.TCPSite(runner, address, 0)
            await site.start()
        for name in runner.addresses:
            self.ports[str(name[0])] = int(name[1])


@contextmanager
def serving(
    store: Store, grants: Grants, addresses: list[str]
) -> Iterator[dict[str, int]]:
    """Address -> port of a blob server that lives as long as the context."""
    server = _Server(make_app(store, grants), addresses)
    server.start()
    try:
        yield server.ports
    finally:
        server.stop()
