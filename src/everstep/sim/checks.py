"""The properties of the protocol, checked where a world could break them. Each names the rule in its message.

They compare what the core does with what is true in the world, and raise `ModelViolation`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from everstep.core.effects import Action, Effect, End, Kill, Restore, Resume, Send, Settle
from everstep.core.events import Deadline, Ended, Event, Exited, FenceFailed, JobPhase, Stalled
from everstep.errors import ModelViolation
from everstep.sim import quiet
from everstep.sim.world import Kind, Link, Process, Seat
from everstep.types import Rank, WorkerPhase

if TYPE_CHECKING:
    from everstep.core.worker import WorkerMachine
    from everstep.sim.cores import CoreView
    from everstep.sim.rules import Edit, Rules

HOLDING = (
    WorkerPhase.IDLE,
    WorkerPhase.FORWARD,
    WorkerPhase.BACKWARD,
    WorkerPhase.READY,
    WorkerPhase.COMMITTED,
    WorkerPhase.ENDED,
)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ModelViolation(message)


def _state(rules: Rules, edit: Edit, worker: int) -> WorkerMachine:
    return rules.workers.states[edit.get(worker).core]


def _members(rules: Rules, edit: Edit, worker: int) -> list[Seat]:
    seats = edit.groups[_state(rules, edit, worker).generation]
    _require(all(seat is not None for seat in seats), f"worker {worker} uses a group that is not complete")
    return [seat for seat in seats if seat is not None]


# ── the step (docs/protocol.md) ────────────────────────────────────────────────────────────────────────


def ready(rules: Rules, edit: Edit, worker: int) -> None:
    """I2: READY(i) means that every worker is at version i at least. And nobody is READY without gradients."""
    state = _state(rules, edit, worker)
    _require(
        edit.get(worker).gradients == state.version,
        f"worker {worker} is READY({state.version}) without complete gradients",
    )
    for seat in _members(rules, edit, worker):
        process = edit.processes[seat.worker]
        if process is not None and process.alive:
            other = rules.workers.states[process.core]
            _require(
                other.version >= state.version,
                f"I2: worker {worker} is READY({state.version}), worker {seat.worker} at version {other.version}",
            )


def committed(rules: Rules, edit: Edit, worker: int) -> None:
    """I1: COMMITTED(i) means that every worker was READY(i)."""
    version = _state(rules, edit, worker).version
    absent = [seat.worker for seat in _members(rules, edit, worker) if seat.barrier < version]
    _require(not absent, f"I1: worker {worker} is COMMITTED({version}), workers {absent} never were READY")
    _require(edit.get(worker).gradients == version, f"worker {worker} committed without complete gradients")


def finishing(rules: Rules, edit: Edit, worker: int) -> None:
    """A roll forward is a commit that a command tells: I1 holds for it too."""
    committed(rules, edit, worker)


def apply(rules: Rules, edit: Edit, worker: int) -> None:
    process, version = edit.get(worker), _state(rules, edit, worker).version
    not_moved_after_stop(rules, edit, worker)
    _require(process.gradients == version, f"worker {worker} applies update {version} without its gradients")
    _require(process.content == 2 * version, f"worker {worker} applies update {version} twice or out of order")


def memory(rules: Rules, edit: Edit, worker: int) -> None:
    """UPDATED(v) means that the whole block of step v-1 is done, and v is what is in memory."""
    content, version = edit.get(worker).content, _state(rules, edit, worker).version
    _require(content == 2 * version, f"worker {worker} says version {version} but holds {content / 2}")


def not_moved_after_stop(rules: Rules, edit: Edit, worker: int) -> None:
    """I5: once a Stop is answered by a parked main thread, only a newer command moves it."""
    _require(not edit.get(worker).promised, f"I5: worker {worker} moves after it has answered a Stop")


def finished(rules: Rules, edit: Edit, worker: int) -> None:
    content = edit.get(worker).content
    _require(content == 2 * rules.scope.steps, f"worker {worker} leaves the job with version {content / 2}")


# ── the recovery (docs/protocol.md) ────────────────────────────────────────────────────────────────────


def is_old(view: CoreView, event: Event) -> bool:
    """It comes from an old generation, from the dead, or from somebody who was judged."""
    worker = getattr(event, "worker", None)
    gone = worker is not None and worker not in view.workers
    judged = worker in view.fencing and not isinstance(event, Exited | FenceFailed)
    return gone or judged or getattr(event, "generation", view.generation) < view.generation


def old_changes_nothing(rules: Rules, edit: Edit, event: Event, after: int, effects: tuple[Effect, ...]) -> None:
    """I4, and: a message of an old generation has no effect."""
    view = rules.cores.views[edit.core]
    if is_old(view, event):
        _require(after == edit.core and not effects, f"{event} changes generation {view.generation}")


def fenced(rules: Rules, edit: Edit, kill: Kill) -> None:
    """Nobody is killed who did not fail; only a start that failed takes everybody with it."""
    process = edit.get(kill.worker)
    starting = rules.cores.views[edit.core].phase is JobPhase.STARTING
    innocent = process.alive and not process.suspect and not starting
    _require(not innocent, f"worker {kill.worker} is killed although nothing is wrong with it")


def decided(rules: Rules, edit: Edit, before: int, effects: tuple[Effect, ...]) -> None:
    """T is the largest version that a holder has reached or committed to; a rollback needs a lost shard."""
    settles = [(effect.to, effect.command) for effect in effects if isinstance(effect, Send)]
    view = rules.cores.views[edit.core]
    for to, command in settles:
        if not isinstance(command, Settle):
            continue
        if command.action is Action.ROLLBACK:
            lost = _lost_shards(rules, edit, [worker for _, worker in view.seats])
            _require(bool(lost), "the job rolls back although every shard has a live holder")
            continue
        reached = max(_reach(rules, edit, worker) for _, worker in view.seats)
        _require(
            command.target == reached,
            f"the job goes on with step {command.target}, but version {reached} is alive",
        )
        judged = [worker for worker in to if worker in view.fencing]
        _require(not judged, f"workers {judged} are told to settle although they were judged")
    if view.phase is JobPhase.SETTLING and rules.cores.views[before].phase is JobPhase.STOPPING:
        zombies = [worker for worker in view.fencing if _state(rules, edit, worker).rank is not None]
        _require(not zombies, f"the job is decided before workers {zombies} are gone")


def recovering(rules: Rules, edit: Edit, before: int) -> None:
    """A recovery begins only after a failure."""
    generation = rules.cores.views[before].generation
    if rules.cores.views[edit.core].generation > generation:
        calm = quiet.is_calm(rules, edit.before, rules.cores.views[edit.before.core])
        _require(not calm, f"generation {generation} ends although nothing has failed")


def resuming(rules: Rules, edit: Edit, before: int, event: Event, effects: tuple[Effect, ...]) -> None:
    """Who has left the loop at T does not run step T, so nobody does. A commit of T is told before the end."""
    view, after = rules.cores.views[before], rules.cores.views[edit.core]
    if isinstance(event, Ended) and view.phase is JobPhase.RESUMING and event.generation == view.generation:
        told = event.version == view.target or Kind.RESTART in rules.kinds  # which loses what was under way
        _require(told, f"{event} comes, and nobody told that step {view.target} is committed")
    if view.phase is JobPhase.RESUMING or after.phase is not JobPhase.RESUMING:
        return
    for effect in effects:
        if isinstance(effect, Send) and isinstance(effect.command, Resume) and not effect.command.over:
            left = [worker for worker in effect.to if _state(rules, edit, worker).phase is WorkerPhase.ENDED]
            _require(not left, f"all are told to run step {effect.command.target}, but workers {left} left the loop")


def _reach(rules: Rules, edit: Edit, worker: int) -> int:
    state = _state(rules, edit, worker)
    if state.phase not in HOLDING:
        return -1
    return state.version + (state.phase is WorkerPhase.COMMITTED)


def _lost_shards(rules: Rules, edit: Edit, workers: list[int]) -> set[int]:
    every = {rules.scope.layout.coordinate(Rank(rank)).shard for rank in range(rules.scope.ranks)}
    held = set()
    for worker in workers:
        state = _state(rules, edit, worker)
        if state.phase in HOLDING and state.rank is not None:
            held.add(rules.scope.layout.coordinate(state.rank).shard)
    return every - held


def connecting(rules: Rules, edit: Edit, worker: int) -> None:
    """No group is remade before every member is parked with nothing left of the cut step."""
    state = _state(rules, edit, worker)
    _require(edit.get(worker).gradients < 0, f"worker {worker} takes gradients into generation {state.generation}")
    for member in state.table:
        process = edit.processes[member]
        if process is None or not process.alive:
            continue
        other = rules.workers.states[process.core]
        _require(
            other.parked or other.generation == state.generation,
            f"generation {state.generation} is connected while worker {member} still runs",
        )


def donor(rules: Rules, edit: Edit, worker: int, order: Restore) -> None:
    """A donor is a complete holder of the target version and of the same shard."""
    assert order.donor is not None
    source, sink = _state(rules, edit, order.donor), _state(rules, edit, worker)
    assert source.rank is not None
    assert sink.rank is not None
    layout = rules.scope.layout
    same = layout.coordinate(source.rank).shard == layout.coordinate(sink.rank).shard
    _require(same, f"worker {order.donor} gives worker {worker} another shard")
    content = edit.get(order.donor).content
    whole = source.phase in (WorkerPhase.IDLE, WorkerPhase.ENDED) and content == 2 * order.target
    _require(whole, f"donor {order.donor} holds version {content / 2} at {source.phase.name}, not {order.target}")


def resumed(rules: Rules, edit: Edit, worker: int, command: Resume) -> None:
    """All resumed workers have equal version, generation and group tables."""
    state = _state(rules, edit, worker)
    memory(rules, edit, worker)
    _require(state.version == command.target, f"worker {worker} resumes step {command.target} at {state.version}")
    seats = _members(rules, edit, worker)
    table = tuple(seat.worker for seat in seats)
    _require(state.table in ((), table), f"worker {worker} resumes with table {state.table}, others with {table}")
    for seat in seats:
        process = edit.processes[seat.worker]
        if process is not None and process.alive:
            other = rules.workers.states[process.core]
            same = other.generation != state.generation or other.version == command.target
            _require(
                same,
                f"worker {worker} resumes step {command.target}, worker {seat.worker} has {other.version}",
            )


def ended(rules: Rules, edit: Edit, before: int, event: Event, effects: tuple[Effect, ...]) -> None:
    """A job fails only where no live holder or no device is left, or where there is no state to save any more."""
    end = next((effect for effect in effects if isinstance(effect, End)), None)
    if end is None or end.code == 0:
        return
    _require(bool(end.reason), "the job fails without a reason")
    view = rules.cores.views[before]
    if view.phase is JobPhase.ENDING or isinstance(event, Stalled):
        return
    if isinstance(event, Deadline) and view.vacant:
        _require(not _has_room(rules, edit), f"the job fails although a device is free: {end.reason}")
        return
    live = [worker for worker, process in _living(edit)]
    _require(bool(_lost_shards(rules, edit, live)), f"the job fails although it could be healed: {end.reason}")
    _require(not edit.stored, f"the job fails although a good checkpoint is on storage: {end.reason}")


def _has_room(rules: Rules, edit: Edit) -> bool:
    """A node that is there has a device that no process uses."""
    users = Counter(
        process.node
        for process in edit.processes
        if process is not None and process.alive and rules.workers.states[process.core].rank is not None
    )
    return any(link is Link.UP and users[node] < rules.scope.devices for node, link in enumerate(edit.links))


def _living(edit: Edit) -> Iterator[tuple[int, Process]]:
    for worker, process in enumerate(edit.processes):
        if process is None or not process.alive or process.suspect:
            continue
        if edit.links[process.node] in (Link.UP, Link.AWAY):
            yield worker, process
