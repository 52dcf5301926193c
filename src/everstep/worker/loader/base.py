"""What every loader is: the batch of a step, and the same batch again when the step is redone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from everstep.errors import ConfigError
from everstep.worker.loader.copying import NotCopied, copy_batch


class StepLike(Protocol):
    """What of a step a loader looks at."""

    @property
    def index(self) -> int: ...

    @property
    def attempt(self) -> int: ...


class Loader(ABC):
    """Gives the batch of a step, and in a redo the same one again, whatever the step has done to it meanwhile."""

    private: bool = False
    """It has a state of this rank alone (`PrivateLoader`), which a replacement cannot do without."""

    def __init__(self, keep_bytes: int | None) -> None:
        self._keep_bytes = keep_bytes
        self._given: _Given | None = None
        self._kept: _Kept | None = None

    def batch(self, step: StepLike | int) -> Any:
        """Of this rank in this step. An index may stand for the step, in an evaluation for example."""
        if isinstance(step, int):
            if step < 0:
                raise ConfigError(f"loader.batch({step}): the index of a step is at least 0")
            self._given = None
            return self._keep_or_read(step)
        given = self._given
        if given is not None and given.step is step and given.attempt == step.attempt:
            return given.batch
        self._given = given = None  # the old batch goes before the new one comes
        batch = self._keep_or_read(step.index)
        self._given = _Given(step, step.attempt, batch)
        return batch

    def start(self, index: int) -> None:  # noqa: B027  (not all can)
        """This step comes next: its batch may be read already. From the main thread, like all else."""

    def close(self) -> None:
        """No further batch is asked for: let go of memory and processes."""
        self._given = self._kept = None

    @property
    @abstractmethod
    def steps_per_epoch(self) -> int | None:
        """None if only the source knows, when it ends."""

    @abstractmethod
    def epoch(self, index: int) -> int:
        """That step ``index`` belongs to."""

    @abstractmethod
    def _read(self, index: int) -> Any: ...

    def _keep_or_read(self, index: int) -> Any:
        if self._kept is not None and self._kept.index == index:
            return copy_batch(self._kept.batch)
        self._kept = None
        batch = self._read(index)
        with suppress(NotCopied):
            self._kept = _Kept(index, copy_batch(batch, self._keep_bytes))
        return batch


@dataclass(frozen=True, slots=True)
class _Given:
    """The objects that one attempt has, however often it asks."""

    step: StepLike
    attempt: int
    batch: Any


@dataclass(frozen=True, slots=True)
class _Kept:
    """A copy that nobody else has: a step may change its batch in place, through NumPy for example unseen by torch."""

    index: int
    batch: Any
