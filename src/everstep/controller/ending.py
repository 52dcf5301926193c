"""What is saved before a job, or one of its nodes, goes. Decides nothing about the job but when it is told to end."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine

from everstep.controller.checkpoints import Checkpointer
from everstep.core.effects import End
from everstep.core.events import Event, Interrupted
from everstep.core.machine import EXIT_INTERRUPTED, Machine
from everstep.types import NodeId
from everstep.wire.messages import Bye, Fence, FromController

log = logging.getLogger(__name__)

EXIT_PREEMPTED = 128 + signal.SIGTERM

HURRY_S = 5.0
"""When a person stops the job, for what is on its way to storage."""


class Ending:
    """One for a controller."""

    def __init__(
        self,
        checkpoints: Checkpointer,
        grace_s: float,
        machine: Callable[[], Machine],
        send: Callable[[NodeId, FromController], None],
        take: Callable[[Event], None],
    ) -> None:
        self._checkpoints = checkpoints
        self._grace_s = grace_s
        self._machine = machine
        self._send = send
        self._take = take
        self._preempted = False
        self._tasks: set[asyncio.Task[None]] = set()

    def preempt(self) -> None:
        """The machines will be taken away: save what there is, then end the job. May be repeated."""
        if not self._preempted:
            self._preempted = True
            self._begin(self._save_and_end())

    def part(self, node: NodeId) -> None:
        """This node has to go. Save what there is; the others go on without it."""
        self._begin(self._save_and_part(node))

    async def wait_for_storage(self, end: End) -> None:
        """What is on its way to storage arrives. Meanwhile nobody trains any more."""
        if self._checkpoints.under_way:
            hurry = end.code == EXIT_INTERRUPTED and not self._preempted
            limit_s = min(HURRY_S, self._grace_s) if hurry else self._grace_s
            steps = ", ".join(map(str, self._checkpoints.under_way))
            log.info("the checkpoint of step %s is on its way to storage: waiting up to %g s for it", steps, limit_s)
            for worker, record in self._machine().members.workers.items():
                self._send(record.node, Fence(worker))
            await self._checkpoints.finish(limit_s)
        await self._checkpoints.finish(0)

    async def _save_and_end(self) -> None:
        log.info("told to end: a checkpoint is taken first, for which there are %g s", self._grace_s)
        if not await self._checkpoints.save(self._grace_s):
            log.warning("no new checkpoint was committed before the end")
        self._take(Interrupted())

    async def _save_and_part(self, node: NodeId) -> None:
        log.info("%s is told to end: a checkpoint is taken first", node)
        await self._checkpoints.save(self._grace_s)
        self._send(node, Bye(EXIT_PREEMPTED, "it was told to end"))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
