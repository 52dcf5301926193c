"""Where the main thread is: stamped on the board for the agent to read, and shown to the faults that wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from everstep.agent.board import NO_LIMIT_S
from everstep.chaos.inject import Injector
from everstep.types import Generation, Mark, Step, WorkerPhase
from everstep.worker.phases import RecoveryPhase, SavePhase


class Board(Protocol):
    """What of a `BoardWriter` the main thread needs."""

    def stamp(
        self,
        phase: WorkerPhase,
        *,
        step: int | None = None,
        version: int | None = None,
        generation: int | None = None,
        attempt: int | None = None,
    ) -> None: ...

    def waiting(self, inside: bool) -> None: ...

    def long(self, limit_s: float) -> None: ...

    def close(self) -> None: ...


class Ring(Protocol):
    """What of a `RingWriter` is needed."""

    def note(self, mark: int, step: int, attempt: int, generation: int) -> None: ...

    def close(self) -> None: ...


class NoBoard:
    """Nobody looks: no agent has started this process."""

    def stamp(
        self,
        phase: WorkerPhase,
        *,
        step: int | None = None,
        version: int | None = None,
        generation: int | None = None,
        attempt: int | None = None,
    ) -> None:
        pass

    def waiting(self, inside: bool) -> None:
        pass

    def long(self, limit_s: float) -> None:
        pass

    def close(self) -> None:
        pass


class NoRing:
    """Nobody records."""

    def note(self, mark: int, step: int, attempt: int, generation: int) -> None:
        pass

    def close(self) -> None:
        pass


_MARKS = {
    RecoveryPhase.STOP: Mark.STOP,
    RecoveryPhase.CLEAN: Mark.CLEAN,
    RecoveryPhase.SCRIPT: Mark.HOLLOW,
    RecoveryPhase.RESET: Mark.RESET,
    RecoveryPhase.RESTORE: Mark.RESTORE,
    RecoveryPhase.RESUME: Mark.RESUME,
}


@dataclass(slots=True)
class Track:
    """Written by the main thread; the control thread may set the injector, and brings a Stop with its generation."""

    board: Board
    ring: Ring = field(default_factory=NoRing)
    injector: Injector | None = None
    version: Step = Step(0)
    """Number of completed steps; also the step that runs or is next."""
    generation: Generation = Generation(0)
    """The newest that was heard of."""
    phase: WorkerPhase = WorkerPhase.SPAWNED
    attempt: int = 0
    activity: str = ""
    """The long phase that was declared, for those who wonder."""

    def enter(self, phase: WorkerPhase, version: Step, attempt: int = 0, *, strike_inside: bool = True) -> None:
        """From here the main thread is in this phase. ``version`` is also the step: the one that runs or is next.

        Without ``strike_inside`` its work is not under way yet, and `reach_inside` says when it is.
        """
        injector = self.injector
        if injector is not None:
            injector.before(phase, version)
        self.board.stamp(phase, step=version, version=version, attempt=attempt)
        self.ring.note(phase, version, attempt, self.generation)
        self.phase, self.version, self.attempt = phase, version, attempt
        if injector is not None and strike_inside:
            injector.inside(phase, version)

    def reach_inside(self, phase: WorkerPhase, version: Step) -> None:
        """The work of the phase that was entered is under way now."""
        if self.injector is not None:
            self.injector.inside(phase, version)

    def recovering(self, phase: RecoveryPhase, version: Step, *, main_thread: bool = True) -> None:
        """No board shows it; it is recorded, and faults are ordered by it."""
        self.ring.note(_MARKS[phase], version, 0, self.generation)
        if self.injector is not None:
            self.injector.in_passing(phase, version, main_thread=main_thread)

    def recovered(self, phase: WorkerPhase, version: Step) -> None:
        """A part of the recovery is done: the main thread waits in this phase for the next one."""
        self.ring.note(phase, version, 0, self.generation)

    def stand(self, phase: WorkerPhase, generation: Generation | None = None) -> None:
        """In this phase there is no step."""
        self.generation = self.generation if generation is None else generation
        self.board.stamp(phase, generation=generation)
        self.ring.note(phase, self.version, 0, self.generation)

    @contextmanager
    def checkpoint(self) -> Iterator[None]:
        """What is inside copies the state to memory (k0). Afterwards the phase is the one before."""
        self.ring.note(Mark.CHECKPOINT, self.version, self.attempt, self.generation)
        try:
            yield
        finally:
            self.ring.note(self.phase, self.version, self.attempt, self.generation)

    def reach_checkpoint(self) -> None:
        """The copy is under way now."""
        if self.injector is not None:
            self.injector.in_passing(SavePhase.CHECKPOINT, self.version, main_thread=True)

    @contextmanager
    def long(self, name: str, limit_s: float) -> Iterator[None]:
        """What is inside may stand still for so long."""
        self.activity = f"{name} (for at most {limit_s:g} s)"
        self.board.long(limit_s)
        try:
            yield
        finally:
            self.board.long(NO_LIMIT_S)
            self.activity = ""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """What is inside waits for other ranks."""
        self.board.waiting(True)
        try:
            yield
        finally:
            self.board.waiting(False)

    def forget(self) -> None:
        """In a process that the script has forked: the board is its parent's."""
        self.board.close()
        self.ring.close()
        self.board, self.ring, self.injector = NoBoard(), NoRing(), None
