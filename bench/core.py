"""What a failure costs the controller's machine, by the number of nodes: `python -m bench.core`.

Every worker answers at once, so a row is the time in `Machine.handle` for all the events of one recovery: the
failure, the answers of every survivor and newcomer in every phase, and the first commit. If no operation is worse
than linear in the nodes, the microseconds per node stay about the same from row to row.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator

from everstep.core.config import JobConfig
from everstep.core.effects import Assign, Command, Effect, Kill, Reset, Restore, Resume, Send, Settle, Spawn, Stop
from everstep.core.events import (
    Committed,
    Connected,
    Event,
    Exited,
    JobPhase,
    NodeJoined,
    NodeLost,
    Position,
    Protected,
    Registered,
    Restored,
    Settled,
    Stopped,
)
from everstep.core.machine import Machine
from everstep.types import Coordinate, NodeId, Rank, Step, WorkerId, WorkerPhase

NODES = (16, 64, 256, 1024, 4096, 16384)
DEVICES = 8
ALL_DEVICES = tuple(f"d{device}" for device in range(DEVICES))
READY, IDLE = WorkerPhase.READY, WorkerPhase.IDLE


class Job:
    """A machine and workers that answer at once."""

    def __init__(self, nodes: int) -> None:
        self.machine = Machine(JobConfig(nodes * DEVICES, standbys=0, nodes=nodes))
        self._coming: deque[Event] = deque()
        self._take(self.machine.start())
        self._coming.extend(NodeJoined(NodeId(f"n{node:05}"), ALL_DEVICES) for node in range(nodes))

    def run(self) -> float:
        """Until nobody has anything to say; the seconds that the machine took."""
        spent = 0.0
        while self._coming:
            event = self._coming.popleft()
            begin = time.perf_counter()
            effects = self.machine.handle(event)
            spent += time.perf_counter() - begin
            self._take(effects)
        return spent

    def fail(self, *events: Event) -> float:
        """One failure and its recovery."""
        self._coming.extend(events)
        spent = self.run()
        assert self.machine.phase is JobPhase.RUNNING, self.machine.phase
        assert len(self.machine.members.seats) == self.machine.config.ranks
        return spent

    def _take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._coming.extend(self._answers(effect.to, effect.command))
            elif isinstance(effect, Spawn):
                self._coming.append(Registered(effect.worker))
            elif isinstance(effect, Kill):
                self._coming.append(Exited(effect.worker, -9))

    def _answers(self, workers: tuple[WorkerId, ...], command: Command) -> Iterator[Event]:
        generation = command.generation
        for worker in workers:
            match command:
                case Assign(rank=rank):
                    yield Protected(worker, Coordinate(rank, 0))
                case Stop():
                    yield Stopped(worker, generation, Position(READY, Step(self.machine.target)))
                case Settle(target=target):
                    yield Settled(worker, generation, Position(IDLE, target))
                case Reset():
                    yield Connected(worker, generation)
                case Restore(target=target):
                    yield Restored(worker, generation, target)
                case Resume(target=target) if worker == workers[0]:
                    yield Committed(worker, generation, target)
                case _:
                    pass


def measure(nodes: int) -> tuple[float, ...]:
    """Seconds of the first start; of one that a worker spoils, so that all begin again; of the loss of one worker;
    and of the loss of one node and the coming of another."""
    job, spoiled = Job(nodes), Job(nodes)
    started, again = job.fail(), spoiled.fail(Exited(WorkerId(0), 1))
    killed = job.fail(Exited(job.machine.members.seats[Rank(0)], -9))
    lost = job.fail(NodeLost(NodeId("n00000")), NodeJoined(NodeId("spare"), ALL_DEVICES))
    return started, again, killed, lost


def main() -> None:
    largest = int(sys.argv[1]) if len(sys.argv) > 1 else NODES[-1]
    print(f"Machine.handle, microseconds per node, {DEVICES} workers per node\n")
    print("".join(f"{name:>16}" for name in ("nodes", "first start", "spoiled start", "worker killed", "node lost")))
    for nodes in NODES:
        if nodes <= largest:
            row = (f"{seconds / nodes * 1e6:.1f}" for seconds in measure(nodes))
            print(f"{nodes:>16}" + "".join(f"{cell:>16}" for cell in row), flush=True)


if __name__ == "__main__":
    main()
