"""Reads the batches of given steps: in this process, or ahead of time in processes of torch's DataLoader.

What is random in it (augmentation) draws from torch, numpy and random, seeded per batch; the generators of the
training process are left as they were. Nothing here knows how items are chosen.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.context import BaseContext
from typing import Any, Protocol

import torch
import torch._utils
from torch.utils.data import DataLoader, Dataset, _utils
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from everstep.fork import die_with
from everstep.worker.loader.guard import OurIterator
from everstep.worker.randomness import own_randomness, seed_all

_internals: Any = _utils
_Failure: Any = torch._utils.ExceptionWrapper
"""Of torch: not typed. The tests fail where they change."""

POLL_S = 0.05
"""Between two looks, while a batch is not ready yet, at the stop of the step and at the processes that read."""


@dataclass(frozen=True, slots=True)
class Task:
    """The batch of one step, for whoever reads it."""

    index: int
    seed: int
    items: list[int]


Plan = Callable[[int], Task]


@dataclass(frozen=True, slots=True)
class Processes:
    """How batches are read ahead."""

    count: int
    prefetch: int
    """Batches in work or ready, per process."""
    init: Callable[[int], object] | None
    timeout_s: float
    """For one batch; 0 is without end."""
    context: str | BaseContext | None
    """How they are started; None is Python's way."""
    pin_memory: bool
    seed: int
    """Of what a process draws before its first batch."""


class Reader(Protocol):
    """Gives the batch of any step; fastest when they are asked for in order."""

    def start(self, index: int) -> None:
        """The batch of this step will be asked for next."""

    def take(self, index: int) -> Any: ...

    def close(self) -> None: ...


class Batches(Dataset[tuple[int, Any]]):
    """The user's dataset as one of whole batches."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any]) -> None:
        self.dataset = dataset
        self._collate = collate

    def read(self, task: Task) -> Any:
        """As torch does, after seeding."""
        seed_all(task.seed)
        many = getattr(self.dataset, "__getitems__", None)
        return self._collate(many(task.items) if many else [self.dataset[item] for item in task.items])

    def __getitem__(self, task: Task) -> tuple[int, Any]:
        """In a process that reads ahead, an error belongs to the step whose batch it is, not to the present one."""
        try:
            return task.index, self.read(task)
        except Exception:  # noqa: BLE001  (raised again by the one who asks for this batch)
            return task.index, _Failure(where=f"while a loader process read the batch of step {task.index}")


class ReadHere:
    """In the training process, when the batch is asked for."""

    def __init__(self, batches: Batches, plan: Plan, *, pin_memory: bool) -> None:
        self._batches = batches
        self._plan = plan
        self._pin = pin_memory and torch.accelerator.is_available()

    def start(self, index: int) -> None:
        pass

    def take(self, index: int) -> Any:
        with own_randomness():
            batch = self._batches.read(self._plan(index))
        return _internals.pin_memory.pin_memory(batch) if self._pin else batch

    def close(self) -> None:
        pass


class ReadAhead:
    """In processes that go on with the next batches, past the end of an epoch too, while the step runs."""

    def __init__(self, batches: Batches, plan: Plan, processes: Processes, safe_point: Callable[[], None]) -> None:
        self._ahead = _Ahead(plan)
        self._loader = _Loader(batches, self._ahead, processes, safe_point)
        self._most = processes.count * processes.prefetch
        self._iterator: _Iterator | None = None

    def start(self, index: int) -> None:
        self._ahead.wanted = index
        if self._iterator is None:
            self._ahead.forget()  # the last start may have been interrupted
            self._iterator = self._loader.begin()
        self._iterator.at_safe_point = False

    def take(self, index: int) -> Any:
        self.start(index)
        try:
            batch = self._wait_for(index)
        except BaseException:
            # Wherever it came from, a batch may have got lost between two lists. At a safe point none has.
            if self._iterator is None or not self._iterator.at_safe_point:
                self.close()
            raise
        if isinstance(batch, _Failure):
            batch.reraise()
        return batch

    def close(self) -> None:
        """End the processes. The next batch that is asked for starts others."""
        iterator, self._iterator = self._iterator, None
        self._ahead.forget()
        if iterator is not None:
            iterator.shut_down()

    def _wait_for(self, index: int) -> Any:
        assert self._iterator is not None
        ahead = self._ahead
        ahead.drop_beyond(index + 2 * self._most)
        while index not in ahead.early:
            arrived, batch = next(self._iterator)
            ahead.sent.discard(arrived)
            if arrived >= index:  # an older one is left over from before a jump
                ahead.early[arrived] = batch
        return ahead.early.pop(index)


@dataclass(slots=True)
class _Ahead:
    """The sampler: which batch is to be read next. It never ends."""

    plan: Plan
    wanted: int = 0
    sent: set[int] = field(default_factory=set)
    """With a process, or on the way from it."""
    early: dict[int, Any] = field(default_factory=dict)
    """Arrived before the one that is waited for: a redone step is read once more, those after it are not."""

    def __iter__(self) -> Iterator[Task]:
        return self

    def __next__(self) -> Task:
        index = self.wanted
        while index in self.sent or index in self.early:
            index += 1
        task = self.plan(index)
        self.sent.add(index)
        return task

    def drop_beyond(self, last: int) -> None:
        for index in [index for index in self.early if not self.wanted <= index <= last]:
            del self.early[index]

    def forget(self) -> None:
        self.sent.clear()
        self.early.clear()


class _Loader(DataLoader[Any]):
    """Of tasks; `_Iterator` is its iterator."""

    def __init__(
        self, batches: Batches, tasks: Iterator[Task], processes: Processes, safe_point: Callable[[], None]
    ) -> None:
        super().__init__(
            batches,
            batch_size=None,
            sampler=tasks,
            num_workers=processes.count,
            collate_fn=_as_it_is,
            pin_memory=processes.pin_memory,
            timeout=processes.timeout_s,
            multiprocessing_context=processes.context,
            generator=torch.Generator().manual_seed(processes.seed),  # the global one stays where it is
            prefetch_factor=processes.prefetch,
        )
        self.safe_point = safe_point
        self._init = processes.init

    def begin(self) -> _Iterator:
        """Start the processes."""
        # They die with the thread that forked them: only the main thread lives as long as the process. A fork server
        # ends them by its own end.
        served = (self.multiprocessing_context or multiprocessing).get_start_method() == "forkserver"
        lasts = not served and threading.current_thread() is threading.main_thread()
        self.worker_init_fn = _Begin(os.getpid() if lasts else None, self._init)
        return _Iterator(self)


class _Iterator(OurIterator, _MultiProcessingDataLoaderIter):
    """torch's, but a step that is stopped need not wait for its batch, and a dead process is noticed only here.

    torch lets the death of one raise an error in the main thread wherever that is, in the optimizer for example.
    """

    _shutdown = True  # until there are processes to shut down

    def __init__(self, loader: _Loader) -> None:
        self._safe_point = loader.safe_point
        self.at_safe_point = False
        super().__init__(loader)
        self._worker_pids_set = _internals.signal_handling._remove_worker_pids(id(self)) is not None

    def shut_down(self) -> None:
        self._shutdown_workers()

    def _try_get_data(self, timeout: float = POLL_S) -> tuple[bool, Any]:
        deadline = time.monotonic() + timeout
        while True:
            self.at_safe_point = True
            self._safe_point()
            self.at_safe_point = False
            left_s = deadline - time.monotonic()
            torchs: Any = super()
            got: tuple[bool, Any] = torchs._try_get_data(max(0.0, min(left_s, POLL_S)))
            if got[0] or left_s <= POLL_S:
                return got


@dataclass(frozen=True, slots=True)
class _Begin:
    """What a process that reads does first."""

    parent_pid: int | None
    init: Callable[[int], object] | None

    def __call__(self, worker_id: int) -> None:
        if self.parent_pid is not None:
            die_with(self.parent_pid)
        info = _internals.worker._worker_info
        if info is not None:  # the user's own function expects the user's own dataset there
            _internals.worker._worker_info = replace(info, dataset=info.dataset.dataset)
        if self.init is not None:
            self.init(worker_id)


def _as_it_is(batch: Any) -> Any:
    return batch
