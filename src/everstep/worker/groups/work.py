"""A collective under way, as its group sees it: who waits for it, whether it has ended, and how.

Every work is waited for once. Some of Gloo's write their results in `wait` and would write them again, over whatever
the script has made of them since.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

END_S = 30.0
"""For a work of a group that was cut to end. It takes milliseconds; who takes longer is not to be trusted."""

Ended = Callable[["TrackedWork", RuntimeError | None], None]


class TrackedWork(dist.Work):
    """What the script, DDP or a functional collective holds instead of the inner work."""

    def __init__(
        self, inner: dist.Work, operation: str, ended: Callable[[TrackedWork, RuntimeError | None], None]
    ) -> None:
        super().__init__()
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
            done = bool(self._inner.wait(timeout) if timeout else self._inner.wait())
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
