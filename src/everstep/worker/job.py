"""`init` and the `Job` that it gives: who this process is in the job, and its training loop."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import weakref
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from everstep.agent.board import BoardWriter
from everstep.agent.ring import RingWriter
from everstep.core.effects import Assign
from everstep.errors import ConfigError
from everstep.fork import die_with
from everstep.types import Generation, Rank, WorkerPhase
from everstep.types import Step as StepIndex
from everstep.worker.control import Control
from everstep.worker.environment import Place, Seat, assigned, unprotected
from everstep.worker.failure import report_uncaught
from everstep.worker.step import Loop, PlainLoop, Step, steps
from everstep.worker.track import NoBoard, Track

if TYPE_CHECKING:
    from typing import Unpack

    from everstep.worker.loader import Loader, LoaderOptions
    from everstep.worker.session import Session

log = logging.getLogger(__name__)


class Job:
    """This process's part of the job. Made by `init`."""

    def __init__(self, place: Place, track: Track, control: Control | None, session: Session | None = None) -> None:
        self._place = place
        self._track = track
        self._control = control
        self._session = session
        self._loop: Loop | None = None
        self._loaders: list[Loader] = []

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

    def protect(
        self,
        *,
        model: object,
        optimizer: object,
        scheduler: object = None,
        scaler: object = None,
        extra: Mapping[str, Any] | None = None,
        private: Mapping[str, Any] | None = None,
        rng: str = "step",
    ) -> None:
        """From here on these objects survive the loss of a device. Called once, by every device, before the loop.

        `extra` is what else belongs to the state: anything with `state_dict` and `load_state_dict`, a module, a tensor,
        or a dict or list that is changed in place. It is equal on all ranks; what each has for itself is `private`.
        `rng="step"` seeds torch, numpy and random at each step; `"carry"` lets them run on.
        """
        if self._session is None:
            raise ConfigError("protect() needs torch: import it before everstep.init()")
        streams = {f"loader.{index}": loader for index, loader in enumerate(self._loaders) if loader.private}
        own = {**streams, **(private or {})}
        given = {"scheduler": scheduler, "scaler": scaler, "extra": extra, "private": own, "rng": rng}
        self._loop = self._session.protect(self._epoch, model=model, optimizer=optimizer, **given)

    def steps(self, count: int) -> Iterator[Step]:
        """The steps up to ``count``, from where the job is. Each is run inside ``with step:``."""
        if not hasattr(count, "__index__") or count < 0:
            raise ConfigError(f"job.steps({count!r}): it must be a whole number, at least 0")
        turns = steps(self._loop or PlainLoop(self._track), self._track, count)
        if self._control is not None:
            atexit.register(_end_of_loop, weakref.ref(turns), self._control)
        return turns

    def loader(self, source: Any, **options: Unpack[LoaderOptions]) -> Loader:
        """Data as a function of the step: ``loader.batch(step)`` is the same after a redo and on a replacement.

        ``source`` is a dataset with a length, a DataLoader over one, or an iterable with `state_dict`;
        the last one is state of this rank alone, so it is made before protect().
        """
        from everstep.worker.loader import make_loader

        point = self._safe_point
        loader = make_loader(source, rank=self.rank, world_size=self.world_size, safe_point=point, **options)
        if loader.private and self._loop is not None:
            raise ConfigError("a loader with a state of its own has to be made before protect(), which protects it too")
        self._loaders.append(loader)
        return loader

    def _safe_point(self) -> None:
        if self._loop is not None:
            self._loop.safe_point()

    def _epoch(self, step: StepIndex) -> int:
        """By the first loader."""
        return self._loaders[0].epoch(step) if self._loaders else 0

    def waiting(self) -> AbstractContextManager[None]:
        """Internal: what is inside waits for other ranks, so standing still there is no hang of this one."""
        return self._track.waiting()

    def forget(self) -> None:
        """Internal: this process is a child of the worker, and no part of the job."""
        self._track.forget()

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self.world_size} on {self.device}>"


def _end_of_loop(held: weakref.ref[Generator[Step, None, None]], control: Control) -> None:
    """At the end of a script that holds a loop which it has left by `break`, in a progress bar for example. To leave it
    later, when the interpreter ends, would be to wait for threads that are gone."""
    turns = held()
    if turns is not None and _pid and not control.failed:
        turns.close()


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
    track = Track(board, RingWriter(seat.ring))
    track.stand(WorkerPhase.STANDBY)
    try:
        control = Control(seat, board, track)
    except OSError as error:
        sys.exit(f"everstep: worker {seat.worker} cannot reach its agent at {seat.socket}: {error.strerror}")
    report_uncaught(control.raised)
    atexit.register(control.leave)
    assign = control.register()
    track.stand(WorkerPhase.BUILDING, assign.generation)
    place = assigned(assign.rank, assign.world_size, assign.device, os.environ)
    return Job(place, track, control, _session(place, track, control, assign))


def _session(place: Place, track: Track, control: Control | None, assign: Assign | None) -> Session | None:
    """None for a script without torch: there is nothing to protect, and importing it would take seconds."""
    if "torch.distributed" not in sys.modules:
        return None
    from everstep.worker.session import begin

    return begin(place, track, control, assign)


def _go_alone() -> Job:
    place = unprotected(os.environ)
    if place.rank == 0:
        script = os.path.basename(sys.argv[0]) or "script.py"
        log.warning(
            "everstep: no protection, a failure ends this run; with it: everstep run --nproc %d %s",
            place.world_size,
            script,
        )
    track = Track(NoBoard())
    return Job(place, track, None, _session(place, track, None, None))


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
