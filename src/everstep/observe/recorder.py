"""Makes one record of each recovery from what the machine was told, what it asked for, and when. No clock, no I/O.

It is given every event of a job, live or from the journal, after the machine has handled it, so the same journal
gives the same records. A record is open from a failure until the job trains, or ends. Meanwhile the time from one
event to the next goes to the stage that the recovery was in between; so the stages always add up to the total.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from everstep.core.effects import Action, Assign, Effect, End, Restore, Send, Spawn
from everstep.core.events import (
    Broken,
    Cause,
    Event,
    Exited,
    JobPhase,
    NodeLost,
    Position,
    Protected,
    Restored,
    Stalled,
    Verdict,
)
from everstep.core.machine import EXIT_INTERRUPTED, RECOVERING, Machine
from everstep.core.state import Loss
from everstep.observe.records import Decision, Donor, Failure, Outcome, Recovery, Replacement
from everstep.types import Generation, WorkerId, WorkerPhase

DIGITS = 6
"""Of a second: more would be noise."""


class Stage(enum.Enum):
    """Where the time of a recovery goes."""

    STOP = "t_stop_s"  # survivors come to a safe point; in a restart the old processes end
    DECIDE = "t_decide_s"  # all have answered; the failed one is not gone, or its rank has no place
    SETTLE = "t_settle_s"  # survivors finish or drop their step, newcomers run the script
    RESET = "t_reset_s"
    RESTORE = "t_restore_s"
    FIRST_STEP = "t_first_step_s"


_STAGES = {
    JobPhase.SETTLING: Stage.SETTLE,
    JobPhase.RESETTING: Stage.RESET,
    JobPhase.RESTORING: Stage.RESTORE,
    JobPhase.RESUMING: Stage.FIRST_STEP,
}


def _stage(machine: Machine) -> Stage:
    if machine.phase is JobPhase.STOPPING:
        return Stage.STOP if machine.awaiting else Stage.DECIDE
    if machine.phase is not JobPhase.STARTING:
        return _STAGES[machine.phase]
    if machine.members.leaving:
        return Stage.STOP
    return Stage.SETTLE if len(machine.members.seats) == machine.config.ranks else Stage.DECIDE


@dataclass(slots=True)
class _Failed:
    """A failure of the open record: who replaces it is known later."""

    loss: Loss
    where: Position | None
    replaced_by: Replacement | None = None
    false_alarm: bool = False

    def record(self) -> Failure:
        loss, stage = self.loss, self.loss.stage
        phase = self.where.phase if self.where else None
        if phase is None and stage is not None and stage < WorkerPhase.IDLE:
            phase = stage  # the membership knows these well; of a holder it knows no more than that it is one
        step = None if self.where is None or self.where.version < 0 else int(self.where.version)
        name = phase.name if phase is not None else None
        facts = (loss.cause.name, loss.evidence, loss.worker, loss.rank, loss.node, name, step)
        return Failure(*facts, self.replaced_by, self.false_alarm)


@dataclass(slots=True)
class _Open:
    """A recovery under way."""

    time_s: float
    detect_s: float
    last_s: float
    stage: Stage
    spent: dict[Stage, float] = field(default_factory=lambda: dict.fromkeys(Stage, 0.0))
    generations: list[Generation] = field(default_factory=list)
    failed: list[_Failed] = field(default_factory=list)
    decided_in: Generation | None = None
    decision: Decision | None = None
    judged: int = 0
    """Of the failures so many were known at an earlier decision."""
    steps_redone: int = 0
    spawned: set[WorkerId] = field(default_factory=set)
    assigned: dict[WorkerId, float] = field(default_factory=dict)
    protected: dict[WorkerId, float] = field(default_factory=dict)
    donors: dict[tuple[Generation, WorkerId], WorkerId] = field(default_factory=dict)
    received: dict[tuple[Generation, WorkerId], int] = field(default_factory=dict)


class Recorder:
    """Give it all events of a job in their order; it gives back a record when a recovery is over."""

    def __init__(self) -> None:
        self.count = 0
        """Records so far."""
        self.last: Recovery | None = None
        self._open: _Open | None = None
        self._broken_s: float | None = None
        """A collective failed then, and no verdict has come yet."""

    def take(self, event: Event, machine: Machine, effects: Sequence[Effect], time_s: float) -> Recovery | None:
        """After ``machine.handle(event)`` gave these effects, at this time of the wall clock."""
        if self._open is None:
            if not machine.losses:
                self._mind_broken(event, machine, time_s)
                return None
            self._open = self._begin(event, machine, time_s)
        now = self._open
        now.spent[now.stage] += max(0.0, time_s - now.last_s)  # a clock that is set back takes nothing away
        now.last_s = time_s
        self._note_event(now, event, machine, time_s)
        for effect in effects:
            self._note_effect(now, effect, machine, time_s)
        self._note_decision(now, machine)
        if (outcome := _outcome(machine, effects)) is None:
            now.stage = _stage(machine)
            return None
        self.last = self._finish(now, machine, effects, outcome)
        self.count += 1
        self._open = self._broken_s = None
        return self.last

    # ── the beginning ────────────────────────────────────────────────────────────────────────────────────

    def _mind_broken(self, event: Event, machine: Machine, time_s: float) -> None:
        if not machine.graced:
            self._broken_s = None
        elif isinstance(event, Broken) and self._broken_s is None:
            self._broken_s = time_s

    def _begin(self, event: Event, machine: Machine, time_s: float) -> _Open:
        if isinstance(event, Exited | Verdict | NodeLost | Stalled):
            detect_s = event.quiet_s
        elif self._broken_s is not None:
            detect_s = max(0.0, time_s - self._broken_s)
        else:
            detect_s = 0.0
        return _Open(time_s, detect_s, time_s, Stage.STOP)

    # ── the way ──────────────────────────────────────────────────────────────────────────────────────────

    def _note_event(self, now: _Open, event: Event, machine: Machine, time_s: float) -> None:
        now.failed += [_Failed(loss, _where(event, loss)) for loss in machine.losses]
        if isinstance(event, Exited) and event.moved:
            for failed in now.failed:
                if failed.loss.worker == event.worker and failed.loss.cause in (Cause.HANG, Cause.FROZEN):
                    failed.false_alarm = True
        elif isinstance(event, Protected):
            now.protected.setdefault(event.worker, time_s)
        elif isinstance(event, Restored) and (event.generation, event.worker) in now.received:
            now.received[event.generation, event.worker] = event.bytes
        recovering = machine.phase is JobPhase.STARTING or machine.phase in RECOVERING
        if recovering and machine.generation not in now.generations:
            now.generations.append(machine.generation)

    def _note_effect(self, now: _Open, effect: Effect, machine: Machine, time_s: float) -> None:
        if isinstance(effect, Spawn) and effect.rank is not None:
            now.spawned.add(effect.worker)
            self._replaced(now, effect.worker, machine)
        elif isinstance(effect, Send) and isinstance(effect.command, Assign):
            [worker] = effect.to
            now.assigned.setdefault(worker, time_s)
            self._replaced(now, worker, machine)
        elif isinstance(effect, Send) and isinstance(effect.command, Restore):
            [worker] = effect.to
            key = (effect.command.generation, worker)
            now.received.setdefault(key, 0)
            if effect.command.donor is not None:
                now.donors[key] = effect.command.donor

    def _replaced(self, now: _Open, worker: WorkerId, machine: Machine) -> None:
        """This worker has the rank now of whoever lost it last."""
        record = machine.members.workers.get(worker)
        for failed in reversed(now.failed):
            if record is not None and failed.loss.rank == record.rank:
                failed.replaced_by = Replacement(worker, record.node, worker not in now.spawned)
                return

    def _note_decision(self, now: _Open, machine: Machine) -> None:
        if machine.generation not in now.generations or machine.generation == now.decided_in:
            return
        if machine.phase is JobPhase.STARTING:
            decision = Decision.RESTART
        elif machine.phase not in _STAGES:
            return
        elif machine.source is not None:
            decision = Decision.ROLLBACK
        else:
            decision = Decision.FINISH if Action.FINISH in machine.actions.values() else Decision.REDO
        now.decided_in, now.decision = machine.generation, decision
        seen = [*machine.answers.values(), *(failed.where for failed in now.failed[now.judged :])]
        begun = max((_begun(position) for position in seen if position is not None), default=0)
        now.steps_redone += max(0, begun - machine.target)
        now.judged = len(now.failed)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────

    def _finish(self, now: _Open, machine: Machine, effects: Sequence[Effect], outcome: Outcome) -> Recovery:
        first = now.failed[0].record()
        ends = [effect.reason for effect in effects if isinstance(effect, End)]
        scripts = [at - now.assigned[worker] for worker, at in now.protected.items() if worker in now.assigned]
        spent: dict[str, Any] = {stage.value: round(seconds, DIGITS) for stage, seconds in now.spent.items()}
        top = {name: getattr(first, name) for name in _OF_THE_FIRST}
        return Recovery(
            number=self.count,
            time=now.time_s,
            generation=machine.generation,
            generations=tuple(now.generations),
            target=machine.target,
            decision=now.decision,
            reason=ends[-1] if ends and outcome is not Outcome.DONE else machine.reason,
            donors=_donors(now, machine),
            bytes=sum(now.received.values()),
            t_detect_s=round(now.detect_s, DIGITS),
            t_script_s=round(max(scripts, default=0.0), DIGITS),
            t_total_s=round(now.detect_s + sum(now.spent.values()), DIGITS),
            steps_redone=now.steps_redone,
            outcome=outcome,
            failures=tuple(failed.record() for failed in now.failed),
            **spent,
            **top,
        )


_OF_THE_FIRST = tuple({field.name for field in fields(Failure)} & {field.name for field in fields(Recovery)})


def _outcome(machine: Machine, effects: Sequence[Effect]) -> Outcome | None:
    """None while the recovery goes on."""
    if machine.phase in (JobPhase.RUNNING, JobPhase.ENDING):
        return Outcome.RECOVERED
    if machine.phase is JobPhase.DONE:
        return Outcome.DONE
    if machine.phase is JobPhase.FAILED:
        codes = [effect.code for effect in effects if isinstance(effect, End)]
        return Outcome.INTERRUPTED if EXIT_INTERRUPTED in codes else Outcome.FAILED
    return None


def _where(event: Event, loss: Loss) -> Position | None:
    if isinstance(event, Exited | Verdict) and event.worker == loss.worker:
        return event.where
    if isinstance(event, NodeLost):
        return next((position for worker, position in event.where if worker == loss.worker), None)
    return None


def _begun(position: Position) -> int:
    """Steps that somebody who stands there has begun so far."""
    inside = WorkerPhase.FORWARD <= position.phase <= WorkerPhase.COMMITTED
    return max(0, position.version) + inside


def _donors(now: _Open, machine: Machine) -> tuple[Donor, ...]:
    """Of the last generation; those of a generation before have given in vain."""
    members = machine.members
    found = []
    for (generation, newcomer), worker in sorted(now.donors.items()):
        record = members.workers.get(worker)
        if generation == machine.generation and record is not None and record.rank is not None:
            found.append(Donor(worker, record.rank, newcomer))
    return tuple(found)
