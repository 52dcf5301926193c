"""A collective under way, as its group sees it: who waits for it, whether it has ended, and how.

Every work is waited for once. Some of Gloo's write their results in `wait` and would write them again, over whatever
the script has made of them since.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

END_S = 30.0
"""For a work of a group that was cut to end. It takes milliseconds; who takes longer is not to be trusted."""
LOOK_S = 0.05
"""So often a wait looks whether its work is lost."""
LAST_LOOK_S = 0.001
"""For the work itself to say so, when it is."""
LOST = "{} was cut and has not ended"
_NOT_YET = "Operation timed out!"
"""What torch says when a wait for a collective was too short. The collective goes on."""
_POINT_TO_POINT = ("send", "recv", "recv_anysource")
"""A wait for one of these that is too short would close its connection."""

Ended = Callable[["TrackedWork", RuntimeError | None], None]


def outlast(work: dist.Work, operation: str, lost: Callable[[], bool], limit_s: float = math.inf) -> bool:
    """Wait for a work of Gloo that may never end.

    When a connection breaks, Gloo forgets the message that it was about to write or in the midst of (see its
    `Pair::signalException`), so nobody tells the work, which waits for the timeout of its group: half an hour, and what
    is queued behind it too. Once its group was cut and is quiet (see `Seam`) it is lost, and may be left.
    """
    deadline = time.monotonic() + limit_s
    if operation in _POINT_TO_POINT:
        return _outlast_apart(work, lost, deadline)
    while True:
        given_up = lost()
        look_s = LAST_LOOK_S if given_up else min(LOOK_S, max(LAST_LOOK_S, deadline - time.monotonic()))
        try:
            return bool(work.wait(timedelta(seconds=look_s)))
        except RuntimeError as error:
            if given_up and _NOT_YET in str(error):
                raise RuntimeError(LOST.format(operation)) from None
            if _NOT_YET not in str(error) or time.monotonic() >= deadline:
                raise


def _outlast_apart(work: dist.Work, lost: Callable[[], bool], deadline: float) -> bool:
    """In a thread that can be left behind, because no wait may be too short. It costs 0.1 ms."""
    results: list[bool] = []
    errors: list[RuntimeError] = []
    ended = threading.Event()

    def wait() -> None:
        try:
            results.append(bool(work.wait()))
        except RuntimeError as error:
            errors.append(error)
        finally:
            ended.set()

    threading.Thread(target=wait, name="everstep-wait", daemon=True).start()
    while not ended.wait(LOOK_S):
        if lost():
            raise RuntimeError(LOST.format("a message"))
        if time.monotonic() >= deadline:
            raise RuntimeError("a message has not ended in time")
    if errors:
        raise errors[0]
    return results[0]


class Promise:
    """A future that ends with the one of a work, or when that is given up: DDP waits where no code of ours is.

    Its value is a Python object, which carries no streams: only for tensors in the memory of the processor.
    """

    def __init__(self, inner: torch.futures.Future[Any], operation: str) -> None:
        self._inner = inner
        self._operation = operation
        self._given_up = False
        self._first = threading.Lock()
        """Held by who has ended it."""
        self._end: torch.futures.Future[None] = torch.futures.Future()
        self.future: torch.futures.Future[Any] = self._end.then(self._outcome)
        inner.add_done_callback(lambda _: self._finish())

    def give_up(self) -> None:
        self._finish(given_up=True)

    def _finish(self, *, given_up: bool = False) -> None:
        if self._first.acquire(blocking=False):
            self._given_up = given_up
            self._end.set_result(None)

    def _outcome(self, _: object) -> Any:
        if self._given_up:
            raise RuntimeError(LOST.format(self._operation))
        return self._inner.value()


class TrackedWork(dist.Work):
    """What the script, DDP or a functional collective holds instead of the inner work."""

    def __init__(
        self,
        inner: dist.Work,
        operation: str,
        tensors: Sequence[torch.Tensor],
        ended: Ended,
        lost: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._lost = lost
        self._tensors = tensors
        self._promise: Promise | None = None
        self.operation = operation
        self.waited = False
        self.waiting = False
        """Somebody is inside `wait` now."""
        self._inner = inner
        self._ended = ended

    def wait(self, timeout: timedelta | None = None) -> bool:
        if self.waited and self._inner.is_completed():
            return bool(self._inner.wait())
        if self.waited:
            return True
        self.waited = self.waiting = True
        try:
            limit_s = timeout.total_seconds() if timeout else math.inf
            done = outlast(self._inner, self.operation, self._lost, limit_s)
        except RuntimeError as error:
            self._ended(self, error)
            raise
        finally:
            self.waiting = False
        self._ended(self, None)
        return done

    def is_completed(self) -> bool:
        return self.waited or bool(self._inner.is_completed())

    @property
    def lazy(self) -> bool:
        """It was waited for, and still does not say that it has ended."""
        return not self._inner.is_completed()

    def is_success(self) -> bool:
        return bool(self._inner.is_success())

    def exception(self) -> Any:
        return self._inner.exception()

    def result(self) -> list[torch.Tensor]:
        return self._inner.result()

    def get_future(self) -> torch.futures.Future[Any]:
        inner: torch.futures.Future[Any] = self._inner.get_future()
        if any(tensor.is_cuda for tensor in self._tensors):
            return inner
        if self._promise is None:
            self._promise = Promise(inner, self.operation)
        return self._promise.future

    def give_up(self) -> None:
        """From any thread: it is lost, and whoever waits for its future is told."""
        if self._promise is not None:
            self._promise.give_up()

    def synchronize(self) -> None:
        self._inner.synchronize()

    def block_current_stream(self) -> None:
        self._inner.block_current_stream()

    def source_rank(self) -> int:
        return int(self._inner.source_rank())

    def _source_rank(self) -> int:
        return int(self._inner._source_rank())
