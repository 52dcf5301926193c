"""The Unix socket of a node: each worker says who it is, then what it says is handed on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from everstep.agent.slots import SlotBook
from everstep.agent.worker import Line, LocalWorker
from everstep.errors import WireError
from everstep.types import WorkerId
from everstep.wire.auth import Token
from everstep.wire.codec import Codec
from everstep.wire.messages import (
    FromWorkerSide,
    Keep,
    NeedSlots,
    Notice,
    Publish,
    Raised,
    Report,
    SealedSlot,
    SkippedSlot,
    Stack,
    StateDigest,
    ToController,
    ToWorkerSide,
    WorkerHello,
)
from everstep.wire.server import Server, serve
from everstep.wire.terms import Terms

HELLO_S = 5.0
DRAIN_S = 0.1
"""For what a dead worker has sent. It is there already; a child that inherited its socket may keep the end away."""

_SENDS: Codec[ToWorkerSide] = Codec(ToWorkerSide)
_RECEIVES: Codec[FromWorkerSide] = Codec(FromWorkerSide)


@dataclass(slots=True, eq=False)
class _Visit:
    """One connection."""

    worker: LocalWorker | None = None
    """None until it has said hello."""
    greeted: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Switchboard:
    def __init__(
        self, workers: Mapping[WorkerId, LocalWorker], slots: SlotBook, tell: Callable[[ToController], None]
    ) -> None:
        self._workers = workers
        self._slots = slots
        self._tell = tell
        self._visits: set[_Visit] = set()
        self._server: Server[ToWorkerSide, FromWorkerSide] | None = None

    async def open(self, path: Path, token: Token | None) -> None:
        self._server = await serve(path, Terms(_SENDS, _RECEIVES, token), self._on_connection)

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()

    async def drain(self, worker: LocalWorker) -> None:
        """Hand on what it said before it died; it may not even have been heard to say hello."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                for visit in list(self._visits):
                    await visit.greeted.wait()
                    if visit.worker is worker:
                        await visit.over.wait()

    async def _on_connection(self, line: Line) -> None:
        visit = _Visit()
        self._visits.add(visit)
        try:
            worker = visit.worker = await self._greet(line)
            visit.greeted.set()
            async for message in line:
                self._on_message(worker, message)
        finally:
            self._visits.discard(visit)
            visit.greeted.set()
            visit.over.set()

    async def _greet(self, line: Line) -> LocalWorker:
        try:
            async with asyncio.timeout(HELLO_S):
                hello = await line.recv()
        except TimeoutError:
            raise WireError(f"no hello within {HELLO_S:g} s") from None
        if not isinstance(hello, WorkerHello):
            what = "the end" if hello is None else type(hello).__name__
            raise WireError(f"{what} instead of a hello")
        worker = self._workers.get(hello.worker)
        if worker is None:
            raise WireError(f"worker {hello.worker} does not run here")
        if worker.process is not None and worker.process.pid != hello.pid:
            raise WireError(f"pid {hello.pid} is not worker {worker.id} but a process that it started")
        if worker.line is not None:
            raise WireError(f"worker {worker.id} is connected already")
        worker.line = line
        return worker

    def _on_message(self, worker: LocalWorker, message: FromWorkerSide) -> None:
        speaker = message.event.worker if isinstance(message, Report) else message.worker
        if speaker != worker.id:
            raise WireError(f"worker {worker.id} speaks for worker {speaker}")
        if isinstance(message, Report):
            worker.report = message
            self._tell(message)
        elif isinstance(message, Raised):
            self._tell(Notice(worker.verdict(message)))
        elif isinstance(message, Publish | Keep):
            worker.remember(message)
            self._tell(message)
        elif isinstance(message, Stack | StateDigest):
            self._tell(message)
        elif isinstance(message, NeedSlots | SealedSlot | SkippedSlot):
            self._slots.on_message(worker, message)
        else:
            raise WireError("a second hello")
