"""The controller's machine by behaviour: who is told what, after which failure, in which phase, and why a job ends."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from everstep.core.config import JobConfig
from everstep.core.effects import (
    Action,
    Arm,
    ArmReturn,
    Assign,
    Command,
    Donate,
    Effect,
    End,
    Kill,
    Note,
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
    Broken,
    Cause,
    Checkpoint,
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
from everstep.core.machine import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, TABLE, Machine
from everstep.errors import InvalidTransition
from everstep.sim.explore import explore
from everstep.sim.world import Kind, Scope
from everstep.types import Coordinate, Generation, Mesh, NodeId, Rank, Step, WorkerId, WorkerPhase

STARTING, RUNNING, STOPPING, SETTLING, RESETTING, RESTORING, RESUMING, ENDING, DONE, FAILED = JobPhase
IDLE, FORWARD, BACKWARD = WorkerPhase.IDLE, WorkerPhase.FORWARD, WorkerPhase.BACKWARD
READY, COMMITTED, ENDED, HOLLOW = WorkerPhase.READY, WorkerPhase.COMMITTED, WorkerPhase.ENDED, WorkerPhase.HOLLOW


class Job:
    """A machine whose workers and agents do what they are told. Each answer is held back until `run` brings it."""

    def __init__(
        self,
        ranks: int = 2,
        standbys: int = 0,
        nodes: int = 1,
        devices: int = 0,
        mesh: Mesh | None = None,
        **limits: Any,
    ) -> None:
        self.config = JobConfig(ranks, standbys, nodes, **limits)
        self.mesh = mesh or Mesh(ranks)
        self.machine = Machine(self.config)
        self.log: list[Event] = []
        self.effects: list[Effect] = []
        self.answers: deque[Event] = deque()
        self.positions: dict[WorkerId, Position] = {}
        self.silent: set[WorkerId] = set()
        """Frozen: they answer nothing, and do not die."""
        self.devices = tuple(f"d{device}" for device in range(devices or ranks))
        self._take(self.machine.start())
        for node in range(nodes):
            self.tell(NodeJoined(NodeId(f"n{node}"), self.devices))

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────────

    def tell(self, *events: Event) -> list[Effect]:
        """The effects of the last of these events."""
        effects: list[Effect] = []
        for event in events:
            self.log.append(event)
            effects = self.machine.handle(event)
            self._take(effects)
        return effects

    def run(self, until: JobPhase | None = None) -> "Job":
        """Bring answers until the machine is in this phase, or nobody has anything to say."""
        while self.answers and self.phase is not until:
            self.tell(self.answers.popleft())
        assert until in (None, self.phase), self.phase
        return self

    def training(self, step: int = 0) -> "Job":
        """Run until this step has committed."""
        self.run(RESUMING)
        for index in range(step + 1):
            self.tell(Committed(self.worker(0), self.generation, Step(index)))
        self.at(FORWARD, step + 1)
        self.run()
        assert self.phase is RUNNING
        return self

    def recovered(self) -> "Job":
        """Run a recovery to its end."""
        self.run(RESUMING)
        self.tell(Committed(self.worker(0), self.generation, self.machine.target))
        self.run()
        assert self.phase is RUNNING
        return self

    def crash(self, *ranks: int) -> list[Effect]:
        return self.tell(*[Exited(self.worker(rank), -9) for rank in ranks])

    def at(self, phase: WorkerPhase, version: int, *ranks: int) -> None:
        """Where main threads stand, all by default."""
        for rank in ranks or range(self.config.ranks):
            self.positions[self.worker(rank)] = Position(phase, Step(version))

    def expire(self) -> list[Effect]:
        return self.tell(Deadline(self.generation, self.phase))

    # ── what is ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def phase(self) -> JobPhase:
        return self.machine.phase

    @property
    def generation(self) -> Generation:
        return self.machine.generation

    @property
    def end(self) -> End | None:
        return next((effect for effect in self.effects if isinstance(effect, End)), None)

    @property
    def notes(self) -> str:
        return "\n".join(effect.text for effect in self.effects if isinstance(effect, Note))

    def worker(self, rank: int) -> WorkerId:
        return self.machine.members.seats[Rank(rank)]

    def node_of(self, rank: int) -> NodeId:
        return self.machine.members.workers[self.worker(rank)].node

    def commands(self, kind: type[Command], effects: list[Effect] | None = None) -> dict[WorkerId, Command]:
        """The newest command of this kind to each worker that is still there."""
        sent = [effect for effect in (self.effects if effects is None else effects) if isinstance(effect, Send)]
        known = self.machine.members.workers
        return {
            worker: send.command
            for send in sent
            if isinstance(send.command, kind)
            for worker in send.to
            if worker in known
        }

    def failed_because(self, reason: str) -> None:
        assert self.phase is FAILED
        assert self.end is not None
        assert self.end.code == EXIT_FAILED
        assert reason in self.end.reason

    # ── workers and agents that obey ─────────────────────────────────────────────────────────────────────

    def _take(self, effects: list[Effect]) -> None:
        self.effects.extend(effects)
        for effect in effects:
            if isinstance(effect, Spawn):
                self.answers.append(Registered(effect.worker))
            elif isinstance(effect, Kill) and effect.worker not in self.silent:
                self.answers.append(Exited(effect.worker, -9))
            elif isinstance(effect, Send):
                for worker in effect.to:
                    if worker not in self.silent:
                        self.answers.extend(self._obey(worker, effect.command))

    def _obey(self, worker: WorkerId, command: Command) -> Iterator[Event]:
        match command:
            case Assign(rank=rank, role=role):
                self.positions[worker] = Position(IDLE if role is Role.FOUNDER else HOLLOW, Step(0))
                yield Protected(worker, self.mesh.coordinate(rank))
            case Stop(generation):
                yield Stopped(worker, generation, self.positions[worker])
            case Settle(generation, target, action):
                phase = HOLLOW if action is Action.ROLLBACK else IDLE
                self.positions[worker] = Position(phase, target)
                yield Settled(worker, generation, self.positions[worker])
            case Reset(generation):
                yield Connected(worker, generation)
            case Restore(generation, target):
                self.positions[worker] = Position(IDLE, target)
                yield Restored(worker, generation, target)
            case Release():
                yield Exited(worker, 0)


def checkpoint(step: int, generation: int = 1) -> Checkpoint:
    return Checkpoint(Step(step), Generation(generation))


# ── first start ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_starts_when_all_its_nodes_have_joined() -> None:
    job = Job(ranks=2, nodes=2)
    spawned = [effect for effect in job.effects if isinstance(effect, Spawn)]
    assert [(spawn.rank, spawn.node) for spawn in spawned] == [(0, "n0"), (1, "n1")]
    assert isinstance(job.log[0], NodeJoined)
    waiting = Machine(JobConfig(2, nodes=2))
    waiting.start()
    assert not any(isinstance(effect, Spawn) for effect in waiting.handle(NodeJoined(NodeId("n0"), ("d0", "d1"))))


def test_every_rank_founds_its_state_and_all_begin_step_0_together() -> None:
    job = Job(ranks=3).run(RESUMING)
    assert {command.role for command in job.commands(Assign).values() if isinstance(command, Assign)} == {Role.FOUNDER}
    assert set(job.commands(Resume).values()) == {Resume(Generation(1), Step(0))}
    assert len(job.commands(Resume)) == 3


def test_nobody_begins_before_the_last_one_is_at_protect() -> None:
    job = Job(ranks=2)
    job.tell(*job.answers)
    job.answers.popleft()
    job.answers.popleft()
    job.tell(job.answers.popleft())
    assert job.phase is STARTING
    assert not job.commands(Resume)


def test_each_rank_has_a_device_of_its_own() -> None:
    job = Job(ranks=4).run()
    assigned = [command.device for command in job.commands(Assign).values() if isinstance(command, Assign)]
    assert sorted(assigned) == ["d0", "d1", "d2", "d3"]


def test_standbys_come_after_the_first_rank_has_called_init_and_get_no_rank() -> None:
    job = Job(ranks=1, standbys=2)
    assert len([effect for effect in job.effects if isinstance(effect, Spawn)]) == 1
    job.training()
    assert len(job.machine.members.pool) == 2
    assert len(job.commands(Assign)) == 1


def test_the_job_runs_when_its_first_step_has_committed() -> None:
    job = Job().run(RESUMING)
    job.tell(Committed(job.worker(1), job.generation, Step(0)))
    assert job.phase is RUNNING


# ── failures before protect is complete ──────────────────────────────────────────────────────────────────


def test_a_failure_before_protect_restarts_all() -> None:
    job = Job(ranks=3)
    first = list(job.machine.members.workers)
    job.crash(1)
    assert [effect.worker for effect in job.effects if isinstance(effect, Kill)] == [first[0], first[2]]
    job.training()
    assert not set(first) & set(job.machine.members.workers)
    assert job.generation == 2
    assert set(job.commands(Resume).values()) == {Resume(Generation(2), Step(0))}


def test_a_restart_waits_until_the_old_processes_are_gone() -> None:
    job = Job(ranks=2)
    job.silent.add(job.worker(0))
    survivor = job.worker(0)
    job.crash(1)
    spawned = len([effect for effect in job.effects if isinstance(effect, Spawn)])
    job.run()
    assert len([effect for effect in job.effects if isinstance(effect, Spawn)]) == spawned
    job.tell(Exited(survivor, -9))
    job.training()


def test_failing_twice_at_the_same_place_before_init_stops_with_that_place_as_reason() -> None:
    job = Job(ranks=1)
    for _ in range(2):
        job.tell(Exited(job.worker(0), 1, "ImportError: no module named nets", place="train.py:3"))
    job.failed_because("failed twice before init(); rank 0 (worker 1 on n0): exited (ImportError")


def test_two_different_places_before_init_are_two_attempts() -> None:
    job = Job(ranks=1)
    for place in ("train.py:3", "train.py:4"):
        job.tell(Exited(job.worker(0), 1, place=place))
    job.training()


def test_a_rank_that_builds_another_model_is_out() -> None:
    job = Job(ranks=2)
    job.run(RESUMING)
    job.crash(1)
    job.run(STOPPING).run(SETTLING)
    newcomer = job.worker(1)
    while newcomer not in job.positions:
        job.tell(job.answers.popleft())
    job.answers.clear()
    job.tell(Protected(newcomer, job.mesh.coordinate(Rank(1)), "another digest"))
    assert "built a different model" in job.machine.last_failure
    assert newcomer in job.machine.fencing


# ── one failure, in any place of a step ──────────────────────────────────────────────────────────────────


def test_before_the_barrier_everybody_redoes_the_step() -> None:
    job = Job(ranks=3, standbys=1).training(step=6)
    job.at(FORWARD, 7, 0)
    job.at(READY, 7, 1)
    job.crash(2)
    assert job.phase is STOPPING
    assert set(job.commands(Stop)) == {job.worker(0), job.worker(1)}
    job.run(SETTLING)
    assert set(job.commands(Settle).values()) == {Settle(Generation(2), Step(7), Action.REDO)}
    job.run(RESUMING)
    assert set(job.commands(Resume).values()) == {Resume(Generation(2), Step(7))}


def test_after_the_barrier_everybody_finishes_it_and_the_newcomer_gets_the_updated_state() -> None:
    job = Job(ranks=3).training(step=6)
    job.at(COMMITTED, 7, 0)
    job.at(READY, 7, 1)
    job.crash(2)
    job.run(SETTLING)
    assert set(job.commands(Settle).values()) == {Settle(Generation(2), Step(8), Action.FINISH)}
    job.run(RESTORING)
    restore = job.commands(Restore)[job.worker(2)]
    assert isinstance(restore, Restore)
    assert (restore.target, restore.donor) == (8, job.worker(0))
    assert job.commands(Donate) == {job.worker(0): Donate(Generation(2), (job.worker(2),))}
    assert "its update counts: 2 finish it and all go on with step 8" in job.notes


def test_nothing_is_decided_before_the_suspect_is_gone() -> None:
    job = Job(ranks=2).training()
    suspect = job.worker(1)
    job.silent.add(suspect)
    effects = job.tell(Verdict(suspect, Cause.HANG, "stuck in recv"))
    assert Kill(NodeId("n0"), suspect) in effects
    job.run()
    assert job.phase is STOPPING
    job.tell(Exited(suspect, -9))
    assert job.phase is SETTLING


def test_what_a_suspect_still_says_has_no_effect() -> None:
    job = Job(ranks=2).training()
    suspect = job.worker(1)
    job.tell(Verdict(suspect, Cause.HANG))
    before = job.machine.freeze()
    assert job.tell(Stopped(suspect, job.generation, Position(COMMITTED, Step(1)))) == []
    assert job.machine.freeze() == before


def test_a_standby_takes_the_place_of_the_lost_one() -> None:
    job = Job(ranks=2, standbys=1).training()
    (standby,) = job.machine.members.pool
    job.crash(0)
    job.run()
    assert job.worker(0) == standby
    assert job.commands(Assign)[standby] == Assign(Rank(0), 2, Generation(2), Role.JOINER, "d0")


def test_without_a_standby_a_process_is_forked_in_place() -> None:
    job = Job(ranks=2, nodes=2).training()
    node = job.node_of(1)
    job.crash(1)
    spawn = next(effect for effect in reversed(job.effects) if isinstance(effect, Spawn))
    assert (spawn.node, spawn.rank) == (node, 1)


def test_all_get_the_same_table_before_anything_is_restored() -> None:
    job = Job(ranks=3).training()
    job.crash(1)
    job.run(RESETTING)
    table = tuple(job.worker(rank) for rank in range(3))
    assert set(job.commands(Reset).values()) == {Reset(Generation(2), table)}
    assert not job.commands(Restore)


def test_a_recovery_has_succeeded_when_its_step_commits() -> None:
    job = Job(ranks=2).training()
    job.crash(1)
    job.run(RESUMING)
    assert job.machine.attempts == 1
    job.tell(Committed(job.worker(0), job.generation, Step(1)))
    assert job.phase is RUNNING
    assert job.machine.attempts == 0


def test_a_lost_standby_interrupts_nobody_and_is_replaced() -> None:
    job = Job(ranks=2, standbys=1).training()
    (standby,) = job.machine.members.pool
    effects = job.tell(Exited(standby, 1))
    assert job.phase is RUNNING
    assert not job.commands(Stop, effects)
    assert any(isinstance(effect, Spawn) for effect in effects)


# ── a further failure in every phase, and several at once ────────────────────────────────────────────────


@pytest.mark.parametrize("phase", [STOPPING, SETTLING, RESETTING, RESTORING, RESUMING])
@pytest.mark.parametrize("victim", ["survivor", "newcomer"])
def test_a_further_failure_in_every_phase_of_a_recovery_is_healed_too(phase: JobPhase, victim: str) -> None:
    job = Job(ranks=3).training(step=6)
    job.crash(2)
    job.run(phase)
    job.crash(1 if victim == "survivor" or phase is STOPPING else 2)
    job.recovered()
    assert set(job.commands(Resume).values()) == {Resume(job.generation, Step(7))}
    assert [job.positions[job.worker(rank)].version for rank in range(3)] == [7, 7, 7]
    assert job.generation == (2 if phase is STOPPING else 3)


def test_a_failure_while_survivors_are_awaited_only_shortens_the_list() -> None:
    job = Job(ranks=3).training()
    job.crash(2)
    job.crash(1)
    assert (job.phase, job.generation) == (STOPPING, 2)
    job.run(SETTLING)
    assert list(job.commands(Settle)) == [job.worker(0)]


def test_a_newcomer_that_is_not_complete_is_no_holder() -> None:
    job = Job(ranks=3).training()
    job.crash(2)
    job.run(RESTORING)
    newcomer = job.worker(2)
    job.positions[newcomer] = Position(HOLLOW, Step(0))
    job.answers.clear()
    job.crash(1)
    job.run(SETTLING)
    assert newcomer in job.machine.members.seats.values()
    assert newcomer not in {w for w, c in job.commands(Settle).items() if c.generation == 3}
    job.run(RESTORING)
    assert set(job.machine.donors) == {newcomer, job.worker(1)}


def test_several_at_once_are_healed_while_one_replica_lives() -> None:
    job = Job(ranks=8).training()
    job.crash(0, 1, 2, 4, 5, 6)
    job.recovered()
    donors = [command.donor for command in job.commands(Restore).values() if isinstance(command, Restore)]
    assert {donor: donors.count(donor) for donor in donors} == {job.worker(3): 3, job.worker(7): 3}


def test_a_lost_node_loses_all_its_workers_as_one_failure() -> None:
    job = Job(ranks=4, nodes=2).training()
    job.tell(NodeLost(NodeId("n1"), "connection reset"))
    assert job.machine.failures == 1
    job.recovered()
    assert {job.node_of(rank) for rank in range(4)} == {"n0"}
    assert "n1: connection reset" in job.notes


# ── no live holder: the ladder ───────────────────────────────────────────────────────────────────────────


def lose_a_shard(job: Job) -> Job:
    job.crash(1, 3)
    return job


def two_by_two(**more: Any) -> Job:
    return Job(ranks=4, mesh=Mesh(2, 2), **more).training(step=20)


def test_a_lost_replica_set_falls_back_to_the_newest_complete_memory_checkpoint() -> None:
    job = two_by_two()
    for rank in range(4):
        job.tell(*[Sealed(Rank(rank), NodeId("n0"), checkpoint(step), slot) for slot, step in enumerate((10, 20))])
    job.tell(Persisted(checkpoint(10)))
    lose_a_shard(job).recovered()
    restores = job.commands(Restore).values()
    assert len(restores) == 4
    assert set(restores) == {Restore(job.generation, Step(20), None, checkpoint(20))}
    lost = "no live replica holds shards [1] any more, which ranks [1, 3] had"
    assert f"{lost}: all load step 20 from the newest memory checkpoint" in job.notes


def test_else_to_the_newest_persistent_one() -> None:
    job = two_by_two()
    job.tell(Sealed(Rank(0), NodeId("n0"), checkpoint(20)), Persisted(checkpoint(10)))
    lose_a_shard(job).run(RESUMING)
    assert set(job.commands(Settle).values()) == {Settle(job.generation, Step(10), Action.ROLLBACK)}
    assert set(job.commands(Resume).values()) == {Resume(job.generation, Step(10))}


def test_else_the_job_fails_and_says_what_is_lost() -> None:
    job = lose_a_shard(two_by_two())
    job.run()
    job.failed_because("no live replica holds shards [1] any more, which ranks [1, 3] had, and there is no checkpoint")


def lose_what_one_rank_had(job: Job) -> Job:
    """A replacement finds that the copy of its private state has gone too."""
    job.crash(1)
    job.run(RESUMING)
    job.tell(Verdict(job.worker(1), Cause.LOST, "LostError: the private state of this rank"))
    return job


def test_what_one_rank_had_for_itself_comes_from_a_checkpoint_though_replicas_live() -> None:
    job = Job(ranks=3).training(step=20)
    job.tell(Persisted(checkpoint(10)))
    lose_what_one_rank_had(job).recovered()
    lost = "nobody has any more what one rank had for itself"
    assert f"{lost}: all load step 10 from the newest persistent checkpoint" in job.notes
    assert {job.positions[job.worker(rank)].version for rank in range(3)} == {10}
    job.crash(2)
    job.recovered()
    order = job.commands(Restore)[job.worker(2)]
    assert isinstance(order, Restore)
    assert order.checkpoint is None, "the next failure is healed by replicas again"


def test_without_a_checkpoint_its_loss_ends_the_job() -> None:
    job = lose_what_one_rank_had(Job(ranks=3).training(step=20))
    job.run()
    job.failed_because("nobody has any more what one rank had for itself, and there is no checkpoint; rank 1")


def test_a_failure_while_a_checkpoint_is_loaded_begins_the_load_again() -> None:
    job = two_by_two()
    job.tell(Persisted(checkpoint(10)))
    lose_a_shard(job).run(RESTORING)
    job.crash(0)
    job.recovered()
    assert {job.positions[job.worker(rank)].version for rank in range(4)} == {10}


def cannot_load(job: Job) -> None:
    """All ranks have found together that what they were told to load is damaged."""
    order = job.commands(Restore)[job.worker(0)]
    assert isinstance(order, Restore)
    assert order.checkpoint is not None
    reports = [Unusable(worker, job.generation, order.checkpoint, "bit flip") for worker in job.machine.table]
    for worker in job.machine.table:
        job.at(HOLLOW, 0, job.machine.members.workers[worker].rank or 0)
    job.answers.clear()
    job.tell(*reports)


def test_a_checkpoint_that_cannot_be_loaded_gives_way_to_an_older_one() -> None:
    job = two_by_two(max_failures_per_step=1)
    job.tell(Persisted(checkpoint(10)), Persisted(checkpoint(20)))
    lose_a_shard(job).run(RESTORING)
    cannot_load(job)
    assert "the checkpoint of step 20 cannot be loaded (bit flip)" in job.notes
    job.recovered()
    assert set(job.commands(Resume).values()) == {Resume(job.generation, Step(10))}


def test_without_an_older_one_the_job_fails_and_names_it() -> None:
    job = two_by_two()
    job.tell(Persisted(checkpoint(10)))
    lose_a_shard(job).run(RESTORING)
    cannot_load(job)
    job.run()
    job.failed_because("the checkpoint of step 10 cannot be loaded (bit flip)")


# ── a job that goes on from a checkpoint ─────────────────────────────────────────────────────────────────


def test_a_resumed_job_loads_its_checkpoint_before_the_first_step() -> None:
    job = Job(ranks=2, resume=(checkpoint(30), checkpoint(20))).run(RESUMING)
    roles = {command.role for command in job.commands(Assign).values() if isinstance(command, Assign)}
    assert roles == {Role.LOADER}
    assert set(job.commands(Restore).values()) == {Restore(job.generation, Step(30), None, checkpoint(30))}
    assert set(job.commands(Resume).values()) == {Resume(job.generation, Step(30))}


def test_a_resumed_job_whose_checkpoint_is_damaged_begins_with_the_next_older_one() -> None:
    job = Job(ranks=2, resume=(checkpoint(30), checkpoint(20))).run(RESTORING)
    job.machine.table = tuple(job.machine.members.seated())
    cannot_load(job)
    job.run(RESUMING)
    assert set(job.commands(Resume).values()) == {Resume(job.generation, Step(20))}


def test_a_resumed_job_without_another_checkpoint_fails_and_names_it() -> None:
    job = Job(ranks=2, resume=(checkpoint(30),)).run(RESTORING)
    job.machine.table = tuple(job.machine.members.seated())
    cannot_load(job)
    job.run()
    job.failed_because("no other checkpoint to go on from; the checkpoint of step 30 cannot be loaded (bit flip)")


def test_a_failure_before_a_resumed_job_trains_loads_the_same_checkpoint() -> None:
    job = Job(ranks=2, resume=(checkpoint(30),)).run(RESTORING)
    job.crash(0)
    job.run(RESUMING)
    assert set(job.commands(Resume).values()) == {Resume(job.generation, Step(30))}


def test_one_whole_shard_left_needs_no_checkpoint() -> None:
    job = two_by_two()
    job.tell(Persisted(checkpoint(10)))
    job.crash(1, 2)
    job.run(RESUMING)
    assert set(job.commands(Resume).values()) == {Resume(job.generation, Step(21))}


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────


def test_max_failures_ends_the_job_with_the_last_failure() -> None:
    job = Job(max_failures=1).training()
    job.crash(1)
    job.recovered()
    job.tell(Verdict(job.worker(1), Cause.EXCEPTION, "ValueError: nan"))
    job.failed_because("more than max_failures=1; rank 1 (worker 2 on n0): raised an exception (ValueError: nan)")


def test_max_failures_per_step_ends_a_deterministic_crash_with_its_traceback() -> None:
    job = Job(max_failures_per_step=2).training()
    for _ in range(2):
        job.tell(Verdict(job.worker(1), Cause.EXCEPTION, "KeyError: 'y'"))
        job.run(RESUMING)
    job.tell(Verdict(job.worker(1), Cause.EXCEPTION, "KeyError: 'y'"))
    job.failed_because("more than max_failures_per_step=2 around step 1; rank 1")
    assert "KeyError: 'y'" in (job.end.reason if job.end else "")


def test_a_broken_rule_ends_the_job_at_once() -> None:
    """A replacement would break it again, or be made from a replica that hides it."""
    job = Job().training()
    job.tell(Verdict(job.worker(1), Cause.RULE, "RuleError: gradients were carried"))
    job.failed_because("rank 1 (worker 1 on n0): broke a rule (RuleError: gradients were carried)")


def test_failures_of_different_steps_do_not_add_up_to_the_limit_of_one_step() -> None:
    job = Job(max_failures_per_step=1).training()
    for _ in range(5):
        job.crash(1)
        job.recovered()


def test_a_false_alarm_does_not_count() -> None:
    job = Job(ranks=2, max_failures=1, max_failures_per_step=1).training()
    for _ in range(4):
        suspect = job.worker(1)
        job.silent.add(suspect)
        job.tell(Verdict(suspect, Cause.HANG))
        job.tell(Exited(suspect, -9, moved=True))
        job.recovered()
    assert job.machine.failures == 0
    assert "a false alarm" in job.notes


def test_an_exception_is_no_false_alarm_even_if_the_process_had_moved() -> None:
    job = Job(ranks=2).training()
    suspect = job.worker(1)
    job.silent.add(suspect)
    job.tell(Verdict(suspect, Cause.EXCEPTION), Exited(suspect, 1, moved=True))
    assert job.machine.failures == 1


# ── deadlines ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("phase", [STARTING, STOPPING, SETTLING, RESETTING, RESTORING])
def test_every_wait_has_a_deadline(phase: JobPhase) -> None:
    job = Job(ranks=2)
    if phase is not STARTING:
        job.training()
        job.crash(1)
        job.run(phase)
    armed = [effect for effect in job.effects if isinstance(effect, Arm)]
    assert armed[-1] == Arm(job.generation, phase, getattr(job.config, f"{_limit(phase)}_s"))


def _limit(phase: JobPhase) -> str:
    return {STARTING: "start", STOPPING: "stop", SETTLING: "settle", RESETTING: "reset", RESTORING: "restore"}[phase]


def test_who_does_not_answer_a_stop_in_time_is_replaced() -> None:
    job = Job(ranks=3).training()
    frozen = job.worker(0)
    job.silent.add(frozen)
    job.crash(2)
    job.run()
    assert job.phase is STOPPING
    assert Kill(NodeId("n0"), frozen) in job.expire()
    job.tell(Exited(frozen, -9))
    job.recovered()
    assert "did not answer in time (owed an answer in STOPPING of generation 2)" in job.notes


@pytest.mark.parametrize("phase", [RESETTING, RESTORING])
def test_where_all_wait_for_all_a_deadline_blames_nobody(phase: JobPhase) -> None:
    job = Job(ranks=3).training()
    job.crash(2)
    job.run(phase)
    killed = [effect for effect in job.expire() if isinstance(effect, Kill)]
    assert not killed
    assert (job.phase, job.generation) == (STOPPING, 3)


def test_a_rank_waits_for_a_node_up_to_a_limit() -> None:
    job = Job(ranks=2, nodes=2, devices=1).training()
    job.tell(NodeLost(NodeId("n1")))
    job.run()
    assert job.phase is SETTLING
    job.expire()
    job.failed_because("no free device for ranks [1] in time; rank 1")


def test_a_job_whose_nodes_do_not_come_could_not_start() -> None:
    machine = Machine(JobConfig(ranks=2, nodes=2, start_s=30.0))
    machine.start()
    notes = [effect.text for effect in machine.handle(NodeJoined(NodeId("n0"), ("d0",))) if isinstance(effect, Note)]
    assert notes == ["n0 has come: 1 of 2 nodes"]
    assert machine.handle(Deadline(machine.generation, STARTING)) == [
        End(EXIT_USAGE, "1 of 2 nodes came within 30 s: start an agent on each node, or ask for fewer nodes")
    ]


def test_a_job_that_never_had_enough_devices_could_not_start() -> None:
    machine = Machine(JobConfig(ranks=2))
    machine.start()
    machine.handle(NodeJoined(NodeId("n0"), ("d0",)))
    machine.handle(Registered(WorkerId(0)))
    machine.handle(Protected(WorkerId(0), Coordinate(0, 0)))
    end = machine.handle(Deadline(machine.generation, STARTING))
    assert end == [End(EXIT_USAGE, "no free device for ranks [1] in time: add devices, or ask for fewer ranks")]


def test_a_node_that_comes_in_time_is_used() -> None:
    job = Job(ranks=2, nodes=2, devices=1).training()
    job.tell(NodeLost(NodeId("n1")))
    job.run()
    job.tell(NodeJoined(NodeId("n2"), ("d0",)))
    job.recovered()
    assert job.node_of(1) == "n2"


def test_a_deadline_of_a_start_waits_for_devices_that_are_still_in_use() -> None:
    job = Job(ranks=2)
    stuck = job.worker(0)
    job.silent.add(stuck)
    job.crash(1)
    job.run()
    assert Arm(job.generation, STARTING, job.config.start_s) in job.expire()
    job.tell(FenceFailed(stuck))
    job.expire()
    job.failed_because("no free device for ranks [1] in time")


def test_a_deadline_of_a_phase_that_is_over_changes_nothing() -> None:
    job = Job(ranks=3).training()
    job.crash(2)
    job.run(RESETTING)
    before = job.machine.freeze()
    assert job.tell(Deadline(job.generation, STOPPING)) == []
    assert job.machine.freeze() == before


def test_a_failed_collective_waits_for_the_verdict_that_explains_it() -> None:
    job = Job(ranks=2).training()
    effects = job.tell(Broken(job.worker(0), job.generation, "connection closed"))
    assert job.phase is RUNNING
    assert Arm(job.generation, RUNNING, job.config.grace_s) in effects
    assert job.tell(Broken(job.worker(1), job.generation)) == []
    job.tell(Deadline(job.generation, RUNNING))
    assert job.phase is STOPPING
    job.recovered()


def test_when_nobody_moves_the_step_is_redone_once() -> None:
    job = Job(ranks=2).training()
    job.tell(Stalled(job.generation, "rank 0 in all_reduce, rank 1 in broadcast"))
    job.run(RESUMING)
    job.tell(Stalled(job.generation, "rank 0 in all_reduce, rank 1 in broadcast"))
    job.failed_because("stalled again after a redo; nobody moves: rank 0 in all_reduce")


# ── devices and nodes that are not to be trusted ─────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["verdict", "plugin"])
def test_a_sick_device_is_not_used_again(how: str) -> None:
    job = Job(ranks=2, devices=3).training()
    record = job.machine.members.workers[job.worker(1)]
    if how == "verdict":
        job.tell(Verdict(record.id, Cause.DEVICE, "Xid 79"))
    else:
        job.tell(DeviceSick(NodeId("n0"), record.device, "Xid 79"))
    job.recovered()
    assert job.machine.members.workers[job.worker(1)].device == "d2"
    assert record.device not in job.machine.members.nodes[NodeId("n0")].free


def test_a_sick_device_without_a_user_interrupts_nobody() -> None:
    job = Job(ranks=2, devices=3).training()
    job.tell(DeviceSick(NodeId("n0"), "d2"), DeviceSick(NodeId("never seen"), "d0"))
    assert job.phase is RUNNING
    assert job.machine.members.nodes[NodeId("n0")].free == ()


def test_a_sick_device_whose_user_is_being_killed_is_lost_too() -> None:
    job = Job(ranks=2).training()
    record = job.machine.members.workers[job.worker(1)]
    job.tell(Verdict(record.id, Cause.HANG), DeviceSick(NodeId("n0"), record.device))
    job.run()
    assert job.phase is SETTLING
    assert not job.machine.members.open_nodes


def test_a_process_that_cannot_be_killed_costs_its_device_and_not_the_job() -> None:
    job = Job(ranks=2, devices=3).training()
    stuck = job.worker(1)
    job.silent.add(stuck)
    job.tell(Verdict(stuck, Cause.FROZEN), FenceFailed(stuck))
    job.recovered()
    assert job.machine.members.workers[job.worker(1)].device == "d2"


def test_a_suspect_node_is_avoided() -> None:
    job = Job(ranks=2, nodes=2).training()
    node = job.node_of(1)
    job.tell(Verdict(job.worker(1), Cause.FROZEN))
    job.recovered()
    assert job.node_of(1) != node


def test_a_survivor_that_settles_elsewhere_is_replaced() -> None:
    job = Job(ranks=3).training()
    job.crash(2)
    job.run(SETTLING)
    liar = job.worker(1)
    job.tell(Settled(liar, job.generation, Position(IDLE, Step(5))))
    job.recovered()
    assert job.worker(1) != liar
    assert "settled at IDLE(5) instead of step 1" in job.notes


def test_a_newcomer_that_restores_another_step_is_replaced() -> None:
    job = Job(ranks=2).training()
    job.crash(1)
    job.run(RESTORING)
    job.answers.clear()
    job.tell(Restored(job.worker(1), job.generation, Step(9)))
    assert "restored step 9, not 1" in job.notes
    job.recovered()


def test_a_holder_that_cannot_reach_the_target_is_replaced() -> None:
    job = Job(ranks=3).training(step=6)
    job.at(IDLE, 9, 0)
    job.at(FORWARD, 7, 1)
    job.crash(2)
    job.recovered()
    assert "its position breaks the protocol: 1 at FORWARD(7)" in job.notes


# ── the end ──────────────────────────────────────────────────────────────────────────────────────────────


def end_of_loop(job: Job, step: int = 1) -> None:
    job.tell(*[Ended(job.worker(rank), job.generation, Step(step)) for rank in range(job.config.ranks)])


def test_all_are_released_when_the_last_one_has_ended() -> None:
    job = Job(ranks=2).training()
    job.tell(Ended(job.worker(0), job.generation, Step(1)))
    assert job.phase is RUNNING
    job.tell(Ended(job.worker(1), job.generation, Step(1)))
    assert job.phase is ENDING
    assert len(job.commands(Release)) == 2
    job.run()
    assert job.phase is DONE
    assert job.end == End(EXIT_DONE, "every rank has finished")


def test_ranks_that_leave_the_loop_at_different_steps_are_an_error() -> None:
    job = Job(ranks=2).training()
    job.tell(Ended(job.worker(0), job.generation, Step(1)), Ended(job.worker(1), job.generation, Step(2)))
    job.failed_because("the ranks left the loop at different steps: {0: 1, 1: 2}")


def test_until_all_have_ended_each_one_is_a_donor() -> None:
    job = Job(ranks=2).training()
    job.tell(Ended(job.worker(0), job.generation, Step(2)))
    job.at(ENDED, 2, 0)
    job.crash(1)
    job.run(RESUMING)
    resumes = job.commands(Resume)
    assert resumes[job.worker(1)] == Resume(job.generation, Step(2), over=True)
    end_of_loop(job, 2)
    job.run()
    assert job.phase is DONE


def test_a_failure_after_the_loop_goes_back_to_the_checkpoint_of_its_end() -> None:
    job = Job(ranks=2).training()
    job.tell(Persisted(checkpoint(1)))
    end_of_loop(job)
    job.crash(1)
    job.run(RESUMING)
    roles = {command.role for command in job.commands(Assign).values() if isinstance(command, Assign)}
    assert Role.LOADER in roles
    assert job.commands(Resume)[job.worker(0)] == Resume(job.generation, Step(1), over=True)
    end_of_loop(job)
    job.run()
    assert job.phase is DONE


def test_a_failure_after_the_loop_without_such_a_checkpoint_fails_the_job() -> None:
    job = Job(ranks=2).training()
    job.tell(Persisted(checkpoint(0)))
    end_of_loop(job)
    job.crash(1)
    job.failed_because("failed after the last step, which no checkpoint holds; rank 1")


def test_a_script_without_a_loop_is_done_when_all_have_finished() -> None:
    job = Job(ranks=2)
    job.answers.clear()
    job.tell(Exited(job.worker(0), 0), Exited(job.worker(1), 0))
    assert job.end == End(EXIT_DONE, "every rank has finished")


def test_a_rank_that_finishes_while_others_wait_in_protect_fails_the_job() -> None:
    job = Job(ranks=2)
    job.tell(Registered(job.worker(0)), Registered(job.worker(1)))
    job.tell(Exited(job.worker(0), 0), Protected(job.worker(1), job.mesh.coordinate(Rank(1))))
    job.failed_because("ranks [0] ended while the others wait in protect()")


@pytest.mark.parametrize("phase", [STARTING, RUNNING, STOPPING, SETTLING, RESETTING, RESTORING, RESUMING, ENDING])
def test_a_person_can_stop_the_job_in_every_phase(phase: JobPhase) -> None:
    job = in_phase(phase)
    assert job.tell(Interrupted()) == [End(EXIT_INTERRUPTED, "interrupted")]
    assert job.phase is FAILED


def test_nothing_happens_after_the_end() -> None:
    job = Job(ranks=2)
    job.tell(Interrupted())
    assert job.tell(NodeJoined(NodeId("n9"), ("d0",)), Stalled(Generation(99))) == []


# ── late, again, and of an old generation ────────────────────────────────────────────────────────────────


def in_phase(phase: JobPhase) -> Job:
    """A job of three ranks in this phase; ranks 0 and 1 are old, rank 2 is new where that makes sense."""
    job = Job(ranks=3)
    if phase is STARTING:
        return job
    job.training()
    if phase is ENDING:
        end_of_loop(job)
    elif phase is not RUNNING:
        job.crash(2)
        job.run(phase)
    assert job.phase is phase
    return job


def old_reports(job: Job) -> list[Event]:
    worker, old = job.worker(0), Generation(job.generation - 1)
    return [
        Stopped(worker, old, Position(COMMITTED, Step(9))),
        Settled(worker, old, Position(IDLE, Step(9))),
        Connected(worker, old),
        Restored(worker, old, Step(9)),
        Committed(worker, old, Step(9)),
        Ended(worker, old, Step(9)),
        Broken(worker, old),
        Stalled(old),
        Deadline(old, job.phase),
    ]


@pytest.mark.parametrize("phase", [STARTING, RUNNING, STOPPING, SETTLING, RESETTING, RESTORING, RESUMING, ENDING])
def test_reports_of_an_old_generation_change_nothing(phase: JobPhase) -> None:
    job = in_phase(phase)
    for report in old_reports(job):
        before = job.machine.freeze()
        assert job.tell(report) == []
        assert job.machine.freeze() == before


@pytest.mark.parametrize("phase", [RUNNING, STOPPING, SETTLING, RESETTING, RESTORING, RESUMING])
def test_reports_of_the_dead_change_nothing(phase: JobPhase) -> None:
    job = in_phase(phase)
    dead = job.worker(1)
    job.crash(1)
    for report in (Registered(dead), Stopped(dead, job.generation, Position(IDLE, Step(9))), Exited(dead, -9)):
        before = job.machine.freeze()
        assert job.tell(report) == []
        assert job.machine.freeze() == before


def test_every_report_may_come_twice() -> None:
    once, twice = Job(ranks=3).training(), Job(ranks=3).training()
    for job, times in ((once, 1), (twice, 2)):
        job.crash(2)
        while job.answers:
            event = job.answers.popleft()
            for _ in range(times):
                job.tell(event)
    assert once.phase is RESUMING
    assert once.machine.freeze() == twice.machine.freeze()


def test_an_event_that_the_table_does_not_know_is_an_error_with_state_event_and_history() -> None:
    job = Job(ranks=2).training()
    strange = Connected(job.worker(0), Generation(job.generation + 1))
    with pytest.raises(InvalidTransition) as caught:
        job.tell(strange)
    assert caught.value.event == strange
    text = str(caught.value)
    assert text.startswith(f"no transition from RUNNING of generation 1 on {strange}")
    assert f"  {job.log[-2]}" in text


def test_after_an_invalid_transition_the_job_goes_on() -> None:
    job = Job(ranks=2)
    before = job.machine.freeze()
    with pytest.raises(InvalidTransition, match="no transition from STARTING"):
        job.tell(Committed(job.worker(0), job.generation, Step(0)))
    assert job.machine.freeze() == before
    job.training()


# ── agents that reconnect, controllers that restart ──────────────────────────────────────────────────────


def hello(job: Job, *gone: WorkerId) -> NodeJoined:
    alive = set(job.machine.members.workers) - set(job.machine.fencing) - set(gone)
    return NodeJoined(NodeId("n0"), job.devices, tuple(sorted(alive)))


@pytest.mark.parametrize("phase", [STARTING, RUNNING, STOPPING, SETTLING, RESETTING, RESTORING, RESUMING, ENDING])
def test_the_state_is_rebuilt_by_replaying_the_events(phase: JobPhase) -> None:
    job = in_phase(phase)
    again = Machine(job.config)
    effects = [*again.start(), *(effect for event in job.log for effect in again.handle(event))]
    assert again.freeze() == job.machine.freeze()
    assert effects == job.effects
    assert Machine.thaw(job.config, job.machine.freeze()).freeze() == job.machine.freeze()


@pytest.mark.parametrize("phase", [STOPPING, SETTLING, RESETTING, RESTORING, RESUMING, ENDING])
def test_a_restarted_controller_sends_again_what_may_be_lost(phase: JobPhase) -> None:
    job = in_phase(phase)
    job.answers.clear()
    timers = job.tell(Restarted())
    assert ArmReturn(job.config.return_s) in timers
    job.tell(hello(job))
    if phase is ENDING:
        job.run()
        assert job.phase is DONE
    else:
        job.answers.extend(Registered(worker) for worker in job.machine.members.workers)
        job.recovered()


def test_a_restarted_controller_keeps_its_deadline() -> None:
    job = in_phase(SETTLING)
    assert Arm(job.generation, SETTLING, job.config.settle_s) in job.tell(Restarted())


def test_a_restarted_controller_keeps_waiting_for_the_verdict() -> None:
    job = Job(ranks=2).training()
    job.tell(Broken(job.worker(0), job.generation))
    assert Arm(job.generation, RUNNING, job.config.grace_s) in job.tell(Restarted())


def test_an_exit_while_the_controller_was_away_is_found() -> None:
    job = Job(ranks=2).training()
    job.tell(Restarted(), hello(job, job.worker(1)))
    assert "gone while the controller was away" in job.notes
    job.recovered()


def test_an_order_to_start_that_may_be_lost_is_given_again() -> None:
    job = Job(ranks=2)
    last = max(job.machine.members.workers)
    effects = job.tell(Restarted(), hello(job, last))
    assert [effect.worker for effect in effects if isinstance(effect, Spawn)] == [last]
    assert job.machine.failures == 0
    job.training()


def test_a_process_that_the_controller_does_not_know_is_killed() -> None:
    job = Job(ranks=2).training()
    job.tell(Restarted())
    alive = tuple(job.machine.members.workers)
    assert Kill(NodeId("n0"), WorkerId(77)) in job.tell(NodeJoined(NodeId("n0"), job.devices, (*alive, WorkerId(77))))


def test_a_kill_that_may_be_lost_is_asked_again() -> None:
    job = Job(ranks=2).training()
    suspect = job.worker(1)
    job.silent.add(suspect)
    job.tell(Verdict(suspect, Cause.HANG), Restarted())
    alive = tuple(job.machine.members.workers)
    assert Kill(NodeId("n0"), suspect) in job.tell(NodeJoined(NodeId("n0"), job.devices, alive))


def test_a_node_that_does_not_come_back_in_time_is_lost() -> None:
    job = Job(ranks=2, nodes=2).training()
    job.tell(Restarted(), NodeJoined(NodeId("n0"), job.devices, (job.worker(0),)), Absent())
    assert "n1: did not come back to the restarted controller" in job.notes
    job.recovered()
    assert job.node_of(1) == "n0"


def test_an_agent_that_reconnects_to_a_running_job_disturbs_nobody() -> None:
    job = Job(ranks=2).training()
    job.tell(hello(job))
    assert job.phase is RUNNING
    assert job.machine.failures == 0


# ── every row of the table is in use ─────────────────────────────────────────────────────────────────────


def test_every_row_of_the_table_is_reached() -> None:
    """By the explorer's quick scopes, or by an event that this file tells in that phase."""
    quick = (
        Scope(ranks=2, standbys=0, failures=1, steps=1, reduce=False),
        Scope(ranks=2, standbys=0, failures=1, steps=1, nodes=2, kinds=(Kind.NODE, Kind.RESTART, Kind.TIMER)),
        Scope(ranks=1, standbys=1, failures=2, steps=1, kinds=(Kind.CRASH, Kind.RESTART), checkpoint=True),
        Scope(ranks=1, standbys=0, failures=2, steps=1, kinds=(Kind.CRASH, Kind.DAMAGE), checkpoint=True),
    )
    reached = {(event, before) for scope in quick for event, before, _ in explore(scope).rows}
    for phase in JobPhase:
        if phase not in (DONE, FAILED):
            reached |= {(type(event).__name__, phase.name) for event in told_in_every_phase(phase)}
    missing = {(event.__name__, phase.name) for event, phase in TABLE} - reached
    assert not missing


def told_in_every_phase(phase: JobPhase) -> list[Event]:
    """Events of the outside world and late answers, each in a fresh job: none is an invalid transition."""
    worker, generation, at = in_phase(phase).worker(0), in_phase(phase).generation, Position(IDLE, Step(1))
    events: list[Event] = [
        NodeJoined(NodeId("n9"), ("d0",)),
        NodeLost(NodeId("n0")),
        Verdict(worker, Cause.HANG),
        Exited(worker, 1),
        DeviceSick(NodeId("n0"), "d0"),
        FenceFailed(worker),
        Registered(worker),
        Protected(worker, Mesh(3).coordinate(Rank(0))),
        Broken(worker, generation),
        Stalled(generation),
        Deadline(generation, phase),
        Restarted(),
        Absent(),
        Sealed(Rank(0), NodeId("n0"), checkpoint(1)),
        Persisted(checkpoint(1)),
        Interrupted(),
    ]
    if phase is not STARTING:
        events += [Stopped(worker, generation, at)]
    if phase not in (STARTING, STOPPING):
        events += [Settled(worker, generation, at)]
    if phase not in (STARTING, STOPPING, SETTLING):
        events += [Connected(worker, generation)]
    if phase not in (STARTING, STOPPING, SETTLING, RESETTING):
        events += [Restored(worker, generation, Step(1))]
    if phase in (RUNNING, RESUMING, ENDING):
        events += [Committed(worker, generation, Step(1)), Ended(worker, generation, Step(1))]
    for event in events:
        in_phase(phase).tell(event)
    return events
