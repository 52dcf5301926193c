"""Where everybody stands when nobody moves: their stacks, before anything is done about it.

The first one that is stopped cuts its connections, which wakes the others: so a Stop has to wait for the stacks of all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from everstep.core.events import Event, Stalled
from everstep.types import Generation, WorkerId
from everstep.wire.messages import Stack

log = logging.getLogger(__name__)

LIMIT_S = 2.0
"""For all to answer. Who holds the interpreter's lock cannot."""


class Standstill:
    """One for a job."""

    def __init__(self, run: Path, ask: Callable[[tuple[WorkerId, ...]], None], take: Callable[[Event], None]) -> None:
        self._run = run
        self._ask = ask
        self._take = take
        self._stalled: Stalled | None = None
        self._missing: set[WorkerId] = set()
        self._generation = Generation(0)

    def look_into(self, stalled: Stalled, workers: Iterable[WorkerId]) -> None:
        """Take the verdict when these have said where they stand. One that comes meanwhile is the same one."""
        if self._stalled is not None:
            return
        self._stalled, self._missing, self._generation = stalled, set(workers), stalled.generation
        asyncio.get_running_loop().call_later(LIMIT_S, self._over, stalled)
        self._ask(tuple(self._missing))

    def on_stack(self, stack: Stack) -> None:
        path = self._run / f"stacks-g{self._generation}-w{stack.worker}.txt"
        path.write_text(stack.text)
        log.warning("stacks of worker %s are in %s", stack.worker, path)
        self._missing.discard(stack.worker)
        if self._stalled is not None and not self._missing:
            self._over(self._stalled)

    def _over(self, stalled: Stalled) -> None:
        if self._stalled is stalled:
            self._stalled = None
            self._take(stalled)
