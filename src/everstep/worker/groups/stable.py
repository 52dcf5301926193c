"""The outer process group: what the script, DDP and meshes hold for the life of the job.

Each operation goes to the inner group of this generation, or is done locally while there is none. It keeps the works
in flight: nothing that a work may still write into is used again before the work has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import GroupName

from everstep.errors import ProtocolError, RuleError
from everstep.worker.groups.local import OPERATIONS, LocalWork
from everstep.worker.groups.work import END_S, TrackedWork

if TYPE_CHECKING:
    from everstep.worker.groups.world import World


class StableGroup(dist.ProcessGroup):
    """Made by `torch.distributed` through the backend "everstep"."""

    def __init__(self, world: World, key: str, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self.key = key
        self.timeout = timeout
        self.inner: dist.ProcessGroup | None = None
        self.prologue = world.prologue_of(key)
        self._world = world
        self._name = self._description = ""
        self._works: dict[TrackedWork, None] = {}
        self._lazy: set[str] = set()
        """Operations that end in `wait` and not before, so whether they are under way says nothing."""
        self.issued = 0

    # ── works in flight ──────────────────────────────────────────────────────────────────────────────────

    def in_flight(self) -> bool:
        """Some operation has not ended yet. Those that have are forgotten; a failure of one is told."""
        for work in list(self._works):
            if work.is_completed():
                self._end(work)
        return bool(self._works)

    def busy(self) -> bool:
        """An operation has not ended yet, as another thread sees it: without forgetting any."""
        try:
            return any(
                work.waiting or (work.operation not in self._lazy and not work.is_completed())
                for work in list(self._works)
            )
        except RuntimeError:  # one was added meanwhile, so it moves
            return False

    def give_up(self) -> None:
        """From another thread: what has not ended never will."""
        for work in list(self._works):
            work.give_up()

    def settle(self) -> None:
        """Wait until all have ended, as they may. After a cut that is at once."""
        for work in list(self._works):
            self._end(work)

    def _end(self, work: TrackedWork) -> None:
        with suppress(RuntimeError):  # told by the work itself
            work.wait(timedelta(seconds=END_S))

    def _ended(self, work: TrackedWork, error: RuntimeError | None) -> None:
        """Waited for, by whom ever."""
        self._works.pop(work, None)
        if error is not None:
            self._world.failed(f"{self.key}: {_first_line(error)}")
        elif work.lazy:
            self._lazy.add(work.operation)

    # ── operations ───────────────────────────────────────────────────────────────────────────────────────

    def issue(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> dist.Work:
        """Do it in the inner group, or locally while there is none."""
        world = self._world
        if not world.local:
            world.gate.enter(name)
        operation = OPERATIONS[name]
        if self.inner is None or world.local:
            outputs = operation.outputs(arguments)
            source = name == "broadcast" and arguments[1].rootRank == self.rank()
            if not (world.feed(outputs) or self.prologue.replay(name, outputs, source=source)):
                operation.alone(self.rank(), self.size(), arguments)
            return LocalWork(outputs)
        self.in_flight()
        try:
            work = self._track(getattr(self.inner, name)(*arguments, **options), name, operation.outputs(arguments))
        except RuntimeError as error:
            world.failed(f"{self.key}: {_first_line(error)}")
            raise
        if world.recording and self.prologue.wants(operation.shared, name, operation.outputs(arguments)):
            work.wait()
            self.prologue.record(name, operation.outputs(arguments))
        if world.captured is not None:
            work.wait()
            world.captured.append([tensor.clone() for tensor in operation.outputs(arguments)])
        return work

    def _track(self, inner: dist.Work, name: str, tensors: Sequence[torch.Tensor]) -> TrackedWork:
        work = TrackedWork(inner, name, tensors, self._ended, self._world.cut_off)
        self._works[work] = None
        self.issued += 1
        return work

    def monitored_barrier(self, *arguments: Any, **options: Any) -> None:
        self._world.gate.enter("monitored_barrier")
        if self.inner is not None:
            self.inner.monitored_barrier(*arguments, **options)  # type: ignore[attr-defined]

    def start_coalescing(self, device: torch.device) -> None:
        if self.inner is not None:
            self.inner._start_coalescing(device)

    def end_coalescing(self, device: torch.device) -> dist.Work:
        if self.inner is None:
            return LocalWork([])
        return self._track(self.inner._end_coalescing(device), "end_coalescing", [])

    _start_coalescing = start_coalescing
    _end_coalescing = end_coalescing

    # ── what a process group says of itself ──────────────────────────────────────────────────────────────

    def getBackendName(self) -> str:  # noqa: N802  (the name that torch calls)
        return "everstep"

    @property
    def group_name(self) -> GroupName:
        return GroupName(self._name)

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    @property
    def _device_types(self) -> list[torch.device]:
        return list(self._world.seam.device_types)

    def _get_backend(self, device: torch.device) -> Any:
        if self.inner is None:
            raise ProtocolError(f"group {self.key} is not connected before protect() in a replacement")
        return self.inner._get_backend(device)

    def set_timeout(self, timeout: timedelta) -> None:
        self.timeout = timeout

    def shutdown(self) -> None:
        self._world.drop(self)

    abort = shutdown

    def _has_hooks(self) -> bool:
        return False

    def _set_sequence_number_for_group(self) -> None:
        """Nothing of ours counts by it."""

    def _get_sequence_number_for_group(self) -> int:
        return 0

    def _wait_for_pending_works(self) -> None:
        self.settle()

    def _enable_collectives_timing(self) -> None:
        """Gloo has none."""

    def _register_on_completion_hook(self, hook: object) -> NoReturn:
        self._refuse("completion hooks")

    def merge_remote_group(self, *_: object, **__: object) -> NoReturn:
        self._refuse("merging groups of two jobs")

    def split_group(self, *_: object, **__: object) -> NoReturn:
        self._refuse("split_group on a group itself; use torch.distributed.new_group,")

    def _refuse(self, what: str) -> NoReturn:
        raise RuleError(f"group {self.key}: everstep does not support {what} because it could not be made again")


def _operation(name: str) -> Callable[..., dist.Work]:
    def operation(self: StableGroup, *arguments: Any, **options: Any) -> dist.Work:
        return self.issue(name, arguments, options)

    operation.__name__ = operation.__qualname__ = name
    return operation


for _name in OPERATIONS:
    setattr(StableGroup, _name, _operation(_name))


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
