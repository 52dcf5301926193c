"""Which steps are taken first, alone, because every order of them with all the others ends in the same worlds.

A step may go first if no other one, now or later, can disable it, be disabled by it, or see whether it was taken.
Failures are what most often can, so there is more of it when no failure is left. `Scope.reduce` turns this off.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from everstep.core.effects import Restore, Stop
from everstep.core.events import Broken
from everstep.core.machine import TABLE, Machine
from everstep.core.worker import WorkerMachine
from everstep.sim import checks
from everstep.sim.world import Link, Process, Task, World
from everstep.types import WorkerPhase

if TYPE_CHECKING:
    from everstep.sim.cores import CoreView
    from everstep.sim.rules import Choice, Rules

SPAWNED, STANDBY, BUILDING, HOLLOW, IDLE, FORWARD, BACKWARD, READY, COMMITTED, ENDED = WorkerPhase


def first_steps(rules: Rules, world: World, view: CoreView) -> Iterable[Choice]:
    """Those of one process, or none."""
    for worker, process in enumerate(world.processes):
        if process is None:
            continue
        if process.up and _means_nothing(rules, world, view, process):
            return [rules.report(worker, process)]
        if process.alive:
            state = rules.workers.states[process.core]
            if process.task is Task.NONE and not state.parked and _is_private(world, process, state):
                return rules.main_steps(world, worker, process, state)
            if not world.budget and _can_only_die(rules, world, process, state):
                return rules.process_steps(world, worker, process)
    if not world.budget and is_calm(rules, world, view):
        for worker, process in enumerate(world.processes):
            if process is not None and (steps := list(rules.process_steps(world, worker, process))):
                return steps
    return ()


def _means_nothing(rules: Rules, world: World, view: CoreView, process: Process) -> bool:
    """The report means nothing in this phase, and never will again."""
    report = rules.names.messages[process.up[0]]
    row = TABLE.get((type(report), view.phase))
    known = row is not None and row.action is Machine._again
    return (known or checks.is_old(view, report)) and world.links[process.node] in (Link.UP, Link.LOST)


def _is_private(world: World, process: Process, state: WorkerMachine) -> bool:
    """Nobody sees whether the main thread has done it, a Stop makes no difference, and the dead have forgotten it.

    Before init() no command comes. The first half of an update is seen when it ends. Without a failure to come, the
    calls of protect() and the exit are too: they are seen when the controller is told.
    """
    if state.phase is COMMITTED:
        return process.content == 2 * state.version
    return state.phase is SPAWNED or (not world.budget and state.phase in (BUILDING, ENDED))


def _can_only_die(rules: Rules, world: World, process: Process, state: WorkerMachine) -> bool:
    """One of its threads waits for the other, and what it does next changes nothing for others until they are told."""
    if process.killing or world.links[process.node] is not Link.UP:
        return False
    if state.parked:
        return bool(process.down) and not (_is_stop(rules, process.down[0]) and _state_is_copied(rules, world))
    return state.stopping and not process.down and _is_about_to_park(rules, world, process, state)


def _is_stop(rules: Rules, command: int) -> bool:
    return isinstance(rules.names.messages[command], Stop)


def _state_is_copied(rules: Rules, world: World) -> bool:
    """Somebody is being filled, or told to: a Stop ends what others give to it."""
    messages = rules.names.messages
    return any(
        process is not None
        and process.alive
        and (process.task is Task.FILL or any(isinstance(messages[number], Restore) for number in process.down))
        for process in world.processes
    )


def _is_about_to_park(rules: Rules, world: World, process: Process, state: WorkerMachine) -> bool:
    """It has heard a Stop, and each step that it has, or will have, parks it."""
    if process.task is Task.CONNECT:
        return True
    if process.task is not Task.NONE:
        return False
    return state.phase in (IDLE, FORWARD) or (state.phase in (BACKWARD, READY) and rules.all_entered(world, state))


def is_calm(rules: Rules, world: World, view: CoreView) -> bool:
    """Nothing has failed that is not healed, and nothing will: from here on no recovery may begin.

    `checks.recovering` holds the core to that. So what remains between the processes commutes, and only the order
    in which the controller hears of it is left.
    """
    return (
        not world.budget
        and not view.rollback
        and not view.fencing
        and not world.notices
        and all(link is Link.UP for link in world.links)
        and all(process is None or _is_well(rules, process) for process in world.processes)
        and not any(rules.timers(world))
    )


def _is_well(rules: Rules, process: Process) -> bool:
    if not process.alive or process.killing:
        return False
    messages, state = rules.names.messages, rules.workers.states[process.core]
    if any(isinstance(messages[number], Stop) for number in process.down):
        return False
    if any(isinstance(messages[number], Broken) for number in process.up):
        return False
    return state.parked or not state.must_park or state.phase is COMMITTED or process.task is Task.DROP
