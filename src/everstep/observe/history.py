"""What the journal tells of a run over time: the phases of the job, and what became of each worker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from everstep.controller.journal import Record, read
from everstep.controller.replay import walk
from everstep.core.effects import Assign, Effect, End, Send, Spawn
from everstep.core.events import Exited, JobPhase, NodeLost, Verdict
from everstep.core.machine import Machine
from everstep.observe.records import one_line
from everstep.types import Generation, NodeId, Rank, WorkerId

JOB_ENDED = "the job has ended"


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """The job was in one phase of one generation."""

    phase: JobPhase
    generation: Generation
    start_s: float
    end_s: float | None
    """None for the last one."""


@dataclass(slots=True)
class Fate:
    """What became of a worker."""

    worker: WorkerId
    node: NodeId
    rank: Rank | None
    end_s: float | None = None
    end: str = ""


@dataclass(slots=True)
class History:
    phases: list[PhaseSpan] = field(default_factory=list)
    workers: dict[WorkerId, Fate] = field(default_factory=dict)

    def _take(self, record: Record, machine: Machine, effects: Iterable[Effect]) -> None:
        now_s, event = record.time_s, record.entry
        self._enter(machine, now_s)
        if isinstance(event, Verdict) and (fate := self.workers.get(event.worker)) is not None and not fate.end:
            fate.end = f"{event.cause.value}: {one_line(event.evidence)}"
        elif isinstance(event, Exited):
            self._end(event.worker, now_s, one_line(event.evidence))
        elif isinstance(event, NodeLost):
            for fate in list(self.workers.values()):
                if fate.node == event.node and fate.worker not in machine.members.workers:
                    self._end(fate.worker, now_s, f"node {event.node}: {one_line(event.evidence)}")
        for effect in effects:
            if isinstance(effect, Spawn):
                self.workers[effect.worker] = Fate(effect.worker, effect.node, effect.rank)
            elif isinstance(effect, Send) and isinstance(effect.command, Assign):
                for worker in effect.to:
                    if worker in self.workers:
                        self.workers[worker].rank = effect.command.rank
            elif isinstance(effect, End):
                for worker in self.workers:
                    self._end(worker, now_s, JOB_ENDED)

    def _enter(self, machine: Machine, now_s: float) -> None:
        if self.phases:
            last = self.phases[-1]
            if (last.phase, last.generation) == (machine.phase, machine.generation):
                return
            self.phases[-1] = PhaseSpan(last.phase, last.generation, last.start_s, now_s)
        self.phases.append(PhaseSpan(machine.phase, machine.generation, now_s, None))

    def _end(self, worker: WorkerId, now_s: float, how: str) -> None:
        """The first to say it is closest to it."""
        fate = self.workers.get(worker)
        if fate is not None and fate.end_s is None:
            fate.end_s, fate.end = now_s, fate.end or how


def read_history(journal: Path) -> History:
    """Nothing, if the controller has not begun yet."""
    history = History()
    if journal.exists():
        for record, machine, effects in walk(read(journal)):
            history._take(record, machine, effects)
    return history
