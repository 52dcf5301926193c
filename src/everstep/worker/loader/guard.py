"""Refuses a plain DataLoader inside a step: neither a redo nor a replacement could find its place in one.

It watches the two calls that give data: the one that makes an iterator, and `next` of an iterator made earlier.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from everstep.errors import RuleError

ADVICE = (
    "a plain DataLoader was iterated inside `with step:`; a step that is redone, or a replacement, cannot find its "
    "place in it. Write `loader = job.loader(dataloader)` and `loader.batch(step)`; for an evaluation inside a step, "
    "`loader.batch(i) for i in range(loader.steps_per_epoch)`"
)

_allowed = False
"""Set while a source that keeps its own place is asked: what it has inside is its own affair."""


class OurIterator:
    """Mixed into those that are asked for the batch of a step."""


@contextmanager
def allow_plain_loaders() -> Iterator[None]:
    """What is inside may iterate them."""
    global _allowed
    before, _allowed = _allowed, True
    try:
        yield
    finally:
        _allowed = before


def guard_plain_loaders(inside_step: Callable[[], bool]) -> Callable[[], None]:
    """From now on the calling thread may not iterate a plain DataLoader while ``inside_step()``. Returns the undo."""
    guarded = threading.get_ident()
    make_iterator, give_next = DataLoader.__iter__, _BaseDataLoaderIter.__next__

    def check(thing: object) -> None:
        if inside_step() and threading.get_ident() == guarded and not _allowed and not isinstance(thing, OurIterator):
            raise RuleError(ADVICE)

    def __iter__(self: DataLoader[Any]) -> _BaseDataLoaderIter:  # noqa: N807
        check(self)
        return make_iterator(self)

    def __next__(self: _BaseDataLoaderIter) -> Any:  # noqa: N807
        check(self)
        return give_next(self)

    def undo() -> None:
        _set(make_iterator, give_next)

    _set(__iter__, __next__)
    return undo


def _set(make_iterator: Callable[..., Any], give_next: Callable[..., Any]) -> None:
    DataLoader.__iter__ = make_iterator  # type: ignore[method-assign]
    _BaseDataLoaderIter.__next__ = give_next  # type: ignore[method-assign]
