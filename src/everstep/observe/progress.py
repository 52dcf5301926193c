"""How a job gets on: its speed, and the share of its time that went into steps that count. No clock, no I/O.

It is given every event of the job after the machine has handled it, live or from the journal, and between the events
what the boards show. Time counts from the end of one step to the end of the next, and only if the step still counts:
what a failure cuts off, what is done again, recoveries, copies to memory and the start do not.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from everstep.core.events import Event, Exited, JobPhase, NodeLost, Sealed, Stalled, Verdict
from everstep.core.machine import TRAINING, Machine
from everstep.core.watch import Sighting
from everstep.types import Generation

SPEED_S = 10.0
"""The speed is that of the steps that ended in the last so many seconds, of two at least."""


class Progress:
    """All times are those of the wall clock of the controller."""

    def __init__(self, started_s: float) -> None:
        self.started_s = started_s
        self.began_s: float | None = None
        """When the first step began."""
        self.ended_s: float | None = None
        """When the job was over."""
        self.productive_s = 0.0
        """In steps that count."""
        self.version = 0
        """Completed steps of the state that the job goes on with."""
        self.completed = 0
        """The most that it ever had: what a rollback takes away is counted again only when there is more."""
        self.failures: Counter[str] = Counter()
        """Of workers that had a rank, by the name of the cause."""
        self._generation = Generation(0)
        self._trains = False
        self._mark_s: float | None = None
        """When the newest step ended, or the training began; None before it did."""
        self._paused_s = 0.0
        """When the training stopped, as far as it is known."""
        self._copy = (0, 0, 0)
        """The age of the newest checkpoint that somebody has sealed."""
        self._copied_s = 0.0
        """The longest of its copies to memory so far."""
        self._held_up_s = 0.0
        """By copies that no end of a step has followed yet."""
        self._ends: deque[tuple[float, int]] = deque()
        """Times, and completed steps by then, of this stretch of training."""

    def take(self, event: Event, machine: Machine, time_s: float) -> None:
        """After ``machine.handle(event)`` at this time."""
        self.failures.update(loss.cause.name for loss in machine.losses)
        if isinstance(event, Sealed):
            self._hold_up(event)
        # A script that protects nothing trains while the machine still takes it for starting.
        starting = machine.phase is JobPhase.STARTING
        trains = machine.phase in TRAINING or (starting and not machine.members.coordinates)
        if self._trains and (machine.losses or not trains):
            quiet_s = event.quiet_s if isinstance(event, Exited | Verdict | NodeLost | Stalled) else 0.0
            self._paused_s = time_s - quiet_s
            self._trains = False
        begins = self._mark_s is None and not starting
        if trains and (begins or not self._trains):
            self._resume(machine, None if starting else time_s)
        self._generation = machine.generation
        if machine.phase in (JobPhase.DONE, JobPhase.FAILED) and self.ended_s is None:
            self.ended_s = time_s

    def see(self, sightings: Iterable[Sighting], time_s: float) -> None:
        """What agents have read from boards by then."""
        # Once the job goes on, only those of its generation tell; before, survivors may finish their update.
        oldest = self._generation if self._trains else Generation(0)
        newest = max((seen.version for seen in sightings if seen.training and seen.generation >= oldest), default=-1)
        if newest < 0 or (self._mark_s is None and not self._trains):
            return
        if self._mark_s is None:
            self._begin(time_s)
            self.version = newest
        if newest > self.version:
            self._advance(newest, time_s if self._trains else min(time_s, self._paused_s))

    @property
    def begun(self) -> bool:
        """It has trained."""
        return self.began_s is not None

    def goodput(self, now_s: float) -> float:
        """Share of the time since the first step began that went into steps that count."""
        training_s = self.training_s(now_s)
        return min(1.0, self.productive_s / training_s) if training_s > 0 else 0.0

    def training_s(self, now_s: float) -> float:
        """Since the first step began, whatever happened meanwhile."""
        return 0.0 if self.began_s is None else self._until_s(now_s) - self.began_s

    def elapsed_s(self, now_s: float) -> float:
        """Since the job began."""
        return self._until_s(now_s) - self.started_s

    def _until_s(self, now_s: float) -> float:
        """A job that is over stands still, and a clock that is set back takes nothing away."""
        return max(now_s if self.ended_s is None else self.ended_s, self.started_s, self.began_s or 0.0)

    def steps_per_s(self) -> float:
        """Of late; 0 while the job does not train."""
        if not self._trains or len(self._ends) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._ends[0], self._ends[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0

    def _resume(self, machine: Machine, mark_s: float | None) -> None:
        """All go on with step T. If that is beyond what was seen, those steps ended before the training stopped."""
        if self._mark_s is not None and machine.target > self.version:
            self._advance(machine.target, self._paused_s)
        self._trains = True
        self._mark_s, self.version = None, machine.target
        self._held_up_s = 0.0
        self._ends.clear()
        if mark_s is not None:
            self._begin(mark_s)
            self._ends.append((mark_s, self.version))

    def _hold_up(self, sealed: Sealed) -> None:
        """The job waits for the rank that takes longest to copy. What an agent tells again is known."""
        if sealed.checkpoint.age > self._copy:
            self._copy, self._copied_s = sealed.checkpoint.age, 0.0
        if sealed.checkpoint.age == self._copy and sealed.k0_s > self._copied_s:
            self._held_up_s += sealed.k0_s - self._copied_s
            self._copied_s = sealed.k0_s

    def _begin(self, time_s: float) -> None:
        self._mark_s = time_s
        if self.began_s is None:
            self.began_s = time_s

    def _advance(self, version: int, time_s: float) -> None:
        assert self._mark_s is not None
        spent_s = max(0.0, time_s - self._mark_s - self._held_up_s)
        self._held_up_s = 0.0
        new = max(0, version - max(self.version, self.completed))
        self.productive_s += spent_s * new / (version - self.version)
        self.completed = max(self.completed, version)
        self._mark_s, self.version = max(time_s, self._mark_s), version
        self._ends.append((self._mark_s, version))
        while len(self._ends) > 2 and self._ends[1][0] <= self._mark_s - SPEED_S:
            self._ends.popleft()
