"""uvicorn as a guest in the controller's loop: no signal handlers, no logging of its own, and bounds on strangers."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from everstep.controller.outlook import Outlook
from everstep.controller.web.app import build
from everstep.controller.web.feed import Feed, Glance
from everstep.controller.web.guard import Guard
from everstep.controller.web.pictures import Pictures
from everstep.wire.auth import Token

MAX_CONNECTIONS = 128
REQUEST_S = 10.0
"""For a new connection to ask for something."""
FAREWELL_S = 1
MAX_HEAD_BYTES = 16 * 1024


class _Connection(H11Protocol):
    """Descriptors are the controller's, and its agents need them: no more than a few for strangers."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self.loop.call_later(REQUEST_S, self._expect_request)

    def _expect_request(self) -> None:
        if self.cycle is None:  # uvicorn's types do not know the time before the first request
            self.transport.abort()  # type: ignore[unreachable]


class PageServer(uvicorn.Server):
    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=_Connection,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level=logging.CRITICAL,  # what a stranger sends must not fill the log of the job
                access_log=False,  # it would show the token
                proxy_headers=False,
                server_header=False,
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                timeout_graceful_shutdown=FAREWELL_S,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """They are the controller's."""
        yield

    async def serve_on(self, listener: socket.socket) -> None:
        """Until `leave`, or it is cancelled."""
        try:
            await self.serve(sockets=[listener])
        finally:
            await self._clear()

    async def _clear(self) -> None:
        """Whatever a request has begun ends with it: a process that draws is gone when this returns."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        tasks = list(self.server_state.tasks)
        for task in tasks:
            if not task.cancelling():  # a second time would cut its cleaning short
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def leave(self) -> None:
        self.should_exit = True


def assemble(
    run_dir: Path, outlook: Outlook, feed: Feed, glance: Glance, address: tuple[str, int], token: Token | None
) -> PageServer:
    """All parts of the page, for a listener at this address. The cookie has the port in its name: browsers share
    cookies between the ports of a host."""
    host, port = address
    app = build(outlook, feed, glance, Pictures(run_dir, outlook.ledger, outlook.now_s))
    return PageServer(Guard(app, host, token, f"everstep-{port}"))
