"""What the agent knows of one worker, from the order to start it until it is gone."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from everstep.agent import exits
from everstep.agent.board import BoardReader
from everstep.agent.logs import WorkerLog
from everstep.agent.process import ExitStatus, WorkerProcess
from everstep.agent.ring import RingReader
from everstep.core.detector import Sighting
from everstep.core.events import Exited, Verdict
from everstep.errors import BoardError
from everstep.types import Rank, WorkerId
from everstep.wire.channel import Channel
from everstep.wire.messages import FromWorkerSide, Keep, Publish, Raised, Report, ToWorkerSide

Line = Channel[ToWorkerSide, FromWorkerSide]
"""The agent's end of a worker's socket."""

log = logging.getLogger(__name__)

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Pulse:
    """When the watch has seen which sign of life."""

    moves: int = -1
    beats: int = -1
    changed_at: float = 0.0
    told_at: float = 0.0


@dataclass(slots=True, eq=False)
class LocalWorker:
    id: WorkerId
    board: BoardReader
    ring: RingReader
    log: WorkerLog
    rank: Rank | None
    device: str
    launch: asyncio.Task[None] | None = None
    """Waits for its device and for the zygote."""
    process: WorkerProcess | None = None
    """None while it is being started."""
    line: Line | None = None
    """None until it has said hello."""
    report: Report | None = None
    """The newest."""
    told: dict[str, Publish | Keep] = field(default_factory=dict)
    """What else it said in its newest generation: a restarted controller has to hear it again."""
    raised: Raised | None = None
    doomed: bool = False
    """It has been killed by us, or will be as soon as it is started."""
    abandoned: bool = False
    """We gave it up because the controller is away, so it is not spoken of any more."""
    judged_at: int = -1
    """The moves of its board when it was judged."""
    deadline: asyncio.TimerHandle | None = None
    """When a fence has failed."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    cpu_s: float = 0.0
    pulse: Pulse = field(default_factory=Pulse)

    def remember(self, message: Publish | Keep) -> None:
        self.told = {name: old for name, old in self.told.items() if old.generation == message.generation}
        self.told[message.key if isinstance(message, Publish) else ""] = message

    def kill(self) -> None:
        self.doomed = True
        if self.launch is not None:
            self.launch.cancel()
        elif self.process is not None:
            self.process.kill()

    def look(self) -> Sighting | None:
        """What its board says; None from a board that its script has written over."""
        try:
            sample = self.board.read()
        except BoardError as error:
            log.warning("%s", error)
            return None
        return Sighting(
            worker=self.id,
            rank=self.rank,
            phase=sample.phase,
            version=sample.version,
            generation=sample.generation,
            # Without a connection there is no control thread: it has ended with the script, and beats no more.
            pulse=sample.heartbeat if self.line is not None and self.line.closed is None else 0,
            moves=sample.moves,
            moved_ago_s=max(0.0, (time.monotonic_ns() - sample.moved_ns) / 1e9),
            cpu_s=self.cpu_s,
            waiting=sample.waiting,
            attempt=sample.attempt,
            limit_s=sample.limit_s,
            pid=self.process.pid if self.process is not None else sample.pid,
        )

    def look_at_cpu(self) -> None:
        """CPU time of all its threads. It costs more than a look at the board."""
        if self.process is None:
            return
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_bytes()
        except OSError:  # it is gone
            return
        user, system = stat.rpartition(b")")[2].split()[11:13]  # behind the name, which may hold anything
        self.cpu_s = (int(user) + int(system)) / _TICKS_PER_S

    def verdict(self, raised: Raised) -> Verdict:
        """It said itself that its script has failed."""
        self.raised = raised
        seen = self.look()
        return Verdict(self.id, raised.cause, raised.traceback, seen.position if seen else None, raised.place)

    def exited(self, status: ExitStatus) -> Exited:
        """After its output was read to the end."""
        seen = self.look()
        evidence, place = f"{status} in {seen.place}" if seen else str(status), ""
        if exits.by_itself(status) and not self.doomed:
            tail = tuple(self.log.tail)
            place = self.raised.place if self.raised else exits.place(status, tail)
            words = self.raised.traceback if self.raised else exits.last_words(tail)
            evidence = f"{evidence}:\n{words}" if words else evidence
        moved = self.judged_at >= 0 and seen is not None and seen.moves != self.judged_at
        where = seen.position if seen else None
        return Exited(self.id, exits.code(status), evidence, where, place, moved, self._quiet_s(seen))

    def _quiet_s(self, seen: Sighting | None) -> float:
        """Since it last stamped its board or was last seen to beat, whichever is later."""
        if seen is None:
            return 0.0
        return min(seen.moved_ago_s, time.monotonic() - self.pulse.changed_at)
