"""What a journal tells of a run: the phases of the job, who had which rank, and what was said in each recovery."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from everstep.controller.journal import Record
from everstep.controller.replay import walk
from everstep.core.config import JobConfig
from everstep.core.effects import Assign, Effect, Reset, Restore, Resume, Send, Settle, Stop
from everstep.core.events import Committed, Connected, Ended, Event, JobPhase, Protected, Restored, Settled, Stopped
from everstep.core.machine import Machine
from everstep.observe.report.run import Message, Seat, Turn, Word

_SENT: dict[type, Word] = {
    Assign: Word.ASSIGN,
    Stop: Word.STOP,
    Settle: Word.SETTLE,
    Reset: Word.RESET,
    Restore: Word.RESTORE,
    Resume: Word.RESUME,
}
_HEARD: dict[type, Word] = {
    Protected: Word.PROTECTED,
    Stopped: Word.STOPPED,
    Settled: Word.SETTLED,
    Connected: Word.CONNECTED,
    Restored: Word.RESTORED,
    Committed: Word.COMMITTED,
}


@dataclass(slots=True)
class Story:
    ranks: int = 0
    turns: list[Turn] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    seats: list[Seat] = field(default_factory=list)
    steps: int = 0
    last_s: float | None = None


def tell(records: Iterable[Record]) -> Story:
    """The journal goes through a machine once more, as after a restart of the controller."""
    story = Story()
    for record, machine, effects in walk(records):
        story.last_s = record.time_s
        _note_turn(story, record.time_s, machine)
        if isinstance(record.entry, JobConfig):
            story.ranks = record.entry.ranks
        else:
            _note_event(story, record.time_s, machine, record.entry)
        _note_effects(story, record.time_s, machine, effects)
    return story


def _note_turn(story: Story, time_s: float, machine: Machine) -> None:
    """An event may lead through several phases; only the one where it ends takes time."""
    last = story.turns[-1] if story.turns else None
    if last is None or (last.phase, last.generation) != (machine.phase, machine.generation):
        story.turns.append(Turn(time_s, machine.phase, machine.generation))


def _note_event(story: Story, time_s: float, machine: Machine, event: Event) -> None:
    if isinstance(event, Committed):
        story.steps = max(story.steps, event.step + 1)
    elif isinstance(event, Ended):
        story.steps = max(story.steps, event.version)
    if isinstance(event, Protected | Stopped | Settled | Connected | Restored | Committed) and _matters(machine):
        story.messages.append(Message(time_s, _HEARD[type(event)], machine.generation, (event.worker,)))


def _note_effects(story: Story, time_s: float, machine: Machine, effects: Sequence[Effect]) -> None:
    for effect in effects:
        if not isinstance(effect, Send):
            continue
        if isinstance(effect.command, Assign):
            node = machine.members.workers[effect.to[0]].node
            story.seats.append(Seat(effect.to[0], effect.command.rank, node))
        word = _SENT.get(type(effect.command))
        if word is not None and _matters(machine):
            story.messages.append(Message(time_s, word, machine.generation, effect.to))


def _matters(machine: Machine) -> bool:
    """The start of a job is no recovery, and has a message for each worker."""
    return machine.generation > 1 and machine.phase is not JobPhase.STARTING
