"""What can happen next in a world, and what it does: one method for each kind of step.

`Rules.steps` yields every enabled step as (label, is it a failure, apply). Applying gives the next world or raises
`ModelViolation`; the properties themselves are in `checks`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from operator import methodcaller
from typing import Any, NamedTuple

from everstep.core.effects import (
    Arm,
    Assign,
    Command,
    Effect,
    Kill,
    Release,
    Reset,
    Restore,
    Resume,
    Role,
    Send,
    Settle,
    Spawn,
    Stop,
)
from everstep.core.events import (
    Absent,
    Cause,
    Checkpoint,
    Deadline,
    Event,
    Exited,
    JobPhase,
    NodeJoined,
    NodeLost,
    Persisted,
    Restarted,
    Sealed,
    Stalled,
    Stopped,
    Verdict,
)
from everstep.core.worker import Do, Move, Out, WorkerMachine
from everstep.errors import ModelViolation
from everstep.sim import checks, quiet
from everstep.sim.cores import Cores, Names, WorkerCores
from everstep.sim.world import STORED, Group, Kind, Link, Process, Saved, Scope, Seat, Task, World
from everstep.types import Generation, NodeId, Rank, Step, WorkerId, WorkerPhase

SPAWNED, STANDBY, BUILDING, HOLLOW, IDLE, FORWARD, BACKWARD, READY, COMMITTED, ENDED = WorkerPhase
OVER = (JobPhase.DONE, JobPhase.FAILED)
BEFORE_LOADING = (JobPhase.STARTING, JobPhase.SETTLING, JobPhase.RESETTING)
GRACED = (JobPhase.RUNNING, JobPhase.RESUMING, JobPhase.RESETTING, JobPhase.RESTORING)

Label = tuple[Any, ...]
Packed = bytes


class Choice(NamedTuple):
    """One step: ``apply(edit, *args)``; ``costs`` is 1 for a failure."""

    label: Label
    costs: int
    apply: Callable[..., None]
    args: tuple[Any, ...] = ()


class Edit:
    """A world being changed."""

    def __init__(self, world: World) -> None:
        self.before = world
        self.core = world.core
        self.timer = world.timer
        self.budget = world.budget
        self.links = list(world.links)
        self.processes = list(world.processes)
        self.notices = world.notices
        self.saved = world.saved
        self.stored = world.stored
        self._groups: dict[int, list[Seat | None]] | None = None

    @property
    def groups(self) -> dict[int, list[Seat | None]]:
        if self._groups is None:
            self._groups = {group.generation: list(group.seats) for group in self.before.groups}
        return self._groups

    def frozen_groups(self, live: set[int]) -> tuple[Group, ...]:
        """The groups of the generations that somebody alive still uses."""
        if self._groups is None:
            before = self.before.groups
            return before if len(before) == 1 else tuple(group for group in before if group.generation in live)
        every = sorted(self._groups.items())
        return tuple(Group(generation, tuple(seats)) for generation, seats in every if generation in live)

    def get(self, worker: int) -> Process:
        process = self.processes[worker]
        if process is None:
            raise ModelViolation(f"worker {worker} is gone, and the controller still counts on it")
        return process

    def put(self, worker: int, **changes: Any) -> Process:
        process = self.get(worker)._replace(**changes)
        self.processes[worker] = process
        return process


class Rules:
    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.cores = Cores(scope.job, scope.machine)
        self.workers = WorkerCores(scope.worker)
        self.names = Names()
        self._parts = (Names(), Names(), Names(), Names(), Names())
        self._processes = Names()
        self.kinds = frozenset(scope.kinds)

    # ── the first world ──────────────────────────────────────────────────────────────────────────────────

    def first(self) -> World:
        core, effects = self.cores.start()
        up = (Link.UP,) * self.scope.nodes
        world = World(core, None, self.scope.failures, up, (), frozenset(), (), stored=self.scope.checkpoint)
        edit = Edit(world)
        self._carry_out(edit, effects)
        for node in range(self.scope.nodes):
            self._feed(edit, self._hello(edit, node))
        if self.scope.checkpoint:
            self._feed(edit, Persisted(STORED))
        return self._done(edit)

    def _hello(self, edit: Edit, node: int) -> NodeJoined:
        alive = tuple(
            WorkerId(worker)
            for worker, process in enumerate(edit.processes)
            if process is not None and process.node == node and process.alive
        )
        return NodeJoined(_node(node), tuple(f"d{index}" for index in range(self.scope.devices)), alive)

    # ── every enabled step ───────────────────────────────────────────────────────────────────────────────

    def steps(self, world: World) -> Iterator[Choice]:
        view = self.cores.views[world.core]
        if view.phase in OVER:
            return
        if self.scope.reduce and (first := tuple(quiet.first_steps(self, world, view))):
            yield from first
            return
        for worker, process in enumerate(world.processes):
            if process is None:
                continue
            if process.alive:
                yield from self.process_steps(world, worker, process)
            if process.up and world.links[process.node] in (Link.UP, Link.LOST):
                yield self.report(worker, process)
        for notice in world.notices:
            yield Choice(("notice", notice), 0, self._notice, (notice,))
        for node, link in enumerate(world.links):
            if link is Link.AWAY:
                yield Choice(("hello", node), 0, self._return, (node,))
        yield from self.timers(world)
        if world.budget:
            yield from self._failures(world)

    def report(self, worker: int, process: Process) -> Choice:
        return Choice(("report", worker, process.up[0]), 0, self._report, (worker,))

    def process_steps(self, world: World, worker: int, process: Process) -> Iterator[Choice]:
        if process.killing:
            yield Choice(("kill", worker), 0, self._die, (worker,))
        if world.links[process.node] is Link.LOST:
            yield Choice(("lease", worker), 0, self._die, (worker,))
        if process.down:
            yield Choice(("command", worker, process.down[0]), 0, self._command, (worker,))
        state = self.workers.states[process.core]
        if not state.parked:
            if process.task is Task.NONE:
                yield from self.main_steps(world, worker, process, state)
            else:
                yield from self._task_steps(world, worker, process, state)

    # ── the main thread ──────────────────────────────────────────────────────────────────────────────────

    def main_steps(self, world: World, worker: int, process: Process, state: WorkerMachine) -> Iterator[Choice]:
        phase = state.phase
        if phase is SPAWNED:
            yield self._call(worker, "register")
        elif phase is BUILDING:
            yield Choice(("protect", worker), 0, self._run, (worker, "protect", self._protect))
        elif phase is IDLE:
            last = state.over or state.version >= self.scope.steps
            yield self._move(worker, Move.LEAVE if last else Move.BEGIN)
        elif phase is FORWARD:
            yield self._move(worker, Move.BACKWARD)
            if state.must_park:
                yield self._call(worker, "safe_point")
        elif phase is BACKWARD and state.tainted:  # the user's code has swallowed the error and goes on
            yield self._move(worker, Move.READY)
        elif phase is BACKWARD:
            yield from self._collective_steps(world, worker, state, Move.READY)
        elif phase is READY:
            yield from self._collective_steps(world, worker, state, Move.PASS)
        elif phase is COMMITTED and process.content == 2 * state.version:
            yield Choice(("apply", worker), 0, self._apply, (worker,))
        elif phase is COMMITTED:
            yield self._move(worker, Move.UPDATE)
        elif phase is ENDED:
            yield Choice(("exit", worker), 0, self._exit, (worker,))

    def _call(self, worker: int, name: str) -> Choice:
        """A method of the worker's machine, found by its name: a scope may have a machine of its own."""
        return Choice((name, worker), 0, self._run, (worker, name, methodcaller(name)))

    def _move(self, worker: int, move: Move) -> Choice:
        return Choice(("move", worker, move), 0, self._moved, (worker, move))

    def _protect(self, machine: WorkerMachine) -> list[Out]:
        assert machine.rank is not None
        return machine.protect(self.scope.layout.coordinate(machine.rank), "layout")

    def _collective_steps(self, world: World, worker: int, state: WorkerMachine, move: Move) -> Iterator[Choice]:
        """The gradients' all-reduce before READY, the barrier before PASS."""
        seats = _seats(world, state.generation)
        if self.all_entered(world, state):
            yield self._move(worker, move)
        if self._is_cut(world, state.generation, seats):
            yield self._call(worker, "broken")
        elif world.budget and Kind.BREAK in self.kinds:
            yield self._call(worker, "broken")._replace(costs=1)

    def all_entered(self, world: World, state: WorkerMachine) -> bool:
        """The collective in which this worker waits can succeed."""
        move = Move.PASS if state.phase is READY else Move.READY
        seats = _seats(world, state.generation)
        return all(seat is not None and _entered(seat, move) >= state.version for seat in seats)

    def _is_cut(self, world: World, generation: int, seats: tuple[Seat | None, ...]) -> bool:
        """A member is dead, or has heard a Stop, or is in another generation: its sockets are closed."""
        for seat in seats:
            if seat is None:
                continue
            process = world.processes[seat.worker]
            if process is None or not process.alive:
                return True
            state = self.workers.states[process.core]
            if state.stopping or state.generation != generation:
                return True
        return False

    def _task_steps(self, world: World, worker: int, process: Process, state: WorkerMachine) -> Iterator[Choice]:
        if process.task is Task.DROP:
            yield Choice(("dropped", worker), 0, self._dropped, (worker,))
            return
        if process.task is Task.SEAL:
            yield Choice(("seal", worker), 0, self._seal, (worker,))
            return
        if process.task is Task.CONNECT:
            seats = _seats(world, state.generation)
            if all(seat is not None for seat in seats):
                yield self._call(worker, "connected")
            hopeless = self._is_cut(world, state.generation, seats)
        else:
            order: Restore = self.names.messages[process.filling]
            donor = None if order.donor is None else world.processes[order.donor]
            if order.checkpoint is not None:
                hopeless = self._is_cut(world, state.generation, _seats(world, state.generation))
                if self._is_whole(world, order.checkpoint):
                    yield Choice(("filled", worker), 0, self._filled, (worker, order))
                elif not hopeless:
                    yield Choice(("unusable", worker), 0, self._unusable, (worker, order.checkpoint))
            else:
                if donor is not None and donor.alive and donor.serving == order.generation:
                    yield Choice(("filled", worker), 0, self._filled, (worker, order))
                hopeless = donor is None or not donor.alive
        if state.stopping or hopeless:
            yield self._call(worker, "broken")

    def _moved(self, edit: Edit, worker: int, move: Move) -> None:
        before = self.workers.states[edit.get(worker).core]
        if move is Move.READY and not before.tainted:
            edit.put(worker, gradients=before.version)
        self._run(edit, worker, move, lambda machine: machine.move(move))
        process = edit.get(worker)
        after = self.workers.states[process.core]
        if after.parked and move is not Move.UPDATE and move is not Move.LEAVE:
            return
        if move in (Move.BACKWARD, Move.READY):
            self._enter(edit, after, move)
        if move is Move.READY:
            checks.ready(self, edit, worker)
        if after.phase is COMMITTED:
            checks.committed(self, edit, worker)
        if move is Move.UPDATE:
            edit.put(worker, content=process.content + 1, gradients=-1)
        if after.phase is IDLE:
            checks.memory(self, edit, worker)
        if move is Move.UPDATE and self.scope.seal and not after.parked:
            self._begin_seal(edit, worker, after)

    def _is_whole(self, world: World, checkpoint: Checkpoint) -> bool:
        """Every share of it can be read somewhere."""
        if checkpoint == STORED and world.stored:
            return True
        there = {
            saved.rank
            for saved in world.saved
            if saved.checkpoint == checkpoint and world.links[saved.node] in (Link.UP, Link.AWAY)
        }
        return len(there) == self.scope.ranks

    def _begin_seal(self, edit: Edit, worker: int, state: WorkerMachine) -> None:
        """What the slot held is gone from here on."""
        seal = self._sealed(edit, worker, state)
        edit.saved = frozenset(old for old in edit.saved if old[:3] != seal[:3])
        edit.put(worker, task=Task.SEAL)

    def _seal(self, edit: Edit, worker: int) -> None:
        process = edit.put(worker, task=Task.NONE)
        saved = self._sealed(edit, worker, self.workers.states[process.core])
        edit.saved |= {saved}
        if edit.links[process.node] is not Link.AWAY:
            edit.put(worker, up=(*process.up, self.names.number(_told(saved))))

    def _sealed(self, edit: Edit, worker: int, state: WorkerMachine) -> Saved:
        assert state.rank is not None
        checkpoint = Checkpoint(state.version, state.generation)
        return Saved(state.rank, edit.get(worker).node, state.version % 2, checkpoint)

    def _unusable(self, edit: Edit, worker: int, checkpoint: Checkpoint) -> None:
        self._run(edit, worker, ("unusable", checkpoint), lambda machine: machine.unusable(checkpoint, "damaged"))

    def _enter(self, edit: Edit, state: WorkerMachine, move: Move) -> None:
        seats = edit.groups[state.generation]
        assert state.rank is not None
        seat = seats[state.rank]
        assert seat is not None
        key = "sync" if move is Move.BACKWARD else "barrier"
        seats[state.rank] = seat._replace(**{key: int(state.version)})

    def _apply(self, edit: Edit, worker: int) -> None:
        checks.apply(self, edit, worker)
        edit.put(worker, content=edit.get(worker).content + 1)

    def _dropped(self, edit: Edit, worker: int) -> None:
        edit.put(worker, gradients=-1, task=Task.NONE)
        self._run(edit, worker, "dropped", methodcaller("dropped"))

    def _filled(self, edit: Edit, worker: int, order: Restore) -> None:
        if order.donor is None:
            assert order.checkpoint is not None
            content = 2 * order.checkpoint.step
        else:
            checks.donor(self, edit, worker, order)
            content = edit.get(order.donor).content
        version = Step(content // 2)
        edit.put(worker, content=content)
        self._run(edit, worker, ("filled", version), lambda machine: machine.filled(version))

    def _exit(self, edit: Edit, worker: int) -> None:
        checks.finished(self, edit, worker)
        self._die(edit, worker, code=0)

    def _run(self, edit: Edit, worker: int, key: Any, call: Callable[[WorkerMachine], list[Out]]) -> None:
        """Let the worker's machine take something in, and carry out what it says."""
        process = edit.get(worker)
        if not isinstance(key, str) or key in ("connected", "broken"):
            checks.not_moved_after_stop(self, edit, worker)
        core, out, error = self.workers.step(process.core, key, call)
        if error is not None:
            raise ModelViolation(f"worker {worker}: {error!r}") from error
        task = process.task if key == "safe_point" else Task.NONE
        process = edit.put(worker, core=core, task=task)
        for item in out:
            self._out(edit, worker, item)

    # ── the control thread ───────────────────────────────────────────────────────────────────────────────

    def _command(self, edit: Edit, worker: int) -> None:
        process = edit.get(worker)
        number, *rest = process.down
        edit.put(worker, down=tuple(rest))
        self._obey(edit, worker, number)

    def _echo(self, edit: Edit, worker: int) -> None:
        self._obey(edit, worker, edit.get(worker).echo)

    def _obey(self, edit: Edit, worker: int, number: int) -> None:
        process = edit.get(worker)
        command: Command = self.names.messages[number]
        is_old = command.generation < self.workers.states[process.core].stop
        core, out, error = self.workers.step(process.core, command, lambda machine: machine.command(command))
        if error is not None:
            raise ModelViolation(f"worker {worker}: {error!r}") from error
        process = edit.put(worker, core=core)
        if isinstance(command, Stop):
            process = edit.put(worker, serving=0)
        elif Kind.ECHO in self.kinds:
            process = edit.put(worker, echo=number)
        if isinstance(command, Settle | Reset | Restore | Resume | Release) and not is_old:
            process = edit.put(worker, promised=False)
        if Do.GO in out and isinstance(command, Assign) and command.role is not Role.JOINER:
            self._adopt(edit, worker, command.generation)
        for item in out:
            self._out(edit, worker, item)
        if Do.GO in out and isinstance(command, Resume):
            checks.resumed(self, edit, worker, command)
        if Do.PROCEED in out:
            checks.finishing(self, edit, worker)

    def _adopt(self, edit: Edit, worker: int, generation: int) -> None:
        state = self.workers.states[edit.get(worker).core]
        assert state.rank is not None
        seats = edit.groups.setdefault(generation, [None] * self.scope.ranks)
        seats[state.rank] = Seat(worker)

    def _out(self, edit: Edit, worker: int, item: Out) -> None:
        state = self.workers.states[edit.get(worker).core]
        if not isinstance(item, Do):
            process = edit.get(worker)
            if isinstance(item, Stopped) and item.position.phase is not COMMITTED:
                process = edit.put(worker, promised=True)
            if edit.links[process.node] is not Link.AWAY:
                edit.put(worker, up=(*process.up, self.names.number(item)))
        elif item is Do.DROP:
            edit.put(worker, task=Task.DROP)
        elif item is Do.CONNECT:
            checks.connecting(self, edit, worker)
            edit.put(worker, task=Task.CONNECT)
            self._adopt(edit, worker, state.generation)
        elif item is Do.FILL:
            assert state.order is not None
            edit.put(worker, task=Task.FILL, filling=self.names.number(state.order))
        elif item is Do.SERVE:
            edit.put(worker, serving=state.generation)

    # ── agents and the controller ────────────────────────────────────────────────────────────────────────

    def _report(self, edit: Edit, worker: int) -> None:
        process = edit.get(worker)
        edit.put(worker, up=process.up[1:])
        self._feed(edit, self.names.messages[process.up[0]])

    def _notice(self, edit: Edit, notice: int) -> None:
        edit.notices -= {notice}
        self._feed(edit, self.names.messages[notice])

    def _verdict(self, edit: Edit, worker: int) -> None:
        edit.put(worker, suspect=True)
        self._feed(edit, Verdict(WorkerId(worker), Cause.HANG))

    def _return(self, edit: Edit, node: int) -> None:
        """An agent says hello to the restarted controller, and repeats the newest report of each worker."""
        edit.links[node] = Link.UP
        self._feed(edit, self._hello(edit, node))
        for worker, process in enumerate(edit.processes):
            if process is not None and process.node == node and process.alive:
                answer = self.workers.states[process.core].answer
                edit.put(worker, up=() if answer is None else (self.names.number(answer),))
        for saved in sorted(edit.saved):
            if saved.node == node:
                self._feed(edit, _told(saved))

    def _die(self, edit: Edit, worker: int, code: int = -9) -> None:
        process = edit.put(worker, alive=False, down=(), killing=False)
        if edit.links[process.node] is Link.UP:
            edit.notices |= {self.names.number(Exited(WorkerId(worker), code))}

    def _feed(self, edit: Edit, event: Event) -> None:
        core, effects, error = self.cores.step(edit.core, event)
        if error is not None:
            raise ModelViolation(f"the controller: {error!r}") from error
        checks.old_changes_nothing(self, edit, event, core, effects)
        before, edit.core = edit.core, core
        self._carry_out(edit, effects)
        checks.decided(self, edit, before, effects)
        checks.ended(self, edit, before, event, effects)
        checks.recovering(self, edit, before)
        checks.resuming(self, edit, before, event, effects)

    def _carry_out(self, edit: Edit, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                for worker in effect.to:
                    self._deliver(edit, worker, effect.command)
            elif isinstance(effect, Spawn):
                self._spawn(edit, effect)
            elif isinstance(effect, Kill):
                checks.fenced(self, edit, effect)
                if edit.links[_index(effect.node)] is Link.UP and edit.get(effect.worker).alive:
                    edit.put(effect.worker, killing=True)
            elif isinstance(effect, Arm):
                edit.timer = (effect.generation, effect.phase)

    def _spawn(self, edit: Edit, effect: Spawn) -> None:
        """An order that comes again hears of a process that has ended."""
        if effect.worker == len(edit.processes):
            edit.processes.append(Process(_index(effect.node), self.workers.new(effect.worker)))
            return
        process = edit.processes[effect.worker]
        if process is None or not process.alive:
            edit.notices |= {self.names.number(Exited(effect.worker, -9))}

    def _deliver(self, edit: Edit, worker: int, command: Command) -> None:
        process = edit.processes[worker]
        if process is None or not process.alive or edit.links[process.node] is not Link.UP:
            return
        edit.put(worker, down=(*process.down, self.names.number(command)))

    # ── timers and failures ──────────────────────────────────────────────────────────────────────────────

    def timers(self, world: World) -> Iterator[Choice]:
        """A timer comes when it has a reason; without one that is a failure of its own."""
        view = self.cores.views[world.core]
        if world.timer is not None:
            generation, phase = world.timer
            due = phase is JobPhase.RUNNING or any(_is_dead(world, worker) for worker in view.awaiting)
            due = due or (view.vacant and not view.awaiting)
            if due or (world.budget and Kind.TIMER in self.kinds):
                event = Deadline(Generation(generation), phase)
                yield Choice(("timer", phase.name), 0 if due else 1, self._expire, (event,))
        if world.budget and Kind.TIMER in self.kinds and Link.AWAY in world.links:
            yield Choice(("absent",), 1, self._absent)

    def _expire(self, edit: Edit, event: Deadline) -> None:
        edit.timer = None
        view = self.cores.views[edit.core]
        if view.phase in (JobPhase.STOPPING, JobPhase.SETTLING):
            for worker in view.awaiting:
                edit.put(worker, suspect=True)
        self._feed(edit, event)

    def _absent(self, edit: Edit) -> None:
        for node, link in enumerate(edit.links):
            if link is Link.AWAY:
                self._lose_node(edit, node)
        self._feed(edit, Absent())

    def _lose_node(self, edit: Edit, node: int) -> None:
        edit.links[node] = Link.LOST
        for worker, process in enumerate(edit.processes):
            if process is not None and process.node == node:
                edit.put(worker, suspect=True)

    def _failures(self, world: World) -> Iterator[Choice]:
        for worker, process in enumerate(world.processes):
            if process is None or not process.alive or process.suspect:
                continue
            if Kind.CRASH in self.kinds:
                yield Choice(("CRASH", worker), 1, self._die, (worker,))
            if Kind.SUSPECT in self.kinds and world.links[process.node] is Link.UP:
                yield Choice(("SUSPECT", worker), 1, self._verdict, (worker,))
            if process.echo >= 0:
                yield Choice(("ECHO", worker, process.echo), 1, self._echo, (worker,))
        if Kind.STALL in self.kinds:
            stalled = Stalled(self.cores.views[world.core].generation)
            yield Choice(("STALL",), 1, self._feed, (stalled,))
        for node, link in enumerate(world.links):
            if link is Link.UP and self.scope.nodes > 1:
                if Kind.NODE in self.kinds:
                    yield Choice(("NODE", node), 1, self._node_dies, (node,))
                if Kind.PARTITION in self.kinds:
                    yield Choice(("PARTITION", node), 1, self._partition, (node,))
        if Kind.RESTART in self.kinds:
            yield Choice(("RESTART",), 1, self._restart)
        view = self.cores.views[world.core]
        if Kind.DAMAGE in self.kinds and view.rollback and view.phase in BEFORE_LOADING:
            if world.stored:
                yield Choice(("DAMAGE", "storage"), 1, self._damage, (None,))
            for saved in world.saved:
                yield Choice(("DAMAGE", saved.rank, saved.slot), 1, self._damage, (saved,))

    def _damage(self, edit: Edit, saved: Saved | None) -> None:
        """Nobody knows before it is loaded."""
        if saved is None:
            edit.stored = False
        else:
            edit.saved -= {saved}

    def _node_dies(self, edit: Edit, node: int) -> None:
        edit.links[node] = Link.DEAD
        edit.saved = frozenset(saved for saved in edit.saved if saved.node != node)
        for worker, process in enumerate(edit.processes):
            if process is not None and process.node == node:
                edit.put(worker, alive=False, suspect=True, down=(), up=(), killing=False)
        edit.notices |= {self.names.number(NodeLost(_node(node)))}

    def _partition(self, edit: Edit, node: int) -> None:
        """Commands under way are lost, reports under way still come; so do those that are sent from now on."""
        self._lose_node(edit, node)
        for worker, process in enumerate(edit.processes):
            if process is not None and process.node == node:
                edit.put(worker, down=(), killing=False)
        self._feed(edit, NodeLost(_node(node)))

    def _restart(self, edit: Edit) -> None:
        """Everything under way is lost. Exits that were not told yet show in the agents' hellos."""
        edit.timer = None
        edit.notices = frozenset(n for n in edit.notices if isinstance(self.names.messages[n], NodeLost))
        edit.links = [Link.AWAY if link is Link.UP else link for link in edit.links]
        for worker, process in enumerate(edit.processes):
            if process is not None:
                edit.put(worker, up=(), down=(), killing=False)
        self._feed(edit, Restarted())

    # ── the next world ───────────────────────────────────────────────────────────────────────────────────

    def apply(self, world: World, choice: Choice) -> World:
        edit = Edit(world)
        edit.budget -= choice.costs
        choice.apply(edit, *choice.args)
        return self._done(edit)

    def _done(self, edit: Edit) -> World:
        """Forget what nothing can see any more, so that worlds that behave alike are equal."""
        if self.cores.views[edit.core].phase in OVER:
            return World(edit.core, None, edit.budget, (), (), frozenset(), (), stored=edit.stored)
        view = self.cores.views[edit.core]
        if edit.timer is not None:
            generation, phase = edit.timer
            grace = phase is JobPhase.RUNNING and view.phase in GRACED
            if generation != view.generation or not (grace or phase is view.phase):
                edit.timer = None  # it would change nothing
        live = {int(view.generation)}
        for worker, process in enumerate(edit.processes):
            if process is None:
                continue
            if process.alive:
                live.add(self.workers.states[process.core].generation)
                if process.echo >= 0 and not edit.budget:
                    edit.put(worker, echo=-1)
            elif not process.up and worker not in view.workers:
                edit.processes[worker] = None
            else:
                core = self.workers.remains(process.core)
                dead = Process(process.node, core, alive=False, up=process.up)
                edit.processes[worker] = dead
        return World(
            edit.core,
            edit.timer,
            edit.budget,
            tuple(edit.links),
            tuple(edit.processes),
            edit.notices,
            edit.frozen_groups(live),
            edit.saved,
            edit.stored,
        )

    # ── worlds as a few bytes, and steps as text ─────────────────────────────────────────────────────────

    def pack(self, world: World) -> Packed:
        timers, links, notices, groups, saved = self._parts
        number = self._processes.number
        numbers = (
            world.core,
            world.budget,
            timers.number(world.timer),
            links.number(world.links),
            notices.number(world.notices),
            groups.number(world.groups),
            saved.number((world.saved, world.stored)),
            *[number(process) for process in world.processes],
        )
        return array("I", numbers).tobytes()

    def unpack(self, packed: Packed) -> World:
        core, budget, timer, link, notice, group, save, *rest = array("I", packed)
        timers, links, notices, groups, saved = self._parts
        messages = self._processes.messages
        return World(
            core,
            timers.messages[timer],
            budget,
            links.messages[link],
            tuple([messages[number] for number in rest]),
            notices.messages[notice],
            groups.messages[group],
            *saved.messages[save],
        )

    def describe(self, label: Label) -> str:
        kind, *args = label
        if kind in ("report", "command", "ECHO"):
            return f"worker {args[0]}: the {kind} {self.names.messages[args[1]]} is delivered"
        if kind == "notice":
            return f"an agent tells {self.names.messages[args[0]]}"
        if kind == "move":
            return f"worker {args[0]}: {args[1].value}"
        return " ".join(map(str, label))


def _node(index: int) -> NodeId:
    return NodeId(f"n{index}")


def _index(node: NodeId) -> int:
    return int(node[1:])


def _told(saved: Saved) -> Sealed:
    return Sealed(Rank(saved.rank), _node(saved.node), saved.checkpoint, saved.slot)


def _seats(world: World, generation: int) -> tuple[Seat | None, ...]:
    return next(group.seats for group in world.groups if group.generation == generation)


def _entered(seat: Seat, move: Move) -> int:
    return seat.sync if move is Move.READY else seat.barrier


def _is_dead(world: World, worker: int) -> bool:
    process = world.processes[worker]
    return process is None or not process.alive
