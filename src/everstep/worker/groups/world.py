"""All process groups of this worker: connected together, cut together, made again together.

The main thread makes and uses them; the control thread cuts. It decides nothing: a Stop comes from outside.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist

from everstep.errors import RuleError
from everstep.types import Generation
from everstep.worker.groups.own import OwnGroup
from everstep.worker.groups.prologue import Prologue
from everstep.worker.groups.rendezvous import CONNECT_S, NoStore, Publish, Rendezvous
from everstep.worker.groups.seam import Plan, Seam
from everstep.worker.groups.stable import StableGroup
from everstep.worker.groups.work import LOOK_S

BACKEND = "everstep"
CLOSE_S = 5.0
"""At the end of the script, for threads that make or destroy groups. Those that wait for the dead take longer."""
OUTCOME_S = 2.0
"""For operations in flight when the script's code has failed. They end at once if one of their group did."""


class Gate(Protocol):
    """Who says whether a collective may be done here and now."""

    def enter(self, operation: str) -> None:
        """Raises if not."""


class _Open:
    def enter(self, operation: str) -> None:
        """Before protect() everything may be done."""


class World:
    """One for a process, made in `init`."""

    def __init__(self, seam: Seam, publish: Publish, prologues: Mapping[str, bytes] | None = None) -> None:
        """``prologues`` is for a newcomer: it begins without peers."""
        self.seam = seam
        self.gate: Gate = _Open()
        self.rendezvous = Rendezvous(publish)
        self.groups: dict[str, StableGroup] = {}
        self.recording = prologues is None
        self.local = False
        self.captured: list[list[torch.Tensor]] | None = None
        self.failure = ""
        """Why a collective failed since this was looked at last."""
        self._prologues = dict(prologues or {})
        self._generation = Generation(0)
        self._feed: list[Sequence[torch.Tensor]] = []
        self._changed = threading.Condition()
        self._cut_before = Generation(0)
        self._helpers: list[threading.Thread] = []
        """Those that make and destroy groups."""

    # ── the life of the groups ───────────────────────────────────────────────────────────────────────────

    def begin(self, rank: int, world_size: int, generation: Generation) -> None:
        """Set up `torch.distributed`. A newcomer's groups stay without peers until `connect`."""
        self._generation = generation
        if BACKEND.upper() not in dist.Backend._plugins:
            devices = [device.type for device in self.seam.device_types]
            dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=devices)
        _worlds.append(self)
        hook = sys.excepthook
        dist.init_process_group(BACKEND, store=NoStore(), rank=rank, world_size=world_size)
        sys.excepthook = hook  # torch's names the rank, as our logs do, and shows an error after ours has told of it

    def create(self, key: str, rank: int, size: int, timeout: timedelta) -> StableGroup:
        if not isinstance(self.gate, _Open):
            raise RuleError(
                f"group {key} was made after protect(): a replacement would not have it; make all groups before"
            )
        group = self.groups[key] = StableGroup(self, key, rank, size, timeout)
        if self.recording:
            group.inner = self._make(group, self._generation)
        return group

    def connect(self, generation: Generation) -> None:
        """Give every group a new inner one. RuntimeError if a Stop comes meanwhile, or a peer does not."""
        made: dict[str, dist.ProcessGroup | BaseException] = {}

        def make(group: StableGroup) -> None:
            try:
                inner: dist.ProcessGroup | BaseException = self._make(group, generation)
            except BaseException as error:  # noqa: BLE001  (carried to the thread that waits)
                inner = error
            with self._changed:
                made[group.key] = inner
                self._changed.notify_all()

        for group in self.groups.values():
            self._beside(partial(make, group), f"everstep-connect-{group.key}")
        with self._changed:
            while len(made) < len(self.groups):
                self._check(generation)
                if not self._changed.wait(2 * CONNECT_S):
                    raise RuntimeError(
                        f"the groups of generation {generation} were not made within {2 * CONNECT_S:.0f} s"
                    )
            self._check(generation)
        failures = [inner for inner in made.values() if isinstance(inner, BaseException)]
        if failures:
            raise RuntimeError(f"the groups of generation {generation} could not be made: {failures[0]}")
        old: list[dist.ProcessGroup | None] = []
        with self._changed:
            for key, inner in made.items():
                assert isinstance(inner, dist.ProcessGroup)
                old.append(self.groups[key].inner)
                self.groups[key].inner = inner
            self._generation = generation
        # To destroy a group is to join its threads, for tens of milliseconds; nobody has to wait for that.
        self._beside(old.clear, "everstep-destroy")
        self.recording, self.failure = False, ""

    def _beside(self, work: Callable[[], object], name: str) -> None:
        """A daemon: one that waits for the dead is left behind, and the next generation has its own."""
        helper = threading.Thread(target=work, name=name, daemon=True)
        with self._changed:
            self._helpers = [*(other for other in self._helpers if other.is_alive()), helper]
        helper.start()

    def close(self) -> None:
        """At the end of the script: destroy all groups while the interpreter lives. A thread of Gloo, or one that makes
        or destroys a group, that asked for the GIL of an interpreter that ends would abort the process.

        What the script has left in flight is left alone, as under plain torch: to destroy its group waits for its end.
        """
        if not self.in_flight():
            for group in self.groups.values():
                group.inner = None
        deadline = time.monotonic() + CLOSE_S
        for helper in self._helpers:
            helper.join(max(0.0, deadline - time.monotonic()))

    def _check(self, generation: Generation) -> None:
        if generation < self._cut_before:
            raise RuntimeError(f"generation {generation} was stopped while its groups were being made")

    def _make(self, group: StableGroup, generation: Generation) -> dist.ProcessGroup:
        plan = Plan(group.key, generation, group.rank(), group.size(), group.timeout.total_seconds())
        return self.seam.make(plan, self.rendezvous.store(generation, group.key, group.size()))

    def cut(self, generation: Generation) -> None:
        """A Stop of this generation came: end everything older. From the control thread, in milliseconds."""
        self.seam.cut(self.rendezvous.every_row())
        self.rendezvous.abandon(generation)
        with self._changed:
            self._cut_before = max(self._cut_before, generation)
            self._changed.notify_all()
        self._beside(partial(self._give_up, generation), "everstep-give-up")

    def cut_off(self) -> bool:
        """These groups were cut, and everything in them has ended that will."""
        return self._generation < self._cut_before and self.seam.quiet()

    def _give_up(self, before: Generation) -> None:
        """The main thread may wait, in code that is not ours, for what the backend has lost track of."""
        while self._generation < before and not self.seam.quiet():
            time.sleep(LOOK_S)
        with self._changed:
            if self._generation < before:  # else all has been waited for, and what is in flight is new
                for group in self.groups.values():
                    group.give_up()

    def drop(self, group: StableGroup) -> None:
        """The script destroys it."""
        self.groups.pop(group.key, None)
        group.inner = None

    @property
    def default(self) -> dist.ProcessGroup:
        """The inner group of all ranks, for what everstep itself says between its workers."""
        inner = self.groups[next(iter(self.groups))].inner
        assert inner is not None
        return OwnGroup(inner, self.cut_off)

    # ── what is in flight ────────────────────────────────────────────────────────────────────────────────

    def failed(self, evidence: str) -> None:
        self.failure = self.failure or evidence

    def in_flight(self) -> bool:
        """Whether an operation has not ended. Finds failures too."""
        busy = [group.in_flight() for group in self.groups.values()]
        return any(busy)

    def found_failure(self) -> bool:
        """The script's code met an error: was it a collective's? The error is there a moment before its work has ended,
        so what is in flight gets a moment to end."""
        deadline = time.monotonic() + OUTCOME_S
        while self.in_flight() and not self.failure and time.monotonic() < deadline:
            time.sleep(0.001)
        return bool(self.failure)

    def waiting(self) -> int | None:
        """From any thread: a number that changes with each operation while one is in flight, else None."""
        groups = list(self.groups.values())
        return sum(group.issued for group in groups) if any(group.busy() for group in groups) else None

    def settle(self) -> None:
        """Wait for every operation in flight; after a cut that is at once. Then what they wrote into is free."""
        for group in self.groups.values():
            group.settle()

    # ── without peers ────────────────────────────────────────────────────────────────────────────────────

    def prologue_of(self, key: str) -> Prologue:
        data = self._prologues.get(key)
        return Prologue() if data is None else Prologue.decode(data)

    @contextmanager
    def alone(self, feed: Sequence[Sequence[torch.Tensor]] = ()) -> Iterator[None]:
        """What is inside has no peers; its first operations find these results."""
        before, self._feed, self.local = self.local, list(feed), True
        try:
            yield
        finally:
            self.local, self._feed = before, []

    def feed(self, outputs: Sequence[torch.Tensor]) -> bool:
        if not self._feed:
            return False
        for output, recorded in zip(outputs, self._feed.pop(0), strict=True):
            output.copy_(recorded)
        return True

    @contextmanager
    def capturing(self) -> Iterator[list[list[torch.Tensor]]]:
        """The results of the operations inside."""
        captured: list[list[torch.Tensor]] = []
        self.captured = captured
        try:
            yield captured
        finally:
            self.captured = None


_worlds: list[World] = []
"""The one of this process. `torch.distributed` makes groups by calling a plain function."""


def _create(options: Any, _: object = None) -> StableGroup:
    return _worlds[-1].create(str(options.group_id), options.group_rank, options.group_size, options.timeout)
