"""The controller's side of the protocol: ``Machine.handle(event) -> effects``.

Two rules make it readable. One: `TABLE` at the end says which event means something in which phase, what is
done about it and which phases may follow. What is not in it is an InvalidTransition; what comes from the dead or
from an old generation is dropped before it is looked up. Two: in every phase ``awaiting`` names the workers that
still owe an answer; when nobody does, `_advance` goes on to the next phase.

    STARTING    workers run the script up to protect(); a failure restarts all of them
    RUNNING     training; the machine waits for a failure or for the end
    STOPPING    fence the dead, Stop the survivors, collect their positions; then decide
    SETTLING    Clean: survivors finish or drop their step, newcomers come to protect()
    RESETTING   Reset: every process group gets a new inner group
    RESTORING   Restoration: newcomers receive their state (Rollback: all load one checkpoint)
    RESUMING    everybody runs step T; when it commits the recovery has succeeded
    ENDING      all have completed the last step and are released; their exits are awaited

A further failure in SETTLING … RESUMING starts a new generation in STOPPING, from those that hold state. In
STOPPING nothing has been decided yet, so one more failure only shortens the list of survivors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from everstep.core import planner
from everstep.core.effects import (
    Action,
    ArmReturn,
    Assign,
    Command,
    Donate,
    Effect,
    End,
    Kill,
    Release,
    Reset,
    Restore,
    Resume,
    Role,
    Settle,
    Spawn,
    Stop,
)
from everstep.core.events import (
    Absent,
    Broken,
    Cause,
    Committed,
    Connected,
    Deadline,
    DeviceSick,
    Ended,
    Event,
    Exited,
    FenceFailed,
    Interrupted,
    JobPhase,
    NodeJoined,
    NodeLost,
    Persisted,
    Position,
    Protected,
    Registered,
    Restarted,
    Restored,
    Sealed,
    Settled,
    Stalled,
    Stopped,
    Unusable,
    Verdict,
)
from everstep.core.membership import Worker
from everstep.core.state import Fence, JobState, Loss
from everstep.errors import InvalidTransition
from everstep.types import Generation, Rank, Step, WorkerId, WorkerPhase

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130

STARTING, RUNNING, STOPPING, SETTLING, RESETTING, RESTORING, RESUMING, ENDING, DONE, FAILED = JobPhase
RECOVERING = (STOPPING, SETTLING, RESETTING, RESTORING, RESUMING)
ACTIVE = (STARTING, RUNNING, *RECOVERING, ENDING)
TRAINING = (RUNNING, RESUMING)
ANSWERING = (STOPPING, SETTLING)
"""Survivors owe an answer that each of them can give alone."""
HOPELESS = (Cause.RULE, Cause.RESOURCE)
"""A replacement would fail again, or hide that something is wrong."""
MAX_DUDS = 3
"""So many processes in a row that did not come to init(), and no more standbys are started until one does."""

LIMITS = {
    STARTING: "start_s",
    STOPPING: "stop_s",
    SETTLING: "settle_s",
    RESETTING: "reset_s",
    RESTORING: "restore_s",
}
"""The deadline of each phase, by its name in the configuration. In the others the detector watches every step."""


class Machine(JobState):
    """One job. Deterministic: the same events in the same order give the same effects, so a journal replays."""

    __slots__ = ()

    def start(self) -> list[Effect]:
        """The effects that a new job begins with."""
        self.out = []
        self._enter(STARTING)
        return self.out

    def handle(self, event: Event) -> list[Effect]:
        """Take one event in; return what the host has to do, in this order."""
        self.recent.append(event)
        self.losses = []
        if self.phase in (DONE, FAILED) or self._stale(event):
            return []
        row = TABLE.get((type(event), self.phase))
        if row is None:
            raise self._invalid(event)
        before, self.out = self.phase, []
        row.action(self, event)
        assert self.phase is before or self.phase in row.to, (before, event, self.phase)
        return self.out

    def _stale(self, event: Event) -> bool:
        """I4 and I5: what the dead say, and what an old generation says, changes nothing."""
        worker = getattr(event, "worker", None)
        if worker is not None and worker not in self.members.workers:
            return True
        if worker in self.fencing and not isinstance(event, Exited | FenceFailed):
            return True
        generation = getattr(event, "generation", self.generation)
        if generation > self.generation:
            raise self._invalid(event)
        return bool(generation < self.generation)

    def _invalid(self, event: Event) -> InvalidTransition:
        state = f"{self.phase.name} of generation {self.generation}"
        return InvalidTransition(state, event, tuple(self.recent)[:-1])

    # ── nodes and processes come ─────────────────────────────────────────────────────────────────────────

    def _on_node_joined(self, event: NodeJoined) -> None:
        """A new agent, or one that is back: compare what should run there with what does."""
        members, present = self.members, set(event.workers)
        if event.node not in members.nodes:
            members.join(event.node, event.devices)
            if len(members.nodes) < self.config.nodes and not self.gathered:
                self.note(f"{event.node} has come: {len(members.nodes)} of {self.config.nodes} nodes")
        members.mark(event.node, present=True)
        known = members.by_node[event.node]
        for stranger in sorted(present - known):
            self.out.append(Kill(event.node, stranger))
        for worker in sorted(known & present):
            if worker in self.fencing:
                self.kill(worker)
            elif (command := self._outstanding(worker)) is not None:
                self.send([worker], command)
        missing = sorted(known - present)
        new = [worker for worker in missing if members.workers[worker].stage is WorkerPhase.SPAWNED]
        for worker in new:
            self._spawn(worker)  # the order may not have arrived; if it has, the agent tells how the worker ended
        lost = [worker for worker in missing if worker not in new]
        self._fail(lost, Cause.EXIT, "gone while the controller was away", gone=True)

    def _on_registered(self, event: Registered) -> None:
        record = self.members.workers[event.worker]
        if record.stage is not WorkerPhase.SPAWNED:
            return
        self.stillborn, self.duds = ("", 0), 0
        if record.rank is None:
            self.members.set_stage(event.worker, WorkerPhase.STANDBY)
            self._advance()
        else:
            self.members.set_stage(event.worker, WorkerPhase.BUILDING)
            self.send([event.worker], self._assignment(record))
            self._refill()

    def _on_protected(self, event: Protected) -> None:
        record = self.members.workers[event.worker]
        if record.stage is not WorkerPhase.BUILDING:
            return
        assert record.rank is not None
        expected = self.members.coordinates.setdefault(record.rank, event.coordinate)
        layout = self.layouts.setdefault(event.coordinate.shard, event.layout)
        if (expected, layout) != (event.coordinate, event.layout):
            evidence = f"{event.coordinate} with layout {event.layout!r}, not {expected} with {layout!r}"
            self._fail([event.worker], Cause.LAYOUT, evidence)
            return
        founder = self.phase is STARTING and self.source is None
        self.members.set_stage(event.worker, WorkerPhase.IDLE if founder else WorkerPhase.HOLLOW)
        self.awaiting.discard(event.worker)
        self._advance()

    def _assignment(self, worker: Worker) -> Assign:
        assert worker.rank is not None
        role = Role.JOINER
        if self.phase is STARTING:
            role = Role.FOUNDER if self.source is None else Role.LOADER
        return Assign(worker.rank, self.config.ranks, self.generation, role, worker.device)

    def _fill_vacancies(self) -> None:
        """Give vacant ranks to standbys or new processes. A device is free when its last user is gone."""
        self.gathered = self.gathered or len(self.members.nodes) >= self.config.nodes
        if self._fence_pending() or not self.gathered:
            return
        if not self.members.open_nodes:
            return
        vacant = [rank for rank in self.members.vacancies(self.config.ranks) if rank not in self.finished]
        for placement in planner.place(self.members, vacant, self.former):
            self.note(placement.reason)
            worker = self.members.add(placement.node).id if placement.standby is None else placement.standby
            record = self.members.seat(worker, placement.rank)
            self.former.pop(placement.rank, None)
            if placement.standby is None:
                self._spawn(worker)
            else:
                self.send([worker], self._assignment(record))
            if self.phase in (STARTING, SETTLING):
                self.awaiting.add(worker)

    def _refill(self) -> None:
        """Standbys start once a rank has called init(): a script without it must not run twice."""
        while len(self.members.pool) < self.config.standbys and self.duds < MAX_DUDS:
            node = planner.place_standby(self.members)
            if node is None:
                return
            self._spawn(self.members.add(node).id)

    def _spawn(self, worker: WorkerId) -> None:
        record = self.members.workers[worker]
        self.out.append(Spawn(record.node, worker, record.rank, record.device))

    # ── failures ─────────────────────────────────────────────────────────────────────────────────────────

    def _on_verdict(self, event: Verdict) -> None:
        if event.cause in (Cause.DEVICE, Cause.FROZEN):
            self.members.mark(self.members.workers[event.worker].node, trouble=True)
        usable = event.cause is not Cause.DEVICE
        if event.cause is Cause.LOST and self.phase in (*TRAINING, *RECOVERING):
            self.stranded = True
        self._fail([event.worker], event.cause, event.evidence, event.place, usable=usable)
        if event.cause in HOPELESS:
            self._end(EXIT_FAILED, self.last_failure)

    def _on_device_sick(self, event: DeviceSick) -> None:
        if event.node in self.members.nodes:
            user = self.members.take_out(event.node, event.device)
            self.members.mark(event.node, trouble=True)
            if user is not None:
                if user in self.fencing:
                    self.fencing[user] = Fence(usable=False)
                else:
                    self._fail([user], Cause.DEVICE, f"{event.device}: {event.evidence}", usable=False)

    def _on_exited(self, event: Exited) -> None:
        if event.worker in self.fencing:
            fence = self.fencing.pop(event.worker)
            self.members.remove(event.worker, device_usable=fence.usable)
            if event.moved and fence.forgivable:
                self.failures -= 1
                self.attempts = max(0, self.attempts - 1)
                self.note(f"worker {event.worker} had moved on before it was fenced: a false alarm")
            self._advance()
        elif event.code == 0 and self.phase in (STARTING, ENDING):
            self._finish(event.worker)
        else:
            evidence = event.evidence or f"exit code {event.code}"
            self._fail([event.worker], Cause.EXIT, evidence, event.place, gone=True)

    def _finish(self, worker: WorkerId) -> None:
        rank = self.members.workers[worker].rank
        self._lose(worker, gone=True)
        if rank is not None:
            self.finished.add(rank)
            if len(self.finished) == self.config.ranks:
                self._end(EXIT_DONE, "every rank has finished")
            else:
                self._advance()

    def _on_fence_failed(self, event: FenceFailed) -> None:
        if event.worker in self.fencing:
            del self.fencing[event.worker]
            self.members.mark(self.members.workers[event.worker].node, trouble=True)
            self.members.remove(event.worker, device_usable=False)
            self._advance()

    def _on_node_lost(self, event: NodeLost) -> None:
        if event.node in self.members.nodes:
            self.checkpoints.forget_node(event.node)
            workers = sorted(self.members.leave(event.node))
            evidence = f"{event.node}: {event.evidence or 'connection lost'}"
            self._fail(workers, Cause.NODE, evidence, gone=True)

    def _on_broken(self, event: Broken) -> None:
        if not self.graced:
            self.graced = True
            self.note(f"{self.name(event.worker)}: a collective failed ({event.evidence}); waiting for a verdict")
            self.arm(RUNNING, self.config.grace_s)

    def _on_stalled(self, event: Stalled) -> None:
        self.last_failure = f"{Cause.STALLED.value}: {event.evidence}"
        self.losses.append(Loss(Cause.STALLED, event.evidence))
        if self.stalled:
            self._end(EXIT_FAILED, f"stalled again after a redo; {self.last_failure}")
            return
        self.stalled = True
        self._recover()

    def _on_grace_over(self, event: Deadline) -> None:
        if self.graced:
            self.last_failure = Cause.COLLECTIVE.value
            self.losses.append(Loss(Cause.COLLECTIVE, Cause.COLLECTIVE.value))
            self._recover()

    def _on_shared_deadline(self, event: Deadline) -> None:
        """All wait for all here, so nobody is to blame yet: who does not answer the next Stop is."""
        if self.graced:
            self._on_grace_over(event)
        elif event.phase is self.phase:
            self.last_failure = f"{self.phase.name} of generation {self.generation} took too long"
            self.losses.append(Loss(Cause.OVERDUE, self.last_failure))
            self._recover()

    def _on_deadline(self, event: Deadline) -> None:
        if event.phase is not self.phase:
            return
        overdue = sorted(self.awaiting) if self.phase is not STARTING else []
        vacant = [rank for rank in self.members.vacancies(self.config.ranks) if rank not in self.finished]
        if overdue:
            evidence = f"owed an answer in {self.phase.name} of generation {self.generation}"
            self._fail(overdue, Cause.OVERDUE, evidence)
        elif self._fence_pending():
            self._arm_limit()  # the time for the next step counts from when a device can come free
        elif vacant:
            self._give_up_waiting(vacant)

    def _give_up_waiting(self, vacant: list[Rank]) -> None:
        """Before the first failure it is no failure of the job: too little was there for it."""
        came, wanted = len(self.members.nodes), self.config.nodes
        if self.failures:
            self._end(EXIT_FAILED, f"no free device for ranks {vacant} in time; {self.last_failure}")
        elif not self.gathered:
            what = f"{came} of {wanted} nodes came within {self.config.start_s:g} s"
            self._end(EXIT_USAGE, f"{what}: start an agent on each node, or ask for fewer nodes")
        else:
            self._end(EXIT_USAGE, f"no free device for ranks {vacant} in time: add devices, or ask for fewer ranks")

    def _fail(
        self,
        workers: list[WorkerId],
        cause: Cause,
        evidence: str,
        place: str = "",
        *,
        gone: bool = False,
        usable: bool = True,
    ) -> None:
        """Take workers out at once, count it as one failure, and do what the phase needs."""
        records = [self.members.workers[worker] for worker in workers]
        ranked = any(self.members.is_seated(record) for record in records)
        if workers:
            self.last_failure = f"{', '.join(map(self.name, workers))}: {cause.value} ({evidence})"
            self.note(self.last_failure)
        self.losses += [
            Loss(cause, evidence, record.id, record.rank, record.node, record.stage)
            for record in records
            if self.members.is_seated(record)
        ]
        for worker in workers:
            self._lose(worker, gone=gone, usable=usable, forgivable=ranked and cause in (Cause.HANG, Cause.FROZEN))
        if place and any(record.stage is WorkerPhase.SPAWNED for record in records):
            before, count = self.stillborn
            self.stillborn = (place, count + 1 if place == before else 1)
        self.duds += sum(record.stage is WorkerPhase.SPAWNED for record in records)
        if ranked:
            self._respond()
        else:
            self._advance()

    def _lose(self, worker: WorkerId, *, gone: bool, usable: bool = True, forgivable: bool = False) -> None:
        """It holds nothing and owes nothing from now on. Unless it is gone already, fence it."""
        record = self.members.workers[worker]
        if record.rank is not None and self.members.is_seated(record):
            self.former[record.rank] = record.node
        self.members.unseat(worker)
        self.awaiting.discard(worker)
        for facts in (self.answers, self.actions, self.ended):
            facts.pop(worker, None)
        if gone:
            self.fencing.pop(worker, None)
            self.members.remove(worker, device_usable=usable)
        else:
            self.fencing[worker] = Fence(usable, forgivable)
            self.kill(worker)

    def _respond(self) -> None:
        """A rank is vacant."""
        self.failures += 1
        if self.failures > self.config.max_failures:
            self._end(EXIT_FAILED, f"more than max_failures={self.config.max_failures}; {self.last_failure}")
        elif self.phase is STARTING and self._hopeless():
            self._end(EXIT_FAILED, f"failed twice before init(); {self.last_failure}")
        elif self.phase is STARTING:
            self.reason = "not every rank has come to protect() yet, so there is nothing to go on from: all start again"
            self._restart()
        elif self.phase is ENDING:
            self._restart_for_the_end()
        elif self.phase is STOPPING:
            self._advance()
        else:
            self._recover()

    def _fence_pending(self) -> bool:
        """Somebody who had a rank, and its device, is not gone yet. A standby has neither."""
        return bool(self.members.leaving)

    def _hopeless(self) -> bool:
        """Two processes in a row failed at the same place before init(): the next one would too."""
        return self.stillborn[1] > 1

    def _restart(self) -> None:
        """Nothing to save yet, or nothing but a checkpoint: all workers with a rank start anew."""
        for worker in self.members.seated():
            self._lose(worker, gone=False)
        self.members.coordinates.clear()
        self.layouts.clear()
        self.finished.clear()
        if self._next_attempt(STARTING):
            self._advance()

    def _restart_for_the_end(self) -> None:
        """What a rank did after the loop is lost; the state at the end of the loop may be on storage."""
        found = self.checkpoints.newest()
        if found is None or found[0].step != self.target:
            self._end(EXIT_FAILED, f"failed after the last step, which no checkpoint holds; {self.last_failure}")
        else:
            self.source, self.over = found[0], True
            self.reason = f"what came after the last step is lost: all start again and load step {self.target}"
            self._restart()

    def _recover(self) -> None:
        """Stop the survivors and start a new generation from them."""
        if not self._next_attempt(STOPPING):
            return
        self.answers.clear()
        self.actions.clear()
        self.donors.clear()
        self.ended.clear()
        self.awaiting = set(self.members.seated(WorkerPhase.HOLLOW, WorkerPhase.IDLE))
        self.send(sorted(self.awaiting), Stop(self.generation))
        self._advance()

    def _next_attempt(self, phase: JobPhase) -> bool:
        self.attempts += 1
        if self.attempts > self.config.max_failures_per_step:
            limit = f"max_failures_per_step={self.config.max_failures_per_step}"
            self._end(EXIT_FAILED, f"more than {limit} around step {self.target}; {self.last_failure}")
            return False
        self.generation = Generation(self.generation + 1)
        self.graced = False
        self._enter(phase)
        return True

    # ── the way of a recovery ────────────────────────────────────────────────────────────────────────────

    def _enter(self, phase: JobPhase) -> None:
        self.phase = phase
        self.awaiting = set()
        self._arm_limit()

    def _arm_limit(self) -> None:
        self.arm(self.phase, getattr(self.config, LIMITS[self.phase]))

    def _advance(self) -> None:
        """Place what is vacant, and go on when nobody owes an answer."""
        if self.phase in (STARTING, STOPPING, SETTLING):
            self._fill_vacancies()
        if self.phase is RUNNING:
            self._refill()
        if self.awaiting or (self.phase in (STARTING, STOPPING) and self._fence_pending()):
            return
        if self.phase is STOPPING:
            self._decide()
        elif self.phase is STARTING and self.finished and self.members.seats:
            self._end(EXIT_FAILED, f"ranks {sorted(self.finished)} ended while the others wait in protect()")
        elif self.phase in (STARTING, SETTLING) and len(self.members.seats) == self.config.ranks:
            self._start_training() if self.phase is STARTING else self._reset()
        elif self.phase is RESETTING:
            self._restore()
        elif self.phase is RESTORING:
            self._resume()

    def _on_stopped(self, event: Stopped) -> None:
        if event.worker in self.awaiting:
            hollow = event.position.phase is WorkerPhase.HOLLOW
            self.members.set_stage(event.worker, WorkerPhase.HOLLOW if hollow else WorkerPhase.IDLE)
            self.answers[event.worker] = event.position
            self._answered(event.worker)

    def _answered(self, worker: WorkerId) -> None:
        self.awaiting.discard(worker)
        if not self.awaiting:
            self._advance()

    def _decide(self) -> None:
        holders = {worker: at for worker, at in self.answers.items() if at.phase is not WorkerPhase.HOLLOW}
        missing = planner.missing_shards(self.members, holders)
        if missing or self.stranded:
            self._fall_back(missing)
            return
        decision = planner.decide(holders)
        if decision.unreachable:
            evidence = "its position breaks the protocol: " + ", ".join(
                f"{worker} at {holders[worker]}" for worker in decision.unreachable
            )
            self._fail(list(decision.unreachable), Cause.UNREACHABLE, evidence)
            return
        if decision.target > self.target:
            self.attempts = 1
        self.source = None
        self.over = Position(WorkerPhase.ENDED, decision.target) in holders.values()
        self._settle(decision.target, decision.actions, decision.reason)

    def _fall_back(self, missing: list[int]) -> None:
        """The ladder: no replica holds these pieces, or what one rank had for itself, so all load one checkpoint."""
        found = self.checkpoints.newest()
        owners = sorted(rank for rank, at in self.members.coordinates.items() if at.shard in missing)
        lost = f"no live replica holds shards {missing} any more, which ranks {owners} had"
        if not missing:
            lost = "nobody has any more what one rank had for itself"
        if found is None and not self.failures:  # nobody had any state yet
            self._end(EXIT_FAILED, f"there is no other checkpoint to go on from; {self.last_failure}")
            return
        if found is None:
            advice = ": a mesh with a dimension of replicas keeps each shard more than once" if missing else ""
            self._end(EXIT_FAILED, f"{lost}, and there is no checkpoint{advice}; {self.last_failure}")
            return
        self.source, tier = found
        self.over = False
        actions = {worker: Action.ROLLBACK for worker, at in self.answers.items() if at.phase is not WorkerPhase.HOLLOW}
        reason = f"{lost}: all load step {self.source.step} from the newest {tier} checkpoint"
        self._settle(self.source.step, actions, reason)

    def _settle(self, target: Step, actions: dict[WorkerId, Action], reason: str) -> None:
        self.target, self.actions, self.reason, self.stranded = target, actions, reason, False
        self.note(reason)
        self._enter(SETTLING)
        for action, workers in self._by_action().items():
            self.send(workers, Settle(self.generation, target, action))
        building = self.members.seated(WorkerPhase.SPAWNED, WorkerPhase.BUILDING)
        self.awaiting = {*actions, *building}
        self._advance()

    def _by_action(self) -> dict[Action, list[WorkerId]]:
        groups: dict[Action, list[WorkerId]] = defaultdict(list)
        for worker, action in sorted(self.actions.items()):
            groups[action].append(worker)
        return groups

    def _on_settled(self, event: Settled) -> None:
        worker, at = event.worker, event.position
        if worker not in self.awaiting:
            return
        if self.source is not None:
            self.members.set_stage(worker, WorkerPhase.HOLLOW)
        elif at.version != self.target or at.phase is WorkerPhase.HOLLOW:
            self._fail([worker], Cause.UNREACHABLE, f"settled at {at} instead of step {self.target}")
            return
        self._answered(worker)

    def _reset(self) -> None:
        self._enter(RESETTING)
        self.table = tuple(self.members.seated())
        self.awaiting = set(self.table)
        self.send(self.table, Reset(self.generation, self.table))

    def _on_connected(self, event: Connected) -> None:
        self._answered(event.worker)

    def _restore(self) -> None:
        self._enter(RESTORING)
        hollow = self.members.seated(WorkerPhase.HOLLOW)
        self.awaiting = set(hollow)
        self.donors = planner.donors(self.members, hollow) if self.source is None else {}
        for worker in sorted({*hollow, *self.donors.values()}):
            command = self._outstanding(worker)
            assert command is not None
            self.send([worker], command)
        self._advance()

    def _on_restored(self, event: Restored) -> None:
        if event.worker in self.awaiting:
            if event.version != self.target:
                self._fail([event.worker], Cause.UNREACHABLE, f"restored step {event.version}, not {self.target}")
                return
            self.members.set_stage(event.worker, WorkerPhase.IDLE)
            self._answered(event.worker)

    def _on_unusable(self, event: Unusable) -> None:
        """The next older one may be good. Each that is not is discarded, so this ends."""
        checkpoint = event.checkpoint
        if checkpoint != self.source:
            return
        self.checkpoints.discard(checkpoint)
        self.last_failure = f"the checkpoint of step {checkpoint.step} cannot be loaded ({event.evidence})"
        self.note(self.last_failure)
        self.losses.append(Loss(Cause.CHECKPOINT, event.evidence))
        self.attempts -= 1  # the one that follows counts in its place
        self._recover()

    def _start_training(self) -> None:
        if self.source is None:
            self._resume()
        else:
            self.target = self.source.step
            self._restore()

    def _resume(self) -> None:
        """RESUMING has no deadline of its own: as in RUNNING the detector watches every step."""
        self.phase = RESUMING
        self.send(self.members.seated(), Resume(self.generation, self.target, self.over))

    def _on_committed(self, event: Committed) -> None:
        self.note(f"step {event.step} is committed in generation {event.generation}")
        self.phase = RUNNING
        self.attempts, self.stalled = 0, False
        self._refill()

    def _on_ended(self, event: Ended) -> None:
        self.ended[event.worker] = event.version
        if len(self.ended) < self.config.ranks:
            return
        if len(set(self.ended.values())) > 1:
            left = {self.members.workers[worker].rank: version for worker, version in self.ended.items()}
            self._end(EXIT_FAILED, f"the ranks left the loop at different steps: {dict(sorted(left.items()))}")
            return
        self.phase, self.target = ENDING, event.version
        self.send(self.members.seated(), Release(self.generation))

    def _end(self, code: int, reason: str) -> None:
        self.phase = DONE if code == EXIT_DONE else FAILED
        self.out.append(End(code, reason))

    # ── the controller itself ────────────────────────────────────────────────────────────────────────────

    def _on_restarted(self, event: Restarted) -> None:
        """Agents say hello again; commands that may have been lost are then sent again."""
        for node in list(self.members.nodes):
            self.members.mark(node, present=False)
        self.out.append(ArmReturn(self.config.return_s))
        if self.graced:
            self.arm(RUNNING, self.config.grace_s)
        elif self.phase in LIMITS:
            self._arm_limit()

    def _on_absent(self, event: Absent) -> None:
        for node in sorted(node for node, record in self.members.nodes.items() if not record.present):
            if self.phase not in (DONE, FAILED):
                self._on_node_lost(NodeLost(node, "did not come back to the restarted controller"))

    def _outstanding(self, worker: WorkerId) -> Command | None:
        """The command that this worker has to have received by now. Commands are levels: twice does no harm."""
        record = self.members.workers[worker]
        if record.stage is WorkerPhase.BUILDING:
            return self._assignment(record)
        if not self.members.is_seated(record):
            return None
        if self.phase is RESTORING:
            return self._transfer(worker)
        if self.phase in TRAINING:
            return Resume(self.generation, self.target, self.over)
        if self.phase is ENDING:
            return Release(self.generation)
        if worker not in self.awaiting:
            return None
        if self.phase is STOPPING:
            return Stop(self.generation)
        if self.phase is SETTLING and worker in self.actions:
            return Settle(self.generation, self.target, self.actions[worker])
        if self.phase is RESETTING:
            return Reset(self.generation, self.table)
        return None

    def _transfer(self, worker: WorkerId) -> Command | None:
        if worker in self.awaiting:
            return Restore(self.generation, self.target, self.donors.get(worker), self.source)
        newcomers = tuple(sorted(to for to, donor in self.donors.items() if donor == worker))
        return Donate(self.generation, newcomers) if newcomers else None

    # ── the rest ─────────────────────────────────────────────────────────────────────────────────────────

    def _on_sealed(self, event: Sealed) -> None:
        self.checkpoints.seal(event.rank, planner.Held(event.node, event.slot, event.checkpoint))

    def _on_persisted(self, event: Persisted) -> None:
        self.checkpoints.persist(event.checkpoint)

    def _on_interrupted(self, event: Interrupted) -> None:
        self._end(EXIT_INTERRUPTED, "interrupted")

    def _again(self, event: Event) -> None:
        """The answer is known already: it was sent twice, or arrives late."""


class Row(NamedTuple):
    """In these phases this event does this, and may lead to these phases."""

    event: type[Event]
    phases: tuple[JobPhase, ...]
    action: Callable[[Machine, Any], None]
    to: tuple[JobPhase, ...] = ()


# After a failure, survivors that need no time let several phases pass within one event.
DECIDED = (SETTLING, RESETTING, FAILED)
FAILURE = (STOPPING, *DECIDED)

ROWS = (
    #   event         in these phases       does                          may lead to
    # ── nodes and processes come ──
    Row(NodeJoined, ACTIVE, Machine._on_node_joined, (STARTING, *FAILURE)),
    Row(Registered, ACTIVE, Machine._on_registered),
    Row(Protected, (STARTING,), Machine._on_protected, (RESUMING, RESTORING, FAILED)),
    Row(Protected, (STOPPING,), Machine._on_protected, (FAILED,)),
    Row(Protected, (SETTLING,), Machine._on_protected, (RESETTING, *FAILURE)),
    Row(Protected, (RUNNING, RESETTING, RESTORING, RESUMING, ENDING), Machine._again),
    # ── failures ──
    Row(Exited, (STARTING,), Machine._on_exited, (DONE, FAILED)),
    Row(Exited, (STOPPING,), Machine._on_exited, DECIDED),
    Row(Exited, (RUNNING, SETTLING, RESETTING, RESTORING, RESUMING), Machine._on_exited, FAILURE),
    Row(Exited, (ENDING,), Machine._on_exited, (DONE, STARTING, FAILED)),
    Row(Verdict, (STARTING,), Machine._on_verdict, (FAILED,)),
    Row(Verdict, (STOPPING,), Machine._on_verdict, DECIDED),
    Row(Verdict, (RUNNING, SETTLING, RESETTING, RESTORING, RESUMING), Machine._on_verdict, FAILURE),
    Row(Verdict, (ENDING,), Machine._on_verdict, (STARTING, FAILED)),
    Row(NodeLost, (STARTING,), Machine._on_node_lost, (FAILED,)),
    Row(NodeLost, (STOPPING,), Machine._on_node_lost, DECIDED),
    Row(NodeLost, (RUNNING, SETTLING, RESETTING, RESTORING, RESUMING), Machine._on_node_lost, FAILURE),
    Row(NodeLost, (ENDING,), Machine._on_node_lost, (STARTING, FAILED)),
    Row(DeviceSick, (STARTING,), Machine._on_device_sick, (FAILED,)),
    Row(DeviceSick, (STOPPING,), Machine._on_device_sick, DECIDED),
    Row(DeviceSick, (RUNNING, SETTLING, RESETTING, RESTORING, RESUMING), Machine._on_device_sick, FAILURE),
    Row(DeviceSick, (ENDING,), Machine._on_device_sick, (STARTING, FAILED)),
    Row(FenceFailed, (STOPPING,), Machine._on_fence_failed, DECIDED),
    Row(
        FenceFailed,
        (STARTING, RUNNING, SETTLING, RESETTING, RESTORING, RESUMING, ENDING),
        Machine._on_fence_failed,
    ),
    Row(Broken, (*TRAINING, RESETTING, RESTORING), Machine._on_broken),
    Row(Broken, (STARTING, STOPPING, SETTLING, ENDING), Machine._again),
    Row(Stalled, TRAINING, Machine._on_stalled, FAILURE),
    Row(Stalled, (STARTING, STOPPING, SETTLING, RESETTING, RESTORING, ENDING), Machine._again),
    Row(Deadline, TRAINING, Machine._on_grace_over, FAILURE),
    Row(Deadline, (STARTING,), Machine._on_deadline, (FAILED,)),
    Row(Deadline, (STOPPING,), Machine._on_deadline, DECIDED),
    Row(Deadline, (SETTLING,), Machine._on_deadline, FAILURE),
    Row(Deadline, (RESETTING, RESTORING), Machine._on_shared_deadline, FAILURE),
    Row(Deadline, (ENDING,), Machine._again),
    # ── the way of a recovery ──
    Row(Stopped, (STOPPING,), Machine._on_stopped, DECIDED),
    Row(Stopped, (RUNNING, SETTLING, RESETTING, RESTORING, RESUMING, ENDING), Machine._again),
    Row(Settled, (SETTLING,), Machine._on_settled, (RESETTING, *FAILURE)),
    Row(Settled, (RUNNING, RESETTING, RESTORING, RESUMING, ENDING), Machine._again),
    Row(Connected, (RESETTING,), Machine._on_connected, (RESTORING, RESUMING)),
    Row(Connected, (RUNNING, RESTORING, RESUMING, ENDING), Machine._again),
    Row(Restored, (RESTORING,), Machine._on_restored, (RESUMING, *FAILURE)),
    Row(Restored, (RUNNING, RESUMING, ENDING), Machine._again),
    Row(Unusable, (RESTORING,), Machine._on_unusable, FAILURE),
    Row(Committed, (RESUMING,), Machine._on_committed, (RUNNING,)),
    Row(Committed, (RUNNING, ENDING), Machine._again),
    Row(Ended, TRAINING, Machine._on_ended, (ENDING, FAILED)),
    Row(Ended, (ENDING,), Machine._again),
    # ── the controller, checkpoints, people ──
    Row(Restarted, ACTIVE, Machine._on_restarted),
    Row(Absent, ACTIVE, Machine._on_absent, (STARTING, *FAILURE)),
    Row(Sealed, ACTIVE, Machine._on_sealed),
    Row(Persisted, ACTIVE, Machine._on_persisted),
    Row(Interrupted, ACTIVE, Machine._on_interrupted, (FAILED,)),
)
TABLE = {(row.event, phase): row for row in ROWS for phase in row.phases}
