"""All workers of a node: starts them, listens to them, ends them, and tells how each of them ended.

It decides nothing: it carries out what the controller orders and hands on what it sees.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from everstep.agent import environment
from everstep.agent.board import BoardReader
from everstep.agent.flight import Flight
from everstep.agent.logs import WorkerLog
from everstep.agent.nursery import Nursery
from everstep.agent.process import ExitStatus, WorkerProcess
from everstep.agent.ring import RingReader
from everstep.agent.shm import SharedDirectory
from everstep.agent.slots import SlotBook
from everstep.agent.spawner import Spawner
from everstep.agent.stopwatch import Stopwatch
from everstep.agent.switchboard import Switchboard
from everstep.agent.timekeeper import Timekeeper
from everstep.agent.worker import LocalWorker
from everstep.core.effects import Assign
from everstep.core.events import Exited, FenceFailed
from everstep.errors import ResourceError, SpawnError
from everstep.types import NodeId, Rank, WorkerId
from everstep.wire.auth import Token
from everstep.wire.messages import AskStack, Deliver, Fence, Inject, Notice, Order, Start, Tell, ToController, Welcome

log = logging.getLogger(__name__)

END_S = 2.0
"""For killed workers to be gone when the agent ends; who hangs in the kernel is left to it."""


class Crew:
    """Made by `open`. Everything that it started ends with `close`."""

    def __init__(
        self,
        welcome: Welcome,
        node: NodeId,
        devices: Sequence[str],
        token: Token | None,
        tell: Callable[[ToController], None],
        show: Callable[[str], None],
        begin: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        self.workers: dict[WorkerId, LocalWorker] = {}
        self._welcome = welcome
        self._node = node
        self._devices = devices
        self._token = token
        self._tell = tell
        self._show = show
        self._supervise = begin
        self._logs = Path(welcome.run_dir) / "logs"
        self._directory = SharedDirectory(welcome.job, node)
        self._stopwatch = Stopwatch(tell)
        self.flight = Flight(Path(welcome.run_dir), node, self.workers, times=self._stopwatch.times)
        self.timekeeper = Timekeeper(tell, self.flight.set_clock)
        self._started: set[WorkerId] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.slots = SlotBook(welcome, node, self._directory, tell, self._begin)
        self._switchboard = Switchboard(self.workers, self.slots, tell)
        self._nursery = Nursery(
            welcome.preload,
            fresh=not welcome.zygote,
            guarded=self._directory.path,
            env=environment.base(welcome),
        )

    @property
    def _socket(self) -> Path:
        return self._directory.path / "socket"

    async def open(self) -> None:
        """Listen to the workers, and record them."""
        self._begin(self.flight.run())
        self._begin(self.timekeeper.run())
        self._begin(self._stopwatch.run())
        await self._switchboard.open(self._socket, self._token)

    async def close(self) -> None:
        """Kill all, and leave nothing in /dev/shm."""
        self.abandon()
        for task in self._tasks:
            task.cancel()
        await self.slots.close()
        await self._nursery.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                for worker in list(self.workers.values()):
                    await worker.gone.wait()
        await self._switchboard.close()
        self.flight.close()
        self._directory.close()

    def abandon(self) -> None:
        """Kill all; from now on they count as not running."""
        for worker in self.workers.values():
            worker.abandoned = True
            worker.kill()

    @property
    def present(self) -> list[LocalWorker]:
        """Who runs, or is being started, with the consent of the controller."""
        return [worker for worker in self.workers.values() if not worker.abandoned]

    def holder(self, rank: Rank) -> LocalWorker | None:
        """Who has this rank, if he is here."""
        return next((worker for worker in self.present if worker.rank == rank and not worker.doomed), None)

    # ── orders ───────────────────────────────────────────────────────────────────────────────────────────

    def start(self, order: Start) -> None:
        """Once: an order that comes again changes nothing, and hears of a worker that has ended meanwhile."""
        if order.worker in self._started:
            if order.worker not in self.workers:
                self._tell(Notice(Exited(order.worker, -signal.SIGKILL, "ended while the controller was away")))
            return
        self._started.add(order.worker)
        try:
            worker = self._prepare(order)
        except (ResourceError, OSError) as error:
            self._not_started(order.worker, error)
        else:
            worker.launch = self._begin(self._launch(worker))
            worker.launch.add_done_callback(partial(self._on_launched, worker))

    def fence(self, order: Fence) -> None:
        worker = self.workers.get(order.worker)
        if worker is None:
            self._tell(Notice(Exited(order.worker, -signal.SIGKILL, "was not running")))
            return
        worker.judged_at = order.moves
        worker.kill()
        self._cancel_deadline(worker)
        loop = asyncio.get_running_loop()
        worker.deadline = loop.call_later(self._welcome.fence_s, self._fence_failed, worker)

    def deliver(self, order: Deliver) -> None:
        """Who has no connection has not asked yet: when it does, the controller sends it again."""
        for worker in self._named(order.to):
            env = self._assign(worker, order.command) if isinstance(order.command, Assign) else {}
            if worker.line is not None:
                worker.line.send(Order(order.command, env))

    def tell(self, order: Tell) -> None:
        """Who has no connection has not asked yet, or is new: what it needs comes with its Assign."""
        for worker in self._named(order.to):
            if worker.line is not None:
                worker.line.send(order.message)

    def ask_stacks(self, workers: Sequence[WorkerId]) -> None:
        for worker in self._named(workers):
            if worker.line is not None:
                worker.line.send(AskStack())

    def inject(self, rank: Rank | None, order: Inject) -> None:
        """For the worker of this rank, or for all: to do to itself."""
        for worker in self.present:
            if worker.line is not None and rank in (None, worker.rank):
                worker.line.send(order)

    def _named(self, workers: Sequence[WorkerId]) -> list[LocalWorker]:
        return [self.workers[worker] for worker in workers if worker in self.workers]

    def _assign(self, worker: LocalWorker, command: Assign) -> dict[str, str]:
        if worker.rank != command.rank:
            worker.rank, worker.device = command.rank, command.device
            try:
                worker.log.assign(command.rank)
            except OSError as error:
                log.warning("the log of worker %s keeps its name: %s", worker.id, error)
        return self._rank_env(command.rank, command.device)

    def _rank_env(self, rank: Rank, device: str) -> dict[str, str]:
        local_rank = self._devices.index(device) if device in self._devices else 0
        return environment.of_rank(self._welcome, rank, local_rank)

    # ── from start to end ────────────────────────────────────────────────────────────────────────────────

    def _prepare(self, order: Start) -> LocalWorker:
        with ExitStack() as undo:
            board = BoardReader.create(self._directory, order.worker)
            undo.callback(self._free, board)
            ring = RingReader.create(self._directory, order.worker)
            undo.callback(self._free, ring)
            output = WorkerLog(order.worker, self._logs, self._show, order.rank)
            undo.pop_all()
        worker = self.workers[order.worker] = LocalWorker(order.worker, board, ring, output, order.rank, order.device)
        return worker

    async def _launch(self, worker: LocalWorker) -> None:
        try:
            with worker.log.output() as output:
                await self._device_is_free(worker)
                spawner = await self._nursery.spawner()
                worker.launch = None  # from here on there may be a process
                process = worker.process = await self._spawn(spawner, worker, output)
        except SpawnError as error:
            self._forget(worker)
            self._not_started(worker.id, error)
        else:
            process.on_exit(partial(self._on_exit, worker))
            if worker.doomed:
                process.kill()

    def _on_launched(self, worker: LocalWorker, task: asyncio.Task[None]) -> None:
        """Not in the task: one that is cancelled at once never begins."""
        if task.cancelled():
            self._forget(worker)
            if not worker.abandoned:
                self._tell(Notice(Exited(worker.id, -signal.SIGKILL, "was fenced before it was started")))

    async def _spawn(self, spawner: Spawner, worker: LocalWorker, output: int) -> WorkerProcess:
        env, cwd = self._env(worker), Path(self._welcome.cwd)
        return await spawner.spawn(worker.id, self._welcome.argv, env=env, cwd=cwd, stdout=output, stderr=output)

    async def _device_is_free(self, worker: LocalWorker) -> None:
        """Its former user is dead before it is given to another, whoever ordered what in between."""
        for other in list(self.workers.values()):
            if other is not worker and other.doomed and other.device and other.device == worker.device:
                with suppress(TimeoutError):
                    await asyncio.wait_for(other.gone.wait(), self._welcome.fence_s)

    def _env(self, worker: LocalWorker) -> dict[str, str]:
        env = environment.of_worker(
            self._welcome,
            node=self._node,
            worker=worker.id,
            board=worker.board.path,
            ring=worker.ring.path,
            socket=self._socket,
            token=self._token,
        )
        return env if worker.rank is None else env | self._rank_env(worker.rank, worker.device)

    def _not_started(self, worker: WorkerId, error: Exception) -> None:
        self._tell(Notice(Exited(worker, 1, f"could not be started: {error}", place="its start")))

    def _fence_failed(self, worker: LocalWorker) -> None:
        worker.deadline = None
        self._tell(Notice(FenceFailed(worker.id)))

    def _on_exit(self, worker: LocalWorker, status: ExitStatus) -> None:
        self._cancel_deadline(worker)
        self._begin(self._bury(worker, status, time.monotonic_ns()))

    async def _bury(self, worker: LocalWorker, status: ExitStatus, at_ns: int) -> None:
        try:
            await self._switchboard.drain(worker)
            worker.log.finish()
            if not worker.abandoned:
                self._tell(Notice(worker.exited(status)))
        finally:
            self.flight.ended(worker, at_ns, str(status))
            self._forget(worker)

    def _forget(self, worker: LocalWorker) -> None:
        self._cancel_deadline(worker)
        del self.workers[worker.id]
        worker.log.finish()
        self._free(worker.board)
        self._free(worker.ring)
        worker.gone.set()

    def _free(self, shared: BoardReader | RingReader) -> None:
        shared.close()
        self._directory.remove(shared.path.name)

    def _cancel_deadline(self, worker: LocalWorker) -> None:
        if worker.deadline is not None:
            worker.deadline.cancel()
            worker.deadline = None

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._supervise(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
