"""What every loader is: the batch of a step, and the same batch again when the step is redone."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch


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
        """This step comes next: its batch may be read already."""

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
            return copy.deepcopy(self._kept.batch)
        self._kept = None
        batch = self._read(index)
        if _can_copy(batch, self._keep_bytes):
            self._kept = _Kept(index, copy.deepcopy(batch))
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


def _can_copy(batch: Any, most_bytes: int | None) -> bool:
    """Exactly, and within these bytes: plain tensors and arrays in plain containers."""
    size = _bytes(batch)
    return size is not None and (most_bytes is None or size <= most_bytes)


def _bytes(part: Any) -> int | None:
    """None for what might not be copied exactly, or not alone."""
    if type(part) is torch.Tensor:
        plain = part.layout is torch.strided and not part.requires_grad
        return part.untyped_storage().nbytes() if plain else None
    if f"{type(part).__module__}.{type(part).__name__}" == "numpy.ndarray":  # there is a torch without NumPy
        return int(part.nbytes) if part.flags.forc and not part.dtype.hasobject else None
    if isinstance(part, str | bytes | int | float | None):
        return len(part) if isinstance(part, str | bytes) else 8
    if type(part) is dict:
        return _sum(map(_bytes, part.values()))
    if type(part) is list or (isinstance(part, tuple) and (type(part) is tuple or hasattr(part, "_fields"))):
        return _sum(map(_bytes, part))
    return None


def _sum(sizes: Iterable[int | None]) -> int | None:
    total = 0
    for size in sizes:
        if size is None:
            return None
        total += size
    return total
