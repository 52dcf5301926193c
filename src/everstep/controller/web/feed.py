"""What is new about a job, told to any number of listeners: looked at once for all of them, and not without any.

Knows no HTTP; what it hands out is the text of server-sent events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from everstep.controller.outlook import Outlook
from everstep.controller.web import shapes

PACE_S = 0.25
"""A change is told within twice this time."""

IDLE_SHARE = 50
"""To look takes at most one part in so many of the controller's time; in a very large job looks are rarer for it."""

BEAT_S = 5.0
"""Without news a comment goes out so often, or proxies and pages would take the line for dead."""

MAX_LISTENERS = 32
MAX_BACKLOG = 64
"""Events that wait for a listener who does not read. One more, and it has to come again."""

Json = dict[str, Any]


class Glance:
    """The status of the job, at most ``PACE_S`` old. However often it is asked for, it is built so often at most."""

    def __init__(self, outlook: Outlook) -> None:
        self._outlook = outlook
        self._status: Json = {}
        self._text = b""
        self._until_s = 0.0
        self.pause_s = PACE_S

    def status(self, *, fresh: bool = False) -> Json:
        now_s = time.monotonic()
        if fresh or now_s >= self._until_s:
            self._status, self._text = self._outlook.status(), b""
            spent_s = time.monotonic() - now_s
            self.pause_s = max(PACE_S, spent_s * IDLE_SHARE)
            self._until_s = now_s + self.pause_s
        return self._status

    def text(self) -> bytes:
        status = self.status()
        self._text = self._text or msgspec.json.encode(status)
        return self._text


class Listener:
    """Somebody who hears of all changes, in their order."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(MAX_BACKLOG + 1)
        self.over = False
        """There is nothing more to come."""

    def tell(self, event: bytes) -> None:
        if self.over:
            return
        if self._waiting.qsize() >= MAX_BACKLOG:
            self.end()
        else:
            self._waiting.put_nowait(event)

    def end(self) -> None:
        """What waits is still handed out."""
        if not self.over:
            self.over = True
            self._waiting.put_nowait(b"")

    async def hear(self) -> bytes | None:
        """The next event; a comment if there is none for long; None at the end."""
        try:
            async with asyncio.timeout(BEAT_S):
                return await self._waiting.get() or None
        except TimeoutError:
            return b": nothing new\n\n"


class Feed:
    def __init__(self, outlook: Outlook, glance: Glance) -> None:
        self._ledger = outlook.ledger
        self._glance = glance
        self._listeners: set[Listener] = set()
        self._somebody = asyncio.Event()
        self._last: Json = {}
        self._recoveries = self._checkpoints = 0

    @property
    def heard(self) -> bool:
        """Somebody listens."""
        return bool(self._listeners)

    @property
    def full(self) -> bool:
        return len(self._listeners) >= MAX_LISTENERS

    @contextmanager
    def listener(self) -> Iterator[Listener]:
        """It hears at first how everything is."""
        if not self._listeners:
            self._last = self._glance.status()
            self._ledger.refresh()
            self._recoveries, self._checkpoints = self._ledger.counts
        listener = Listener()
        listener.tell(event("status", self._last))
        self._listeners.add(listener)
        self._somebody.set()
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            if not self._listeners:
                self._somebody.clear()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._somebody.wait()
            await asyncio.sleep(self._glance.pause_s)
            self._tell(self._news(self._glance.status(fresh=True)))

    def end(self) -> None:
        """The job is over: how it ended, and nothing more."""
        if not self._listeners:
            return
        last = self._glance.status(fresh=True)
        self._tell([*self._news(last), event("end", {"state": last["state"], "reason": last["reason"]})])
        for listener in self._listeners:
            listener.end()

    def _tell(self, events: list[bytes]) -> None:
        for text in events:
            for listener in self._listeners:
                listener.tell(text)

    def _news(self, status: Json) -> list[bytes]:
        change = shapes.change(self._last, status)
        self._last = status
        events = [event("change", change)] if change else []
        self._ledger.refresh()
        recoveries, checkpoints = self._ledger.counts
        new = shapes.newest(self._ledger.recoveries, recoveries - self._recoveries)
        events += [event("recovery", shapes.recovery(record)) for record in new]
        new_ones = shapes.newest(self._ledger.checkpoints, checkpoints - self._checkpoints)
        events += [event("checkpoint", record) for record in new_ones]
        self._recoveries, self._checkpoints = recoveries, checkpoints
        return events


def event(name: str, data: object) -> bytes:
    """JSON has no line breaks, so it is one line of data."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))
