"""A run as it is drawn: everything that was recorded of it, in one value. Knows no files."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from everstep.core.events import JobPhase
from everstep.observe.checkpoints import CheckpointRecord
from everstep.observe.records import Recovery
from everstep.observe.timeline import Lane


class State(enum.StrEnum):
    """How far a run has come."""

    EMPTY = "nothing has run"
    RUNNING = "still running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    CUT_OFF = "ended without a result"


class Word(enum.Enum):
    """What the controller and a worker said to each other in a recovery."""

    ASSIGN = "assign"
    PROTECTED = "protected"
    STOP = "stop"
    STOPPED = "stopped"
    SETTLE = "settle"
    SETTLED = "settled"
    RESET = "reset"
    CONNECTED = "connected"
    RESTORE = "restore"
    RESTORED = "restored"
    RESUME = "resume"
    COMMITTED = "committed"


@dataclass(frozen=True, slots=True)
class Message:
    """When the controller sent or heard it. Seconds since 1970, as all times here."""

    time_s: float
    word: Word
    generation: int
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """The job came into a phase."""

    time_s: float
    phase: JobPhase
    generation: int


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker that had a rank at some time."""

    worker: int
    rank: int
    node: str


@dataclass(frozen=True, slots=True)
class Run:
    """What is missing in the directory is empty here, and named in ``remarks``."""

    name: str
    state: State
    reason: str = ""
    """Why it ended."""
    program: str = ""
    ranks: int = 0
    lanes: tuple[Lane, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    checkpoints: tuple[CheckpointRecord, ...] = ()
    seats: tuple[Seat, ...] = ()
    turns: tuple[Turn, ...] = ()
    messages: tuple[Message, ...] = ()
    steps: int = 0
    """Completed ones, as far as it is known."""
    last_s: float | None = None
    """The newest moment that is known: now, while it runs."""
    remarks: tuple[str, ...] = ()
    """What a reader has to know of the records themselves, a sentence each."""

    @property
    def began_s(self) -> float | None:
        """The first step was under way."""
        return next((turn.time_s for turn in self.turns if turn.phase is JobPhase.RESUMING), None)

    @property
    def trained_s(self) -> float | None:
        """The last step was completed, or the newest moment."""
        if self.turns and self.turns[-1].phase in (JobPhase.DONE, JobPhase.ENDING):
            ends = [turn.time_s for turn in self.turns if turn.phase is JobPhase.ENDING]
            return ends[-1] if ends else self.last_s
        return self.last_s
