"""A run as it is drawn: everything that was recorded of it, in one value. Knows no files."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from everstep.core.events import JobPhase
from everstep.observe.checkpoints import CheckpointRecord
from everstep.observe.digests import DigestRecord
from everstep.observe.history import PhaseSpan
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
    digests: tuple[DigestRecord, ...] = ()
    phases: tuple[PhaseSpan, ...] = ()
    """Of the job."""
    last_s: float | None = None
    """The newest moment that is known: now, while it runs."""
    remarks: tuple[str, ...] = ()
    """What a reader has to know of the records themselves, a sentence each."""

    @property
    def began_s(self) -> float | None:
        """The first step was under way."""
        return next((span.start_s for span in self.phases if span.phase is JobPhase.RESUMING), None)

    @property
    def trained_s(self) -> float | None:
        """The last step was completed, or the newest moment."""
        if self.phases and self.phases[-1].phase in (JobPhase.DONE, JobPhase.ENDING):
            ends = [span.start_s for span in self.phases if span.phase is JobPhase.ENDING]
            return ends[-1] if ends else self.last_s
        return self.last_s

    @property
    def steps(self) -> int:
        """Completed ones, as far as it is known."""
        seen = [span.step for lane in self.lanes for span in lane.spans[-1:]]
        seen += [record.step for record in self.checkpoints]
        seen += [recovery.target + 1 for recovery in self.recoveries if recovery.t_first_step_s > 0]
        return max(seen, default=0)
