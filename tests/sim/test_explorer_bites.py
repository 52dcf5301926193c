"""The explorer bites: each of these broken cores differs from the real one in one thing, and is caught with a trace.

A mutant that survives is a hole in the properties (`everstep.sim.checks`) or in the world (`everstep.sim.rules`).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from everstep.core import planner
from everstep.core.effects import Action, Command, Release, Resume, Stop
from everstep.core.events import (
    Checkpoint,
    Committed,
    Ended,
    Event,
    JobPhase,
    NodeJoined,
    Position,
    Restarted,
    Stalled,
    Stopped,
)
from everstep.core.machine import TABLE, Machine
from everstep.core.membership import Membership
from everstep.core.planner import Decision, decide
from everstep.core.worker import Move, Out, WorkerMachine
from everstep.sim.explore import explore
from everstep.sim.world import Kind, Scope
from everstep.types import Mesh, Rank, Step, WorkerId, WorkerPhase

Patch = pytest.MonkeyPatch


def two(*kinds: Kind, failures: int = 1, **more: Any) -> Scope:
    """Two replicas, no standby, one step: enough for most mistakes."""
    return Scope(ranks=2, standbys=0, failures=failures, steps=more.pop("steps", 1), kinds=kinds, **more)


def assert_caught(scope: Scope, rule: str) -> None:
    found = explore(scope, max_states=400_000).violation
    assert found is not None, "this mutant survives: the properties have a hole"
    assert found.trace
    assert rule in found.message


# ── the decision ─────────────────────────────────────────────────────────────────────────────────────────


def test_minimum_instead_of_maximum(monkeypatch: Patch) -> None:
    def mutant(positions: Mapping[WorkerId, Position]) -> Decision:
        target = Step(min(at.version for at in positions.values()))
        return Decision(target, dict.fromkeys(positions, Action.REDO), (), "as far as the last one is")

    monkeypatch.setattr(planner, "decide", mutant)
    assert_caught(two(Kind.CRASH), "the job goes on with step 0, but version 1 is alive")


def test_ready_treated_as_committed(monkeypatch: Patch) -> None:
    passed = (WorkerPhase.READY, WorkerPhase.COMMITTED)
    monkeypatch.setattr(planner, "_reaches", lambda at: at.version + (at.phase in passed))
    assert_caught(two(Kind.CRASH), "the job goes on with step 1, but version 0 is alive")


def test_committed_treated_as_redo(monkeypatch: Patch) -> None:
    monkeypatch.setattr(planner, "_reaches", lambda at: at.version)
    assert_caught(two(Kind.CRASH), "the job goes on with step 0, but version 1 is alive")


def test_ready_is_told_to_redo_a_committed_step(monkeypatch: Patch) -> None:
    def mutant(positions: Mapping[WorkerId, Position]) -> Decision:
        right = decide(positions)
        ready = {worker for worker, at in positions.items() if at.phase is WorkerPhase.READY}
        return replace(right, actions={**right.actions, **dict.fromkeys(ready, Action.REDO)})

    monkeypatch.setattr(planner, "decide", mutant)
    assert_caught(two(Kind.BREAK), "although nothing is wrong with it")


def test_an_answer_of_the_dead_counts() -> None:
    class Mutant(Machine):
        def _lose(self, worker: WorkerId, **kwargs: Any) -> None:
            answers = dict(self.answers)
            super()._lose(worker, **kwargs)
            self.answers = answers

    scope = Scope(ranks=3, standbys=0, failures=2, steps=1, kinds=(Kind.CRASH,), machine=Mutant)
    assert_caught(scope, "the controller still counts on it")


def test_rollback_though_a_holder_lives() -> None:
    class Mutant(Machine):
        def _decide(self) -> None:
            self._fall_back([0])

    assert_caught(two(Kind.CRASH, checkpoint=True, machine=Mutant), "rolls back although every shard has a live holder")


# ── checkpoints ──────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_on_storage_is_forgotten(monkeypatch: Patch) -> None:
    def mutant(self: planner.Checkpoints) -> tuple[Checkpoint, str] | None:
        complete = self.complete()
        return (max(complete), "memory") if complete else None

    monkeypatch.setattr(planner.Checkpoints, "newest", mutant)
    assert_caught(two(Kind.CRASH, mesh=Mesh(1, 2), checkpoint=True), "although a good checkpoint is on storage")


def test_a_resumed_job_begins_anew() -> None:
    class Mutant(Machine):
        def _start_training(self) -> None:
            self._resume()

    assert_caught(two(Kind.CRASH, checkpoint=True, resume=True, machine=Mutant), "the job is RESUMING")


# ── fence and generations ────────────────────────────────────────────────────────────────────────────────


def test_no_fence() -> None:
    class Mutant(Machine):
        def _fence_pending(self) -> bool:
            return False

    assert_caught(two(Kind.SUSPECT, machine=Mutant), "the job is decided before workers")


def test_the_controller_accepts_an_old_generation() -> None:
    class Mutant(Machine):
        def _stale(self, event: Event) -> bool:
            if isinstance(event, Committed):
                return False
            return super()._stale(event)

    assert_caught(two(Kind.BREAK, machine=Mutant), "of generation 2 on Committed(")


def test_the_controller_accepts_what_the_judged_say() -> None:
    class Mutant(Machine):
        def _stale(self, event: Event) -> bool:
            return getattr(event, "worker", None) not in self.fencing and super()._stale(event)

    assert_caught(two(Kind.SUSPECT, machine=Mutant), "changes generation 2")


def test_a_worker_accepts_an_old_generation() -> None:
    class Mutant(WorkerMachine):
        def command(self, command: Command) -> list[Out]:
            if isinstance(command, Resume) and command.generation < self.stop:
                self.out = []
                self._on_resume(command)
                return self.out
            return super().command(command)

    assert_caught(two(Kind.CRASH, Kind.ECHO, failures=2, worker=Mutant), "I5")


def test_an_innocent_worker_is_killed() -> None:
    class Mutant(Machine):
        def _recover(self) -> None:
            super()._recover()
            for worker in sorted(self.awaiting):
                self._lose(worker, gone=False)

    assert_caught(two(Kind.CRASH, machine=Mutant), "although nothing is wrong with it")


# ── the worker: Stop, barrier, update (I1 … I5) ──────────────────────────────────────────────────────────


def test_the_stop_is_answered_before_the_main_thread_is_parked() -> None:
    class Mutant(WorkerMachine):
        def _on_stop(self, command: Stop) -> None:
            super()._on_stop(command)
            if self.answer is None:
                self._report(self._stopped())

    assert_caught(two(Kind.CRASH, worker=Mutant), "I5")


def test_the_barrier_returns_after_a_stop_was_answered() -> None:
    class Mutant(WorkerMachine):
        def _on_stop(self, command: Stop) -> None:
            super()._on_stop(command)
            if self.phase is WorkerPhase.READY and self.answer is None:
                self._report(self._stopped())

        def move(self, move: Move) -> list[Out]:
            if move is Move.PASS and isinstance(self.answer, Stopped):
                self.out, self.phase = [], WorkerPhase.COMMITTED
                return self.out
            return super().move(move)

    assert_caught(two(Kind.CRASH, worker=Mutant), "I5")


def test_the_barrier_returns_although_a_stop_is_pending() -> None:
    class Mutant(WorkerMachine):
        def move(self, move: Move) -> list[Out]:
            stop = self.stop
            if move is Move.PASS:
                self.stop = self.generation
            out = super().move(move)
            self.stop = stop
            return out

    assert_caught(two(Kind.CRASH, worker=Mutant), "nothing can happen any more, and the job is STOPPING")


def test_updated_is_stamped_before_the_end_of_the_block() -> None:
    class Mutant(WorkerMachine):
        def move(self, move: Move) -> list[Out]:
            out = super().move(move)
            if move is Move.PASS and self.phase is WorkerPhase.COMMITTED:
                self.version, self.phase = Step(self.version + 1), WorkerPhase.IDLE
            return out

    assert_caught(two(Kind.CRASH, worker=Mutant), "says version 1 but holds 0.0")


def test_a_failed_collective_is_swallowed() -> None:
    class Mutant(WorkerMachine):
        @property
        def must_park(self) -> bool:
            return self.stopping

    assert_caught(two(Kind.CRASH, worker=Mutant), "READY(0) without complete gradients")


def test_the_barrier_is_left_before_all_are_in_it() -> None:
    class Mutant(WorkerMachine):
        def move(self, move: Move) -> list[Out]:
            out = super().move(move)
            if move is Move.READY and self.phase is WorkerPhase.READY:
                self.phase = WorkerPhase.COMMITTED
            return out

    assert_caught(two(Kind.CRASH, worker=Mutant), "I1")


def test_a_redo_keeps_the_old_step() -> None:
    class Mutant(WorkerMachine):
        def _on_settle(self, command: Any) -> None:
            self.order, self.phase = command, WorkerPhase.IDLE
            self._park_settled()

    assert_caught(two(Kind.CRASH, worker=Mutant), "takes gradients into generation")


def test_a_failed_step_spoils_the_one_that_is_done_again() -> None:
    class Mutant(WorkerMachine):
        def _park_settled(self) -> list[Out]:
            tainted = self.tainted
            out = super()._park_settled()
            self.tainted = tainted
            return out

    assert_caught(two(Kind.CRASH, worker=Mutant), "nothing can happen any more, and the job is RESUMING")


def test_a_second_stop_is_not_answered() -> None:
    class Mutant(WorkerMachine):
        def _on_stop(self, command: Stop) -> None:
            if self.parked and self.stopping:
                self.stop = command.generation
            else:
                super()._on_stop(command)

    assert_caught(two(Kind.CRASH, failures=2, worker=Mutant), "nothing can happen any more, and the job is STOPPING")


def test_a_broken_barrier_is_left_before_the_decision() -> None:
    class Mutant(WorkerMachine):
        def broken(self, evidence: str = "") -> list[Out]:
            out = super().broken(evidence)
            if self.phase is WorkerPhase.READY:
                self.phase = WorkerPhase.BACKWARD
            return out

    assert_caught(two(Kind.BREAK, worker=Mutant), "although nothing is wrong with it")


# ── the recovery ─────────────────────────────────────────────────────────────────────────────────────────


def test_reset_before_all_have_settled() -> None:
    class Mutant(Machine):
        def _advance(self) -> None:
            if self.phase is JobPhase.SETTLING:
                self.awaiting.clear()
            super()._advance()

    assert_caught(two(Kind.BREAK, machine=Mutant), "still runs")


def test_a_donor_that_holds_nothing(monkeypatch: Patch) -> None:
    monkeypatch.setattr(planner, "donors", lambda members, hollow: {worker: worker for worker in hollow})
    assert_caught(two(Kind.CRASH), "nothing can happen any more, and the job is RESTORING")


def test_a_donor_of_another_shard(monkeypatch: Patch) -> None:
    monkeypatch.setattr(planner, "missing_shards", lambda members, holders: [] if holders else [0, 1])
    monkeypatch.setattr(Membership, "shard_of", lambda self, rank: 0)
    assert_caught(two(Kind.CRASH, mesh=Mesh(1, 2)), "another shard")


def test_resume_without_restoring() -> None:
    class Mutant(Machine):
        def _restore(self) -> None:
            self._resume()

    assert_caught(two(Kind.CRASH, machine=Mutant), "nothing can happen any more, and the job is RESUMING")


def test_a_newcomer_that_died_in_restoration_is_forgotten() -> None:
    class Mutant(Machine):
        def _fail(self, workers: list[WorkerId], *args: Any, **kwargs: Any) -> None:
            super()._fail([] if self.phase is JobPhase.RESTORING else workers, *args, **kwargs)

    assert_caught(two(Kind.CRASH, failures=2, machine=Mutant), "nothing can happen any more")


def test_a_survivor_that_failed_in_a_recovery_is_not_replaced() -> None:
    class Mutant(Machine):
        def _recover(self) -> None:
            if self.phase in (JobPhase.RUNNING, JobPhase.RESUMING):
                super()._recover()
            else:
                self._advance()

    assert_caught(two(Kind.CRASH, failures=2, machine=Mutant), "nothing can happen any more")


def test_two_workers_resume_with_different_tables() -> None:
    class Mutant(WorkerMachine):
        def _on_reset(self, command: Any) -> None:
            super()._on_reset(command)
            if self.rank == Rank(1):
                self.table = tuple(reversed(self.table))

    assert_caught(two(Kind.BREAK, worker=Mutant), "resumes with table")


def test_only_a_failure_that_somebody_reports_is_seen() -> None:
    class Mutant(Machine):
        def arm(self, phase: JobPhase, delay_s: float) -> None:
            """No timer: a collective that fails though nobody died is never explained."""

    assert_caught(two(Kind.BREAK, machine=Mutant), "nothing can happen any more")


def test_the_end_of_a_recovery_is_not_told() -> None:
    class Mutant(WorkerMachine):
        def _on_resume(self, command: Resume) -> None:
            super()._on_resume(command)
            self.fresh = command.generation == 1

    assert_caught(two(Kind.CRASH, worker=Mutant), "nobody told that step 0 is committed")


def test_a_step_is_run_that_a_survivor_has_left_the_loop_at() -> None:
    class Mutant(Machine):
        def _resume(self) -> None:
            self.over = False
            super()._resume()

    assert_caught(two(Kind.CRASH, machine=Mutant), "left the loop")


def test_a_recovery_begins_out_of_nothing(monkeypatch: Patch) -> None:
    def mutant(self: Machine, event: Committed) -> None:
        self._recover()

    monkeypatch.setitem(
        TABLE, (Committed, JobPhase.RESUMING), TABLE[Stalled, JobPhase.RESUMING]._replace(action=mutant)
    )
    assert_caught(two(Kind.CRASH, failures=0), "ends although nothing has failed")


# ── the controller comes back ────────────────────────────────────────────────────────────────────────────


def test_the_grace_timer_is_lost_with_the_controller() -> None:
    class Mutant(Machine):
        def arm(self, phase: JobPhase, delay_s: float) -> None:
            if not isinstance(self.recent[-1] if self.recent else None, Restarted):
                super().arm(phase, delay_s)

    assert_caught(two(Kind.BREAK, Kind.RESTART, failures=2, machine=Mutant), "nothing can happen any more")


def test_commands_are_not_sent_again() -> None:
    class Mutant(Machine):
        def _outstanding(self, worker: WorkerId) -> Command | None:
            return None if isinstance(self.recent[-1], NodeJoined) else super()._outstanding(worker)

    assert_caught(two(Kind.RESTART, machine=Mutant), "nothing can happen any more")


def test_exits_while_the_controller_was_away_are_not_looked_for() -> None:
    class Mutant(Machine):
        def _fail(self, workers: list[WorkerId], *args: Any, **kwargs: Any) -> None:
            super()._fail([] if isinstance(self.recent[-1], NodeJoined) else workers, *args, **kwargs)

    assert_caught(two(Kind.CRASH, Kind.RESTART, failures=2, machine=Mutant), "nothing can happen any more")


def test_who_left_the_loop_before_a_rollback_counts_after_it() -> None:
    class Mutant(Machine):
        def _recover(self) -> None:
            ended = dict(self.ended)
            super()._recover()
            self.ended.update(ended)

    scope = two(Kind.CRASH, mesh=Mesh(1, 2), checkpoint=True, machine=Mutant)
    assert_caught(scope, "nothing can happen any more, and the job is ENDING")


# ── the end ──────────────────────────────────────────────────────────────────────────────────────────────


def mutate_row(
    monkeypatch: Patch, event: type[Event], phases: tuple[JobPhase, ...], action: Callable[..., None]
) -> None:
    for phase in phases:
        monkeypatch.setitem(TABLE, (event, phase), TABLE[event, phase]._replace(action=action))


def test_released_before_all_have_ended(monkeypatch: Patch) -> None:
    def mutant(self: Machine, event: Ended) -> None:
        self.phase = JobPhase.ENDING
        self.send(self.members.seated(), Release(self.generation))

    mutate_row(monkeypatch, Ended, (JobPhase.RUNNING, JobPhase.RESUMING), mutant)
    assert_caught(two(Kind.CRASH), "nothing can happen any more, and the job is ENDING")


def test_the_job_ends_a_step_early() -> None:
    class Mutant(Machine):
        def _resume(self) -> None:
            self.over = self.generation > 1
            super()._resume()

    assert_caught(two(Kind.BREAK, machine=Mutant), "leaves the job with version")


def test_the_job_fails_though_it_could_be_healed() -> None:
    class Mutant(Machine):
        def _decide(self) -> None:
            self._end(1, "no way")

    assert_caught(two(Kind.CRASH, machine=Mutant), "the job fails although it could be healed")


def test_the_job_fails_without_a_reason() -> None:
    class Mutant(Machine):
        def _decide(self) -> None:
            self._end(1, "")

    assert_caught(two(Kind.CRASH, machine=Mutant), "without a reason")
