"""`init` and the `Job` that it gives: who this process is in the job, and its training loop."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager

from everstep.agent.board import BoardWriter
from everstep.errors import ConfigError
from everstep.types import Generation, Rank, WorkerPhase
from everstep.worker.control import Control
from everstep.worker.environment import Place, Seat, assigned, unprotected
from everstep.worker.failure import report_uncaught
from everstep.worker.fork import die_with
from everstep.worker.step import Step, steps
from everstep.worker.track import NoBoard, Track

log = logging.getLogger(__name__)


class Job:
    """This process's part of the job. Made by `init`."""

    def __init__(self, place: Place, track: Track, control: Control | None) -> None:
        self._place = place
        self._track = track
        self._control = control

    @property
    def rank(self) -> Rank:
        return self._place.rank

    @property
    def world_size(self) -> int:
        return self._place.world_size

    @property
    def local_rank(self) -> int:
        """The rank among the processes of this machine."""
        return self._place.local_rank

    @property
    def device(self) -> str:
        """For torch, for example ``cuda:0``."""
        return self._place.device

    @property
    def generation(self) -> Generation:
        """Counts the memberships of the job: it grows with every recovery."""
        return self._control.generation if self._control is not None else Generation(0)

    def steps(self, count: int) -> Iterator[Step]:
        """The steps up to ``count``, from where the job is. Each is run inside ``with step:``."""
        if not hasattr(count, "__index__") or count < 0:
            raise ConfigError(f"job.steps({count!r}): it must be a whole number, at least 0")
        return steps(self._track, count)

    def waiting(self) -> AbstractContextManager[None]:
        """Internal: what is inside waits for other ranks, so standing still there is no hang of this one."""
        return self._track.waiting()

    def forget(self) -> None:
        """Internal: this process is a child of the worker, and no part of the job."""
        self._track.forget()

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self.world_size} on {self.device}>"


_job: Job | None = None
_main_thread = threading.main_thread()
_pid = 0
"""Of the worker process, in it and while it forks; else 0."""


def init() -> Job:
    """Take part in the job. A standby waits in here until it is needed. A second call gives the same Job."""
    global _job, _pid
    if _job is None:
        seat = Seat.take(os.environ)
        if seat is not None:
            _pid = os.getpid()
            _job = _join_agent(seat)
        else:
            _job = _go_alone()
    return _job


def _join_agent(seat: Seat) -> Job:
    board = BoardWriter(seat.board)
    track = Track(board)
    board.stamp(WorkerPhase.STANDBY)
    try:
        control = Control(seat, board, track)
    except OSError as error:
        sys.exit(f"everstep: worker {seat.worker} cannot reach its agent at {seat.socket}: {error.strerror}")
    report_uncaught(control.raised)
    atexit.register(control.leave)
    assign = control.register()
    board.stamp(WorkerPhase.BUILDING, generation=assign.generation)
    return Job(assigned(assign.rank, assign.world_size, assign.device, os.environ), track, control)


def _go_alone() -> Job:
    place = unprotected(os.environ)
    if place.rank == 0:
        script = os.path.basename(sys.argv[0]) or "script.py"
        log.warning(
            "everstep: no protection, a failure ends this run; with it: everstep run --nproc %d %s",
            place.world_size,
            script,
        )
    return Job(place, Track(NoBoard()), None)


def _leave_to_parent() -> None:
    """In a process that the script has forked, for its data for example. The channel sees to itself."""
    global _pid
    parent_pid, _pid = _pid, 0
    if _job is None or not parent_pid:  # no worker's process, or a child of a child, which may be a daemon
        return
    _job.forget()
    # A thread that ends would take its children with it. They still end with the process group.
    if threading.current_thread() is _main_thread:
        die_with(parent_pid)


os.register_at_fork(after_in_child=_leave_to_parent)
