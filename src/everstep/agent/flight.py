"""The flight recorder of a node: takes the notes out of the workers' rings and writes what is kept to one file.

The file is bounded: when samples fill `SAMPLES_BYTES`, every second one is dropped, and from then on half as many are
taken. What belongs to failures stays. A disk that is full ends the recording, never the training.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from everstep.agent.ring import RingReader
from everstep.agent.tape import Kept, Tape
from everstep.agent.thinning import sample_bytes, thin
from everstep.errors import EverstepError
from everstep.observe.notes import (
    CODEC,
    KIND,
    MAGIC,
    Chunk,
    Clock,
    Entry,
    Gone,
    Note,
    Opened,
    flight_path,
    pack,
)
from everstep.observe.phases import PhaseTimes
from everstep.types import NodeId, Rank, WorkerId
from everstep.wire.records import RecordFile

log = logging.getLogger(__name__)

LOOK_S = 0.2
SAMPLES_BYTES = 16 << 20
"""Of samples at most; before them the file has about 3 kB for each worker and recovery."""


class Recorded(Protocol):
    """What of a `LocalWorker` is needed."""

    @property
    def id(self) -> WorkerId: ...

    @property
    def rank(self) -> Rank | None: ...

    @property
    def ring(self) -> RingReader: ...


class Flight:
    """One for an agent. Made in the event loop."""

    def __init__(
        self,
        run_dir: Path,
        node: NodeId,
        workers: Mapping[WorkerId, Recorded],
        limit_bytes: int = SAMPLES_BYTES,
        times: PhaseTimes | None = None,
    ) -> None:
        self._path = flight_path(run_dir, node)
        self._workers = workers
        self._limit_bytes = limit_bytes
        self._times = times or PhaseTimes()
        self._tapes: dict[WorkerId, Tape] = {}
        self._stride = 1
        self._sampled_bytes = 0
        self.thinning: asyncio.Task[None] | None = None
        """Under way."""
        self._file = self._open(Opened(node, socket.gethostname(), os.getpid(), time.monotonic_ns(), time.time()))

    async def run(self) -> None:
        """Until it is cancelled."""
        while self._file is not None:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Take what is new out of all rings."""
        self._write([entry for worker in self._workers.values() for entry in self._look_at(worker)])
        if self._sampled_bytes > self._limit_bytes and self.thinning is None:
            self.thinning = asyncio.create_task(self._thin())

    def ended(self, worker: Recorded, at_ns: int, how: str) -> None:
        """Its process is gone; its ring is not yet."""
        tape = self._tapes.pop(worker.id, None) or Tape()
        kept = tape.feed(self._take(worker, final=True), at_ns, self._stride)
        self._times.forget(worker.id)
        last = tape.end()
        gone = Gone(worker.id, at_ns, how)
        self._write([*_chunks(worker, kept), *_chunks(worker, last), gone])

    def set_clock(self, clock: Clock) -> None:
        self._write([clock])

    def close(self) -> None:
        """What is being thinned out stays as it was."""
        if self.thinning is not None:
            self.thinning.cancel()
            self.thinning = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _look_at(self, worker: Recorded) -> Iterable[Entry]:
        tape = self._tapes.setdefault(worker.id, Tape())
        return _chunks(worker, tape.feed(self._take(worker), time.monotonic_ns(), self._stride))

    def _take(self, worker: Recorded, *, final: bool = False) -> list[Note]:
        notes = worker.ring.take(final=final)
        self._times.feed(worker.id, notes)
        return notes

    # ── the file ─────────────────────────────────────────────────────────────────────────────────────────

    def _open(self, opened: Opened) -> RecordFile | None:
        """As an earlier agent of this node has left it."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists():
                file, found = RecordFile.reopen(self._path, MAGIC, KIND)
                entries = [CODEC.decode(body) for _, body in found]
                self._sampled_bytes = sum(map(sample_bytes, entries))
            else:
                file = RecordFile.create(self._path, MAGIC)
            file.append(CODEC.encode(opened))
        except (OSError, EverstepError) as error:
            log.warning("no flight record of this node is written: %s", error)
            return None
        return file

    async def _thin(self) -> None:
        """In a thread, because it takes long; what is written meanwhile goes to the old file, and then behind it."""
        old = self._file
        assert old is not None
        self._stride *= 2
        end, before, part = old.size_bytes, self._sampled_bytes, self._path.with_suffix(".part")
        try:
            sampled = await asyncio.to_thread(thin, self._path, end, part, self._stride)
            if self._file is not old:
                return  # it has come to its end
            new = RecordFile(part, part.stat().st_size)
            new.copy_from(self._path, end)
            part.replace(self._path)
        except (OSError, EverstepError) as error:
            log.warning("the flight record of this node ends here: %s", error)
            self.close()
            return
        finally:
            part.unlink(missing_ok=True)
        self._file, self.thinning = new, None
        self._sampled_bytes += sampled - before
        old.close()

    def _write(self, entries: list[Entry]) -> None:
        if self._file is None or not entries:
            return
        try:
            self._file.append(*map(CODEC.encode, entries))
            self._sampled_bytes += sum(map(sample_bytes, entries))
        except OSError as error:
            log.warning("the flight record of this node ends here: %s", error)
            self.close()


def _chunks(worker: Recorded, kept: Kept) -> list[Entry]:
    both = ((kept.pinned, False), (kept.samples, True))
    return [Chunk(worker.id, worker.rank, sample, b"".join(map(pack, notes))) for notes, sample in both if notes]
