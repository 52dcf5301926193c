"""The life of the live page beside that of its job: begun after it, ended with it, and never a reason for it to fail.

Imports nothing that only the page needs before it is begun, so a job starts as fast with it as without.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from everstep.controller.job import Job, Page, RunDir
from everstep.controller.outlook import Outlook
from everstep.controller.web.feed import Feed, Glance
from everstep.errors import ConfigError
from everstep.wire.auth import Token, is_loopback
from everstep.wire.server import listen
from everstep.wire.terms import tune

if TYPE_CHECKING:
    from everstep.controller.web.server import PageServer

Assemble = Callable[[Path, Outlook, Feed, Glance, tuple[str, int], Token | None], "PageServer"]

log = logging.getLogger(__name__)

PATIENCE_S = 5.0
"""A job that does not train by then takes long, or protects and stamps nothing: the page shows that too."""

_LOOK_S = 0.1

FAREWELL_S = 0.25
"""For listeners to hear how the job ended; the agents' farewell mostly takes longer."""


class LivePage:
    """Made inside the event loop."""

    def __init__(self, run: RunDir, job: Job, outlook: Outlook) -> None:
        self._run = run
        self._address = job.web
        self._outlook = outlook
        glance = Glance(outlook)
        self._feed = Feed(outlook, glance)
        self._glance = glance
        self._server: PageServer | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        if self._address is not None:
            self._task = asyncio.get_running_loop().create_task(self._supervise(*self._address))

    def end(self) -> None:
        """The job is over: tell the listeners how, and take no more."""
        if self._server is not None:
            self._feed.end()
            self._server.leave()

    async def close(self) -> None:
        """Let the port go. Those who still listen have a moment to hear the end."""
        if self._task is None:
            return
        if self._feed.heard:
            await asyncio.wait((self._task,), timeout=FAREWELL_S)
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _supervise(self, host: str, port: int) -> None:
        try:
            await self._serve(host, port)
        except ModuleNotFoundError as error:
            log.info("no live page: %s is not installed; pip install 'everstep[web]' brings it", error.name)
        except ConfigError as error:
            log.warning("no live page: %s", error)
        except Exception:  # the supervisor of the page: the job goes on without it
            log.exception("the live page has ended; the job goes on without it")

    async def _begun(self) -> None:
        """Until the job trains: on a small machine an import costs its start more than it takes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while not self._outlook.progress.begun:  # noqa: ASYNC110  a board shows it: no event tells us
                    await asyncio.sleep(_LOOK_S)

    async def _serve(self, host: str, port: int) -> None:
        await self._begun()
        assemble = await asyncio.to_thread(_load)
        token = None if is_loopback(host) else self._token()
        with self._listen(host, port) as listener:
            tune(listener)  # what is accepted is as well
            port = listener.getsockname()[1]
            server = self._server = assemble(
                self._run.path, self._outlook, self._feed, self._glance, (host, port), token
            )
            self._run.publish_page(Page.at(host, port, token))
            async with asyncio.TaskGroup() as group:
                feeding = group.create_task(self._feed.run())
                await server.serve_on(listener)
                feeding.cancel()

    def _listen(self, host: str, port: int) -> socket.socket:
        """Where it was before a restart of the controller: the pages that are open come back by themselves."""
        former = self._run.page()
        if port == 0 and former is not None:
            with suppress(ConfigError):
                return listen((host, former.port))
        return listen((host, port))

    def _token(self) -> Token:
        """That of this run, also after a restart."""
        path = self._run.web_token
        if not path.exists():
            Token.create().write(path)
        return Token.read(path)


def _load() -> Assemble:
    """In a thread: the imports take 50 ms."""
    from everstep.controller.web.server import assemble

    return assemble
