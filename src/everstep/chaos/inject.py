"""Strikes faults in a worker: exactly at the phase they name, or some time after they were ordered.

The main thread strikes what has a place in a step, and what only it can do (raise, hang, slow). The control thread
strikes the rest: at a command of a recovery, and by time, so that also a script that never comes to a phase can be
killed. A fault of the job is written down in the run directory before it strikes: a replacement must not die at the
same place again.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from everstep.chaos.spec import Action, Fault, Recovery, When
from everstep.chaos.strikes import Strikes, of_job
from everstep.core.effects import Assign, Command, Donate, Reset, Restore, Resume, Role, Settle, Stop
from everstep.types import NodeId, Rank, Step, WorkerPhase
from everstep.worker.phases import IN_STEP

EXIT_CODE = 3
SLOW_S = 1.0
"""How long ``slow`` sleeps if neither ``for`` nor ``delay`` says it."""


_RECOVERY = {
    Assign: Recovery.ASSIGN,
    Stop: Recovery.STOP,
    Settle: Recovery.SETTLE,
    Reset: Recovery.RESET,
    Restore: Recovery.RESTORE,
    Donate: Recovery.DONATE,
    Resume: Recovery.RESUME,
}


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
        return self.fault.by_main_thread

    @property
    def by_time(self) -> bool:
        return not (self.fault.exact or self.fault.by_main_thread)

    def matches(self, phase: WorkerPhase, when: When, step: Step) -> bool:
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
        self._at: tuple[WorkerPhase, Step] | None = None
        self._recovering = False

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

    def before(self, phase: WorkerPhase, step: Step) -> None:
        """This phase is about to be stamped: the work of the one before is done."""
        if self._at is not None:
            self._reach(*self._at, When.AFTER)
        self._reach(phase, step, When.BEFORE)

    def inside(self, phase: WorkerPhase, step: Step) -> None:
        """This phase was stamped just now."""
        self._at = (phase, step)
        self._reach(phase, step, When.MID)

    def _reach(self, phase: WorkerPhase, step: Step, when: When) -> None:
        for armed in self._armed:
            if armed.by_main_thread and armed.matches(phase, when, step) and armed.strikes.claim():
                if armed.fault.exact:
                    time.sleep(armed.fault.delay_s)  # still inside the phase
                strike(armed.fault)

    # ── the control thread ───────────────────────────────────────────────────────────────────────────────

    def tick(self) -> None:
        """Between two heartbeats: strike what is due."""
        for armed in self._armed:
            if armed.by_time and time.monotonic() >= armed.due_s and armed.strikes.claim():
                strike(armed.fault)

    def ordered(self, command: Command, when: When) -> None:
        """This command of a recovery is about to be obeyed, or was just now. Those of the first start are none."""
        if isinstance(command, Stop) or (isinstance(command, Assign) and command.role is not Role.FOUNDER):
            self._recovering = True
        if self._recovering and (here := _RECOVERY.get(type(command))) is not None:
            for armed in self._armed:
                fault = armed.fault
                if fault.recovery is here and when is (fault.when or When.BEFORE) and armed.strikes.claim():
                    # The thread that obeys must not stand still until then.
                    threading.Timer(fault.delay_s, strike, (fault,)).start() if fault.delay_s else strike(fault)
        if isinstance(command, Resume) and when is When.AFTER:
            self._recovering = False


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
