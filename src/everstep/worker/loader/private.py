"""A source that keeps its own place (`state_dict`, `load_state_dict`): a stream that only this rank has."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from everstep.errors import ConfigError, ProtocolError
from everstep.worker.loader.base import Loader
from everstep.worker.loader.guard import allow_plain_loaders
from everstep.worker.randomness import mix, own_randomness, seed_all

_STARTS = 2
"""A source whose place is its end needs one more iterator than one whose place is the middle."""

_UNKNOWN: Any = object()


class PrivateLoader(Loader):
    """Each new step draws what the source gives next. Where it ends, it is iterated again: the next epoch.

    The last batch is kept for a redo as a copy. One that cannot be copied is drawn again, from the state before it.
    """

    private = True

    def __init__(self, source: Any, *, seed: int, rank: int) -> None:
        super().__init__(keep_bytes=None)
        self._source = source
        self._seed = seed
        self._rank = rank
        self._iterator: Iterator[Any] | None = None
        self._drawn = -1
        """The last step that has drawn, and maybe not finished drawing."""
        self._oldest = 0
        """From this version up to ``_drawn`` the state is ``_before``."""
        self._before: Any = _UNKNOWN
        self._after: Any = _UNKNOWN
        """The state now, if it has been asked for."""
        self._torn = False
        """Interrupted while drawing: nobody knows what the source has given."""

    @property
    def steps_per_epoch(self) -> int | None:
        try:
            return len(self._source) or None
        except TypeError:  # it has no length, or one that raises this, as torch's loaders do
            return None

    def epoch(self, index: int) -> int:
        """0 without a length: where such a source ends, only it knows."""
        steps = self.steps_per_epoch
        return 0 if steps is None else index // steps

    def state_dict(self, version: int | None = None) -> Any:
        """From which the next batch is that of step ``version``: the last one drawn, or the one after it."""
        if version is None:
            version = self._drawn if self._torn else self._drawn + 1
        if version > self._drawn and not self._torn:
            return self._state()
        if self._before is _UNKNOWN or not self._oldest <= version <= self._drawn:
            raise ProtocolError(f"{self} has no state of version {version}: it has drawn the batch of {self._drawn}")
        return self._before

    def load_state_dict(self, state: Any) -> None:
        """The next batch is the one that was next when the state was taken, whatever step asks for it."""
        super().close()
        self._restore(state)
        self._drawn, self._oldest, self._before = -1, 0, _UNKNOWN

    def close(self) -> None:
        super().close()
        self._iterator = None

    def _read(self, index: int) -> Any:
        if index < self._drawn:
            raise ProtocolError(f"step {index} was asked for after step {self._drawn}, and {self} cannot go back")
        if index == self._drawn or self._torn:
            assert self._before is not _UNKNOWN
            self._restore(self._before)
            batch = self._draw(self._drawn)
            if index == self._drawn:
                return batch
        before = self._state()
        self._oldest, self._before, self._drawn = self._drawn + 1, before, index
        return self._draw(index)

    def _draw(self, index: int) -> Any:
        self._torn, self._after = True, _UNKNOWN
        with self._apart(index):
            batch = self._next()
        self._torn = False
        return batch

    def _next(self) -> Any:
        for _ in range(_STARTS + 1):
            if self._iterator is None:
                self._iterator = iter(self._source)
            try:
                return next(self._iterator)
            except StopIteration:
                self._iterator = None
        raise ConfigError(f"{self} gives no batch: an iterator of it ends at once; let each begin a new epoch")

    def _state(self) -> Any:
        if self._after is _UNKNOWN:
            with self._apart(self._drawn + 1):
                self._after = copy.deepcopy(self._source.state_dict())
        return self._after

    def _restore(self, state: Any) -> None:
        self._torn = True
        self._iterator = None
        with self._apart(self._drawn + 1):
            self._source.load_state_dict(copy.deepcopy(state))
        self._after = state
        self._torn = False

    @contextmanager
    def _apart(self, index: int) -> Iterator[None]:
        """What the source does in there is its own affair: it may have a DataLoader inside, and draw numbers."""
        with allow_plain_loaders(), own_randomness():
            seed_all(mix("private", self._seed, self._rank, index))
            yield

    def __repr__(self) -> str:
        return f"the loader over a {type(self._source).__name__}"
