"""The training loop as the user writes it: ``for step in job.steps(n)`` and ``with step:``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from everstep.errors import ConfigError, ProtocolError
from everstep.types import Step as StepIndex
from everstep.types import WorkerPhase
from everstep.worker.phases import IN_STEP
from everstep.worker.track import Track


class Step:
    """One step of the training, the unit that is redone. Its work happens inside ``with step:``."""

    __slots__ = ("_inside", "_track", "attempt", "done", "epoch", "index")

    def __init__(self, track: Track, index: StepIndex) -> None:
        self.index = index
        self.attempt = 0
        """How often it was begun before."""
        self.epoch = 0
        self.done = False
        """Its block was completed: its update counts."""
        self._track = track
        self._inside = False

    def __enter__(self) -> Self:
        if self._inside or self.done or self.index != self._track.version:
            raise ProtocolError(f"{self} cannot be begun: the next one is step {self._track.version} of job.steps()")
        self._inside = True
        self._track.enter(WorkerPhase.FORWARD, self.index, self.attempt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside = False
        if kind is None:  # after an exception the board goes on to show where it was raised
            self._track.enter(WorkerPhase.IDLE, StepIndex(self.index + 1))
            self.done = True

    def phase(self, name: str) -> None:
        """Say what comes now: ``"backward"``, ``"barrier"``, ``"optimizer"``, or ``"forward"`` again."""
        if name not in IN_STEP:
            raise ConfigError(f"step.phase({name!r}): a phase of a step is one of {', '.join(IN_STEP)}")
        self._must_be_inside("phase")
        self._track.enter(IN_STEP[name], self.index, self.attempt)

    def long(self, name: str, *, limit_s: float) -> AbstractContextManager[None]:
        """``with step.long("evaluate", limit_s=600):`` what is inside may take so long without being a hang."""
        if not 0 < limit_s < math.inf:
            raise ConfigError(f"step.long({name!r}, limit_s={limit_s!r}): it must be a number of seconds, more than 0")
        self._must_be_inside("long")
        return self._track.long(name, limit_s)

    def _must_be_inside(self, call: str) -> None:
        if not self._inside:
            raise ProtocolError(f"step.{call}() belongs inside `with step:` of {self}")

    def __repr__(self) -> str:
        return f"<step {self.index}{', done' if self.done else ''}>"


def steps(track: Track, count: int) -> Iterator[Step]:
    """From where the job is up to ``count``, each until it is done."""
    track.enter(WorkerPhase.IDLE, track.version)
    while track.version < count:
        step = Step(track, track.version)
        yield step
        if not step.done:
            raise ProtocolError(f"{step} was left out: each turn of job.steps() runs `with step:` once, to its end")
    track.enter(WorkerPhase.ENDED, track.version)
