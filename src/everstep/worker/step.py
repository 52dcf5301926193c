"""The training loop as the user writes it: ``for step in job.steps(n)`` and ``with step:``."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self

from everstep.errors import ConfigError, Interruption, RuleError
from everstep.types import Step as StepIndex
from everstep.types import WorkerPhase
from everstep.worker.phases import IN_STEP
from everstep.worker.track import Track


class Loop(Protocol):
    """Who carries the main thread through the steps: `PlainLoop`, or the one that protects."""

    @property
    def version(self) -> StepIndex: ...

    @property
    def over(self) -> bool:
        """The job ends here, whatever the script would still do."""
        ...

    def attempt(self, step: StepIndex) -> int: ...

    def epoch(self, step: StepIndex) -> int: ...

    def begin(self, step: StepIndex) -> None: ...

    def end(self) -> None: ...

    def unwind(self, error: BaseException) -> bool:
        """Whether the error is swallowed, because the step is done again."""
        ...

    def leave(self) -> bool:
        """False: all have gone back to an earlier step, which is next."""
        ...

    def safe_point(self) -> None:
        """The script is in one of our calls: a step that has to be left is left here."""
        ...


class PlainLoop:
    """Nothing is protected: a step is stamped, and that is all."""

    over = False

    def __init__(self, track: Track) -> None:
        self._track = track
        track.enter(WorkerPhase.IDLE, track.version)

    @property
    def version(self) -> StepIndex:
        return self._track.version

    def attempt(self, step: StepIndex) -> int:
        return 0

    def epoch(self, step: StepIndex) -> int:
        return 0

    def begin(self, step: StepIndex) -> None:
        self._track.enter(WorkerPhase.FORWARD, step)

    def end(self) -> None:
        self._track.enter(WorkerPhase.IDLE, StepIndex(self._track.version + 1))

    def unwind(self, error: BaseException) -> bool:
        return False  # the board goes on to show where it was raised

    def leave(self) -> bool:
        self._track.enter(WorkerPhase.ENDED, self._track.version)
        return True

    def safe_point(self) -> None:
        """Nobody stops it."""


class Step:
    """One step of the training, the unit that is redone. Its work happens inside ``with step:``."""

    __slots__ = ("_inside", "_loop", "_track", "attempt", "done", "epoch", "index", "interrupted")

    def __init__(self, loop: Loop, track: Track) -> None:
        self.index = loop.version
        self.attempt = loop.attempt(self.index)
        """How often it was begun before."""
        self.epoch = loop.epoch(self.index)
        self.done = False
        """Its block was completed: its update counts."""
        self.interrupted = False
        """It is done again, or another rank has done it: the loop gives the step that is next."""
        self._loop = loop
        self._track = track
        self._inside = False

    def __enter__(self) -> Self:
        if self._inside or self.done or self.index != self._loop.version:
            raise RuleError(f"{self} cannot be begun: the next one is step {self._loop.version} of job.steps()")
        self._inside = True
        self._loop.begin(self.index)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._inside = False
        if error is None:
            try:
                self._loop.end()
            except Interruption as interruption:
                error = interruption
            else:
                self.done = True
                return False
        self.interrupted = self._loop.unwind(error)
        return self.interrupted

    def phase(self, name: str) -> None:
        """Say what comes now: ``"backward"``, ``"barrier"``, ``"optimizer"``, or ``"forward"`` again."""
        if name not in IN_STEP:
            raise ConfigError(f"step.phase({name!r}): a phase of a step is one of {', '.join(IN_STEP)}")
        self._must_be_inside("phase")
        if not isinstance(self._loop, PlainLoop):
            raise RuleError(f"step.phase({name!r}): leave it out, the phases of a protected step are seen without it")
        self._track.enter(IN_STEP[name], self.index, self.attempt)

    def long(self, name: str, *, limit_s: float) -> AbstractContextManager[None]:
        """``with step.long("evaluate", limit_s=600):`` what is inside may take so long without being a hang."""
        if not 0 < limit_s < math.inf:
            raise ConfigError(f"step.long({name!r}, limit_s={limit_s!r}): it must be a number of seconds, more than 0")
        self._must_be_inside("long")
        return self._track.long(name, limit_s)

    def _must_be_inside(self, call: str) -> None:
        if not self._inside:
            raise RuleError(f"step.{call}() belongs inside `with step:` of {self}")

    def __repr__(self) -> str:
        return f"<step {self.index}{', done' if self.done else ''}>"


def steps(loop: Loop, track: Track, count: int) -> Generator[Step, None, None]:
    """From where the job is up to ``count``, each until it is done. `break` leaves the loop here for all ranks."""
    step = None
    try:
        left = False
        while not left:
            while loop.version < count and not loop.over:
                step = Step(loop, track)
                yield step
                if not (step.done or step.interrupted):
                    raise RuleError(f"{step} was left out: each turn of job.steps() runs `with step:` once, to its end")
            left = loop.leave()
    except GeneratorExit:
        if step is not None and step.done:
            loop.leave()
        raise
