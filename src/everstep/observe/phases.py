"""How long workers were in each phase of their steps, counted from the notes of the flight recorder. No clock, no I/O.

Every visit of a phase counts once it has ended in the ordinary way. One that a failure cuts off does not, nor one
behind which notes were lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from everstep.observe.notes import Note
from everstep.observe.tally import STEP_BOUNDS_S, Tally
from everstep.types import Mark, WorkerId

STEP = "step"
"""From the first Forward of a step to that of the next one."""

NAMES = {
    Mark.IDLE: "idle",
    Mark.FORWARD: "forward",
    Mark.BACKWARD: "backward",
    Mark.READY: "barrier",
    Mark.COMMITTED: "optimizer",
    Mark.CHECKPOINT: "checkpoint",
}
"""As `step.phase()` and faults name them; idle is between two steps."""

Counts = dict[str, tuple[tuple[int, ...], float]]
"""Of each phase: numbers by `STEP_BOUNDS_S`, and the sum in seconds."""


_NOWHERE = Note(0, -1, 0, 0, Mark.END)


@dataclass(slots=True)
class _Place:
    """Where a worker was last."""

    note: Note
    step: Note | None = None
    """The first Forward of its step, if nothing has gone wrong since."""


@dataclass(slots=True)
class PhaseTimes:
    """Of the workers of one node."""

    tallies: dict[str, Tally] = field(default_factory=dict)
    _places: dict[WorkerId, _Place] = field(default_factory=dict)

    def feed(self, worker: WorkerId, notes: Iterable[Note]) -> None:
        for note in notes:
            place = self._places.setdefault(worker, _Place(_NOWHERE))
            if note.mark in NAMES:
                if place.note.mark in NAMES:
                    self._add(NAMES[Mark(place.note.mark)], place.note, note)
                if note.mark == Mark.FORWARD:
                    self._turn(place, note)
            else:
                place.step = None
            place.note = note

    def forget(self, worker: WorkerId) -> None:
        """It is gone."""
        self._places.pop(worker, None)

    def counts(self) -> Counts:
        return {name: (tuple(tally.counts), tally.sum_s) for name, tally in self.tallies.items()}

    def _turn(self, place: _Place, forward: Note) -> None:
        """A step may come to Forward more than once."""
        begun = place.step
        if begun is not None and (begun.step, begun.attempt) == (forward.step, forward.attempt):
            return
        if begun is not None:
            self._add(STEP, begun, forward)
        place.step = forward

    def _add(self, name: str, begin: Note, end: Note) -> None:
        tally = self.tallies.setdefault(name, Tally(STEP_BOUNDS_S))
        tally.add((end.at_ns - begin.at_ns) / 1e9)


class JobPhases:
    """Of all nodes: what each agent has counted since it began."""

    def __init__(self) -> None:
        self._agents: dict[tuple[str, int], Counts] = {}

    def take(self, node: str, pid: int, counts: Counts) -> None:
        """The newest word of this agent stands for all it said before."""
        self._agents[node, pid] = counts

    def tallies(self) -> Mapping[str, Tally]:
        merged: dict[str, Tally] = {}
        for counts in self._agents.values():
            for name, (numbers, sum_s) in counts.items():
                tally = merged.setdefault(name, Tally(STEP_BOUNDS_S))
                tally.counts = [so_far + number for so_far, number in zip(tally.counts, numbers, strict=True)]
                tally.sum_s += sum_s
        return merged
