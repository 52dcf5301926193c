"""The worker's side of the protocol: where the main thread stands, and what a command does to that.

Two threads call it under one lock (I5): the main thread announces its moves, the control thread brings commands.
Whoever comes first wins, and the other one finds the new state: a barrier that returns success after a Stop was
heard moves nobody. `MOVES` says from where each move goes to where. Every move but the end of a committed update is a
safe point: if a Stop was heard, or a collective has failed, the main thread is parked instead, and a parked main
thread moves by command only.

    Stop      cut the collectives; answered by a parked main thread, or by one that finishes a committed update
    Settle    finish the update in place, or drop the step
    Reset     remake the groups: from here on the generation is the new one
    Restore   fill this worker; Donate: serve it to others
    Resume    run
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass, field, fields
from typing import Self, cast

from everstep.core.effects import (
    Action,
    Assign,
    Command,
    Donate,
    Release,
    Reset,
    Restore,
    Resume,
    Role,
    Settle,
    Stop,
)
from everstep.core.events import (
    Broken,
    Checkpoint,
    Committed,
    Connected,
    Ended,
    FromWorker,
    Position,
    Protected,
    Registered,
    Restored,
    Settled,
    Stopped,
    Unusable,
)
from everstep.errors import InvalidTransition
from everstep.types import Coordinate, Generation, Rank, Step, WorkerId, WorkerPhase

SPAWNED, STANDBY, BUILDING, HOLLOW, IDLE, FORWARD, BACKWARD, READY, COMMITTED, ENDED = WorkerPhase
IN_STEP = (FORWARD, BACKWARD, READY)


class Move(enum.Enum):
    """What the main thread does next."""

    BEGIN = "begin a step"
    BACKWARD = "begin Backward"
    READY = "enter the barrier with complete gradients"
    PASS = "pass the barrier"
    UPDATE = "end the block after a committed update"
    LEAVE = "leave the loop"


MOVES: dict[Move, tuple[tuple[WorkerPhase, ...], WorkerPhase]] = {
    Move.BEGIN: ((IDLE,), FORWARD),
    Move.BACKWARD: ((FORWARD,), BACKWARD),
    Move.READY: ((FORWARD, BACKWARD), READY),
    Move.PASS: ((READY,), COMMITTED),
    Move.UPDATE: ((COMMITTED,), IDLE),
    Move.LEAVE: ((IDLE,), ENDED),
}


class Do(enum.Enum):
    """What the runtime has to do now. The argument, if any, is the command that asked for it."""

    CUT = "cut all collectives"
    PROCEED = "let the main thread finish the update, in the barrier where it waits"
    DROP = "unwind the step and drop its gradients, then call dropped()"
    CONNECT = "make the groups of the table, then call connected()"
    FILL = "receive or load the state, then call filled()"
    SERVE = "give the state to newcomers"
    GREET = "say the first words in the new groups, and stay"
    GO = "let the main thread say the first words in new groups, and run"


Out = FromWorker | Do


@dataclass(slots=True)
class WorkerMachine:
    worker: WorkerId
    phase: WorkerPhase = SPAWNED
    version: Step = Step(0)
    """Number of updates that the state includes; also the step that runs or is next."""
    generation: Generation = Generation(0)
    """Whose groups are in use."""
    stop: Generation = Generation(0)
    """The newest Stop heard. Above ``generation`` it is pending."""
    parked: bool = False
    """The main thread waits in our code and moves by command only."""
    tainted: bool = False
    """A collective of this step has failed: it cannot become READY any more."""
    fresh: bool = False
    """The next commit is the first one of this generation, and reported."""
    over: bool = False
    """The loop has to be left at this version."""
    rank: Rank | None = None
    role: Role = Role.FOUNDER
    table: tuple[WorkerId, ...] = ()
    order: Command | None = None
    """The command that is being carried out."""
    answer: FromWorker | None = None
    """The newest report, given again when a command comes again."""
    out: list[Out] = field(default_factory=list, repr=False)

    # ── the main thread ──────────────────────────────────────────────────────────────────────────────────

    def register(self) -> list[Out]:
        """The script called init()."""
        self._begin(SPAWNED)
        self.phase, self.parked = STANDBY, True
        return self._report(Registered(self.worker))

    def protect(self, coordinate: Coordinate, layout: str) -> list[Out]:
        """The script called protect(): its objects exist, and hold state if it founded the job."""
        self._begin(BUILDING)
        self.phase = IDLE if self.role is Role.FOUNDER else HOLLOW
        self.parked = True
        return self._report(Protected(self.worker, coordinate, layout))

    def move(self, move: Move) -> list[Out]:
        """Go on, or be parked: ask ``parked`` afterwards."""
        sources, target = MOVES[move]
        self._begin(*sources)
        if move is not Move.UPDATE and self.must_park:
            return self._park()
        self.phase = target
        if move is Move.UPDATE:
            self.version = Step(self.version + 1)
            return self._updated()
        if move is Move.PASS and self.fresh:
            self.fresh = False
            return self._report(Committed(self.worker, self.generation, self.version))
        if move is Move.LEAVE:
            self.parked = True
            return self._report(Ended(self.worker, self.generation, self.version))
        return self.out

    @property
    def stopping(self) -> bool:
        return self.stop > self.generation

    @property
    def must_park(self) -> bool:
        return self.stopping or self.tainted

    def safe_point(self) -> list[Out]:
        """One of our calls, or a module boundary, inside a step."""
        self._begin(IDLE, *IN_STEP, COMMITTED)
        return self._park() if self.must_park and self.phase is not COMMITTED else self.out

    def broken(self, evidence: str = "") -> list[Out]:
        """A collective failed. In the barrier the main thread waits there for the decision; elsewhere the step is
        tainted, and whatever the user's code does with the error, its next safe point parks it."""
        self._begin(IDLE, HOLLOW, ENDED, *IN_STEP)
        self.tainted = self.phase in IN_STEP
        if not self.stopping:
            self._report(Broken(self.worker, self.generation, evidence))
        return self._park() if self.phase in (READY, IDLE, HOLLOW, ENDED) else self.out

    def dropped(self) -> list[Out]:
        """The step was unwound, its gradients are gone."""
        self._begin(*IN_STEP)
        self.phase = IDLE
        return self._park_settled()

    def connected(self) -> list[Out]:
        """The groups of the table are up."""
        self._begin(IDLE, HOLLOW, ENDED)
        self.parked = True
        if self.stopping:
            return self._park()
        return self._report(Connected(self.worker, self.generation))

    def filled(self, version: Step, size_bytes: int = 0) -> list[Out]:
        """The state is complete and verified."""
        self._begin(HOLLOW)
        self.phase, self.version, self.parked = IDLE, version, True
        if self.stopping:
            return self._park()
        return self._report(Restored(self.worker, self.generation, version, size_bytes))

    def unusable(self, checkpoint: Checkpoint, evidence: str) -> list[Out]:
        """The checkpoint that was to be loaded cannot be, as all ranks have found together."""
        self._begin(HOLLOW)
        self.parked = True
        if self.stopping:
            return self._park()
        return self._report(Unusable(self.worker, self.generation, checkpoint, evidence))

    # ── the control thread ───────────────────────────────────────────────────────────────────────────────

    def command(self, command: Command) -> list[Out]:
        """Obey, or answer again if it is known, or ignore it if it is of an old generation."""
        self.out = []
        here = command.generation == self.generation
        if isinstance(command, Assign):
            self._on_assign(command)
        elif command.generation < max(self.stop, self.generation):
            pass
        elif isinstance(command, Stop):
            self._on_stop(command)
        elif isinstance(command, Settle) and self.stopping and self.phase is COMMITTED:
            self.order = command  # answered at the end of the update
        elif command == self.order or not self.parked:
            self._again()
        elif isinstance(command, Settle) and self.stopping:
            self._on_settle(command)
        elif isinstance(command, Reset) and command.generation > self.generation:
            self._on_reset(command)
        elif isinstance(command, Restore) and self.phase is HOLLOW and here:
            self._start(command, Do.FILL)
        elif isinstance(command, Donate) and here:
            self.order = command
            self.out.append(Do.SERVE)
        elif isinstance(command, Resume) and here:
            self._on_resume(command)
        elif isinstance(command, Release) and here:
            self._start(command, Do.GO)
        else:
            raise InvalidTransition(f"{self.phase.name} of generation {self.generation}", command)
        return self.out

    def _on_assign(self, command: Assign) -> None:
        if self.phase is not STANDBY:
            self._again()
            return
        self.rank, self.role, self.phase = command.rank, command.role, BUILDING
        if command.role is not Role.JOINER:
            self.generation = self.stop = command.generation
        self._start(command, Do.GO)

    def _on_stop(self, command: Stop) -> None:
        if command.generation == self.stop:
            self._again()
            return
        self.stop, self.order = command.generation, command
        self.answer = None
        self.out.append(Do.CUT)
        if self.parked or self.phase is COMMITTED:
            self._report(self._stopped())

    def _on_settle(self, command: Settle) -> None:
        self.order = command
        if command.action is Action.FINISH and self.phase is READY:
            self.phase, self.tainted = COMMITTED, False
            self._start(command, Do.PROCEED)
        elif self.phase in IN_STEP:
            self._start(command, Do.DROP)
        else:
            self._park_settled()

    def _on_reset(self, command: Reset) -> None:
        self.generation = self.stop = command.generation
        self.table = command.table
        self._start(command, Do.CONNECT)

    def _on_resume(self, command: Resume) -> None:
        self.order, self.fresh, self.over = command, True, command.over
        if self.phase is ENDED:
            self._report(Ended(self.worker, self.generation, self.version))
            self.out.append(Do.GREET)  # a newcomer may need what only this one has
        else:
            self._start(command, Do.GO)

    # ── both ─────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, *phases: WorkerPhase) -> None:
        self.out = []
        if self.phase not in phases or self.parked:
            expected = ", ".join(phase.name for phase in phases)
            raise InvalidTransition(f"{self.phase.name} (expected {expected})", f"a move of worker {self.worker}")

    def _report(self, report: FromWorker) -> list[Out]:
        self.answer = report
        self.out.append(report)
        return self.out

    def _again(self) -> None:
        if self.answer is not None:
            self.out.append(self.answer)

    def _start(self, command: Command, do: Do) -> None:
        """From here on the last answer is not true any more, so it is not given again either."""
        self.order, self.answer, self.parked = command, None, False
        self.out.append(do)

    def _stopped(self) -> Stopped:
        return Stopped(self.worker, self.stop, Position(self.phase, self.version))

    def _park(self) -> list[Out]:
        self.parked = True
        return self._report(self._stopped()) if self.stopping else self.out

    def _updated(self) -> list[Out]:
        """A committed update is complete. If a Stop was heard it has been answered already."""
        if self.stopping:
            self.parked = True
            if isinstance(self.order, Settle):
                return self._park_settled()
        return self.out

    def _park_settled(self) -> list[Out]:
        """A Stop that came while the step was dropped makes the Settle void: that Stop is answered instead."""
        self.tainted = False
        if not isinstance(self.order, Settle):
            return self._park()
        self.parked = True
        if self.order.action is Action.ROLLBACK:
            self.phase = HOLLOW
        return self._report(Settled(self.worker, self.stop, Position(self.phase, self.version)))

    # ── the compact form ─────────────────────────────────────────────────────────────────────────────────

    def freeze(self) -> Hashable:
        return tuple(getattr(self, name) for name in _FIELDS)

    @classmethod
    def thaw(cls, frozen: Hashable) -> Self:
        return cls(*cast("tuple[WorkerId]", frozen))


_FIELDS = tuple(field.name for field in fields(WorkerMachine) if field.name != "out")
