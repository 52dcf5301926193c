"""A page with a real server on a real port, over a job of the real core that the test moves."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from tests.observe.test_progress import WatchedJob

from everstep.controller.outlook import Outlook
from everstep.controller.status import progress, status
from everstep.controller.web.feed import Feed, Glance
from everstep.controller.web.server import assemble
from everstep.core.watch import Sighting
from everstep.observe.ledger import Ledger
from everstep.observe.log import RecoveryLog
from everstep.types import WorkerId
from everstep.wire.auth import Token
from everstep.wire.server import listen

TIMEOUT_S = 20.0
"""Against hangs only."""


class Shown:
    """A job, and how it is looked at."""

    def __init__(self, root: Path, ranks: int = 2) -> None:
        self.root = root
        self.job = WatchedJob(ranks=ranks, standbys=0).begun()
        self.sightings: dict[WorkerId, Sighting] = {}
        self.looks = 0
        self._log = RecoveryLog(root / "recoveries.jsonl")
        ledger = Ledger(root / "recoveries.jsonl", root / "checkpoints.jsonl")
        job = self.job
        self.outlook = Outlook("train-1", job.machine, job.progress, ledger, self.status, now_s=lambda: job.now)
        self.glance = Glance(self.outlook)
        self.feed = Feed(self.outlook, self.glance)

    def seen(self, version: int) -> None:
        """All ranks are in Forward of this step, and their boards show it."""
        self.job.step(version, 1.0)
        for rank, worker in self.job.machine.members.seats.items():
            self.sightings[worker] = self.job.sighting(rank, version)

    def status(self) -> dict[str, object]:
        self.looks += 1
        shown = status("train-1", self.job.machine, self.sightings, [], self._log, "")
        return shown | {"progress": progress(self.job.progress, self.job.now)}


class Answer:
    def __init__(self, response: HTTPResponse) -> None:
        self.code = response.status
        self.headers = response.headers
        self.body = response.read()

    def json(self) -> Any:
        return json.loads(self.body)


class Site:
    """The page, served by a loop of its own thread."""

    def __init__(self, shown: Shown, host: str = "127.0.0.1", token: Token | None = None) -> None:
        self.shown = shown
        listener = listen((host, 0))
        self.port = listener.getsockname()[1]
        self._server = assemble(shown.root, shown.outlook, shown.feed, shown.glance, (host, self.port), token)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(listener)))
        self._thread.start()

    async def _serve(self, listener: socket.socket) -> None:
        self.loop = asyncio.get_running_loop()
        feeding = asyncio.create_task(self.shown.feed.run())
        await self._server.serve_on(listener)
        feeding.cancel()

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """``Host`` and others as keywords; underscores stand for dashes."""
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)) as connection:
            connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
            return Answer(connection.getresponse())

    def listen(self) -> Events:
        return Events(self.port)

    def soon(self, act: Callable[[], object]) -> None:
        """In the loop, as the controller does it."""
        self.loop.call_soon_threadsafe(act)

    def close(self) -> None:
        self._server.leave()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()


class Events:
    """A listener to server-sent events, as a browser is one."""

    def __init__(self, port: int, path: str = "/events") -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        self._connection.request("GET", path)
        self.response = self._connection.getresponse()

    def next(self, name: str | None = None) -> Any:
        """The data of the next event, or of the next one of this name."""
        kind = ""
        while line := self.response.readline():
            if line.startswith(b"event: "):
                kind = line[7:].strip().decode()
            elif line.startswith(b"data: ") and name in (None, kind):
                return json.loads(line[6:])
        raise AssertionError(f"the stream ended without {name or 'another event'}")

    def rest(self) -> bytes:
        return self.response.read()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def shown(tmp_path: Path) -> Shown:
    return Shown(tmp_path)


@pytest.fixture
def site(shown: Shown) -> Iterator[Site]:
    site = Site(shown)
    yield site
    site.close()
