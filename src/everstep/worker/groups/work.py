"""A collective under way, as its group sees it: who waits for it, whether it has ended, and how.

Every work is waited for once. Some of Gloo's write their results in `wait` and would write them again, over whatever
the script has made of them since.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

END_S = 30.0
"""For a work of a group that was cut to end. It takes milliseconds; who takes longer is not to be trusted."""
LOOK_S = 0.25
"""So often a wait looks whether its group was cut."""
_NOT_YET = "Operation timed out!"
"""What torch says when a wait for a collective was too short. The collective goes on."""
_POINT_TO_POINT = ("send", "recv", "recv_anysource")
"""A wait for one of these that is too short would close its connection."""

Ended = Callable[["TrackedWork", RuntimeError | None], None]


def outlast(work: dist.Work, lost: Callable[[], bool], limit_s: float = math.inf) -> bool:
    """Wait for a collective of Gloo that may never end.

    When a connection breaks, Gloo forgets what it was about to write from its own thread (`Pair::signalException` sees
    neither that nor `tx_`), so nobody tells the collective, which waits for the timeout of its group: half an hour.
    Its connections are closed by then, so it touches no memory any more, and who was told to stop may leave it.
    """
    deadline = time.monotonic() + limit_s
    while True:
        try:
            return bool(work.wait(timedelta(seconds=min(LOOK_S, max(0.001, deadline - time.monotonic())))))
        except RuntimeError as error:
            if _NOT_YET not in str(error) or time.monotonic() >= deadline:
                raise
            if lost():
                raise RuntimeError("was cut and has not ended") from None


class TrackedWork(dist.Work):
    """What the script, DDP or a functional collective holds instead of the inner work."""

    def __init__(
        self,
        inner: dist.Work,
        operation: str,
        ended: Callable[[TrackedWork, RuntimeError | None], None],
        lost: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._lost = lost
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
            if self.operation in _POINT_TO_POINT:
                done = bool(self._inner.wait(timeout) if timeout else self._inner.wait())
            else:
                done = outlast(self._inner, self._lost, timeout.total_seconds() if timeout else math.inf)
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
        future: torch.futures.Future[Any] = self._inner.get_future()
        return future

    def synchronize(self) -> None:
        self._inner.synchronize()

    def block_current_stream(self) -> None:
        self._inner.block_current_stream()

    def source_rank(self) -> int:
        return int(self._inner.source_rank())

    def _source_rank(self) -> int:
        return int(self._inner._source_rank())
