"""A journal once more through a fresh machine: what the controller knew, decided and said, event by event."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from everstep.controller.journal import Record, read
from everstep.core.config import JobConfig
from everstep.core.effects import Effect, End, Note
from everstep.core.events import Event, JobPhase, Position, Stopped
from everstep.core.machine import Machine
from everstep.errors import InvalidTransition
from everstep.types import Generation, Rank


@dataclass(frozen=True, slots=True)
class ReplayLine:
    time_s: float
    event: str
    phase: JobPhase
    """After the event."""
    generation: Generation
    notes: tuple[str, ...]


def replay(path: Path) -> Iterator[ReplayLine]:
    """One line for each event of a run."""
    for record, machine, effects in walk(read(path)):
        notes = tuple(_sentence(effect) for effect in effects if isinstance(effect, Note | End))
        yield ReplayLine(record.time_s, str(record.entry), machine.phase, machine.generation, notes)


def walk(records: Iterable[Record]) -> Iterator[tuple[Record, Machine, list[Effect]]]:
    """The machine after each record, and what it asked for. It is one machine, and goes on changing."""
    machine: Machine | None = None
    for record in records:
        if isinstance(record.entry, JobConfig):
            machine = Machine(record.entry)
            yield record, machine, machine.start()
        else:
            assert machine is not None, "the journal's reader checks that the configuration is first"
            yield record, machine, handle(machine, record.entry)


def survivors(records: Iterable[Record]) -> dict[Generation, dict[Rank, Position]]:
    """Where the survivors of each generation were when they had stopped."""
    found: dict[Generation, dict[Rank, Position]] = {}
    for record, machine, _ in walk(records):
        event = record.entry
        if isinstance(event, Stopped):
            worker = machine.members.workers.get(event.worker)
            if worker is not None and worker.rank is not None:
                found.setdefault(event.generation, {})[worker.rank] = event.position
    return found


def handle(machine: Machine, event: Event) -> list[Effect]:
    """As the host does: what the table does not know is refused, and said, and changes nothing."""
    try:
        return machine.handle(event)
    except InvalidTransition as error:
        return [Note(f"refused: {error}")]


def _sentence(effect: Note | End) -> str:
    return effect.text if isinstance(effect, Note) else f"the job ends with code {effect.code}: {effect.reason}"
