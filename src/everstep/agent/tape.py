"""Which notes of a worker are kept: all around failures, one step in so many otherwise. Pure: no clock, no files.

A step is the unit: from its Forward to the next step's. Those of the last few steps are held back, so that a failure
finds what came before it.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from everstep.observe.notes import Note
from everstep.types import Mark

BEFORE, AFTER = 8, 4
"""Steps that are kept before a failure, or the end of a worker, and after a recovery."""
SLOW_NS = 1_000_000_000
"""A step that takes longer is written while it runs: there are few of these, and one that hangs never ends."""
DENSER = 64
"""Steps with a checkpoint are so much more likely to be sampled."""

_FORWARD, _CHECKPOINT = int(Mark.FORWARD), int(Mark.CHECKPOINT)
_OF_STEPS = frozenset((Mark.IDLE, Mark.FORWARD, Mark.BACKWARD, Mark.READY, Mark.COMMITTED, Mark.CHECKPOINT, Mark.END))


class Kept(NamedTuple):
    """Notes to write: for ever, and as samples. What became more important may come a second time."""

    pinned: list[Note]
    samples: list[Note]


class _Fate(enum.Enum):
    OPEN = enum.auto()
    SAMPLE = enum.auto()
    PIN = enum.auto()


@dataclass(slots=True)
class _Unit:
    begin: tuple[int, int] | None
    """Step and attempt; None before the first."""
    fate: _Fate
    notes: list[Note] = field(default_factory=list)
    written: int = 0


class Tape:
    """Of one worker."""

    def __init__(self) -> None:
        self._unit = _Unit(None, _Fate.PIN)
        self._recent: deque[_Unit] = deque(maxlen=BEFORE)
        self._after = AFTER

    def feed(self, notes: Iterable[Note], now_ns: int, stride: int) -> Kept:
        """What has happened up to now; of steps without a failure those that ``stride`` divides are kept."""
        kept = Kept([], [])
        for note in notes:
            mark = note.mark
            if mark == _FORWARD and (note.step, note.attempt) != self._unit.begin:
                self._turn(note, kept, stride)
            unit = self._unit
            unit.notes.append(note)
            if mark not in _OF_STEPS:
                self._pin(kept)
            elif mark == _CHECKPOINT and unit.fate is _Fate.OPEN and is_sample(note.step, stride, True):
                unit.fate = _Fate.SAMPLE
        unit = self._unit
        if unit.fate is _Fate.OPEN and unit.notes and now_ns - unit.notes[0].at_ns > SLOW_NS:
            unit.fate = _Fate.SAMPLE
        _write(unit, kept)
        return kept

    def end(self) -> Kept:
        """The worker has ended: what came before is kept."""
        kept = Kept([], [])
        self._pin(kept)
        _write(self._unit, kept)
        return kept

    def _turn(self, note: Note, kept: Kept, stride: int) -> None:
        """The next step begins, and ends this one."""
        # Just before it, so that notes sorted by time are in order.
        self._unit.notes.append(note._replace(at_ns=note.at_ns - 1, mark=int(Mark.END)))
        _write(self._unit, kept)
        self._recent.append(self._unit)
        fate = _Fate.SAMPLE if is_sample(note.step, stride, False) else _Fate.OPEN
        if self._after:
            self._after -= 1
            fate = _Fate.PIN
        self._unit = _Unit((note.step, note.attempt), fate)

    def _pin(self, kept: Kept) -> None:
        self._after = AFTER
        for unit in (*self._recent, self._unit):
            if unit.fate is not _Fate.PIN:
                unit.fate, unit.written = _Fate.PIN, 0
                _write(unit, kept)


def is_sample(step: int, stride: int, checkpoint: bool) -> bool:
    """The same steps on all nodes. With twice the stride they are a part of those before."""
    return step % (max(1, stride // DENSER) if checkpoint else stride) == 0


def _write(unit: _Unit, kept: Kept) -> None:
    """What of it has not been written yet."""
    if unit.fate is _Fate.OPEN:
        return
    (kept.pinned if unit.fate is _Fate.PIN else kept.samples).extend(unit.notes[unit.written :])
    unit.written = len(unit.notes)
