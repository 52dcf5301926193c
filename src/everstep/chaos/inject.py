"""Strikes faults in a worker: exactly at the phase they name, or some time after they were ordered.

The main thread strikes what has a place, and what only it can do (raise, hang, slow). The control thread strikes the
rest, so that also a script that never comes to a phase can be killed. A fault of the job is written down in the run
directory before it strikes: a replacement must not die at the same place again.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from everstep.chaos.spec import Action, Fault, When
from everstep.chaos.strikes import Strikes, of_job
from everstep.types import NodeId, Rank, Step
from everstep.worker.phases import IN_STEP, Phase

EXIT_CODE = 3
SLOW_S = 1.0
"""How long ``slow`` sleeps if neither ``for`` nor ``delay`` says it."""

_MAIN_THREAD_ONLY = (Action.RAISE, Action.HANG, Action.SLOW)


class InjectedFault(RuntimeError):
    """What ``raise`` raises: to the job it is an error of the user's code."""


@dataclass(slots=True)
class _Armed:
    fault: Fault
    due_s: float
    """By the monotonic clock; a fault without a place does not strike before."""
    strikes: Strikes

    @property
    def by_main_thread(self) -> bool:
        return self.fault.exact or self.fault.action in _MAIN_THREAD_ONLY

    def matches(self, phase: Phase, when: When, step: Step) -> bool:
        fault = self.fault
        if when is not (fault.when or When.MID):
            return False
        if not fault.exact:
            return time.monotonic() >= self.due_s
        # A step without a phase means its work, not the pause before it.
        here = phase is fault.phase if fault.phase is not None else phase in IN_STEP.values()
        return here and fault.step in (None, step)


class Injector:
    """The faults that concern this worker. Without any there is no injector."""

    def __init__(self, rank: Rank, node: NodeId = NodeId("")) -> None:  # noqa: B008  (a string)
        self._rank = rank
        self._node = node
        self._armed: tuple[_Armed, ...] = ()
        self._at: tuple[Phase, Step] | None = None

    def arm(self, fault: Fault, strikes: Strikes | None = None) -> None:
        """From any thread."""
        if fault.in_worker and fault.concerns(self._rank, self._node):
            due_s = time.monotonic() + fault.delay_s
            self._armed = (*self._armed, _Armed(fault, due_s, strikes or Strikes(fault.times)))

    @classmethod
    def of_job(cls, faults: Sequence[Fault], rank: Rank, node: NodeId, run_dir: Path | None) -> Injector | None:
        """None if none of them can strike here, so that a step pays nothing for them."""
        injector = cls(rank, node)
        for fault, strikes in of_job(faults, run_dir):
            injector.arm(fault, strikes)
        return injector if injector._armed else None

    # ── the main thread ──────────────────────────────────────────────────────────────────────────────────

    def before(self, phase: Phase, step: Step) -> None:
        """This phase is about to be stamped: the work of the one before is done."""
        if self._at is not None:
            self._reach(*self._at, When.AFTER)
        self._reach(phase, step, When.BEFORE)

    def inside(self, phase: Phase, step: Step) -> None:
        """This phase was stamped just now, and its work is under way."""
        self._at = (phase, step)
        self._reach(phase, step, When.MID)

    def in_passing(self, phase: Phase, step: Step, *, main_thread: bool) -> None:
        """A phase of a recovery: it has no before and after, because nothing is stamped."""
        for armed in self._armed:
            if armed.fault.phase is phase and (main_thread or armed.fault.action not in _MAIN_THREAD_ONLY):
                self._reach(phase, step, armed.fault.when or When.MID)

    def _reach(self, phase: Phase, step: Step, when: When) -> None:
        for armed in self._armed:
            if armed.by_main_thread and armed.matches(phase, when, step) and armed.strikes.claim():
                if armed.fault.exact:
                    time.sleep(armed.fault.delay_s)  # still inside the phase
                strike(armed.fault)

    # ── the control thread ───────────────────────────────────────────────────────────────────────────────

    def tick(self) -> None:
        """Between two heartbeats: strike what is due."""
        for armed in self._armed:
            if not armed.by_main_thread and time.monotonic() >= armed.due_s and armed.strikes.claim():
                strike(armed.fault)


def strike(fault: Fault) -> None:
    """Do it to this process."""
    _STRIKES[fault.action](fault)


def _raise(fault: Fault) -> None:
    raise InjectedFault(f"injected by chaos: {fault}")


def _hang(fault: Fault) -> None:
    """In C, without the GIL, as in a collective that never ends: other threads live on."""
    select.poll().poll(_milliseconds(fault))


def _hold_gil(fault: Fault) -> None:
    """In C, with the GIL, as in a library that forgot to release it: the process lives and no thread of it moves."""
    wait_ms = _milliseconds(fault)
    ctypes.PyDLL(None).poll(None, 0, -1 if wait_ms is None else wait_ms)


def _sleep(fault: Fault) -> None:
    given_s = fault.for_s if fault.for_s is not None else fault.delay_s
    time.sleep(given_s or SLOW_S)


def _milliseconds(fault: Fault) -> int | None:
    return None if fault.for_s is None else round(fault.for_s * 1000)


_STRIKES: dict[Action, Callable[[Fault], object]] = {
    Action.KILL: lambda _: os.kill(os.getpid(), signal.SIGKILL),
    Action.STOP: lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    Action.SEGV: lambda _: ctypes.string_at(0),
    Action.EXIT: lambda _: os._exit(EXIT_CODE),
    Action.RAISE: _raise,
    Action.HANG: _hang,
    Action.GIL: _hold_gil,
    Action.SLOW: _sleep,
}
