"""A recovery leaves one record, with what failed, what was decided, and where the time went."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.core.test_machine import checkpoint
from tests.observe.conftest import SIZE_BYTES, START_S, RecordedJob

from everstep.core.events import (
    Broken,
    Cause,
    Committed,
    Connected,
    Deadline,
    DeviceSick,
    Ended,
    Event,
    Exited,
    Interrupted,
    JobPhase,
    NodeLost,
    Persisted,
    Position,
    Protected,
    Registered,
    Restarted,
    Restored,
    Settled,
    Stalled,
    Stopped,
    Verdict,
)
from everstep.core.machine import Machine
from everstep.observe.records import Decision, Donor, Failure, Outcome, Recovery, Replacement
from everstep.types import Step, WorkerPhase

STARTING, RUNNING, STOPPING, SETTLING, RESETTING, RESTORING, RESUMING, ENDING, DONE, FAILED = JobPhase
IDLE, FORWARD, BACKWARD = WorkerPhase.IDLE, WorkerPhase.FORWARD, WorkerPhase.BACKWARD
READY, COMMITTED = WorkerPhase.READY, WorkerPhase.COMMITTED
KILLED = "killed by SIGKILL in COMMITTED of step 7"


def trained(steps: int = 7, ranks: int = 3, standbys: int = 1, **options: int) -> RecordedJob:
    """A job in Forward of this step; nothing has failed yet."""
    job = RecordedJob(ranks, standbys, **options)
    job.training(steps - 1)
    assert job.records == []
    return job


def parts(record: Recovery) -> float:
    names = ("detect", "stop", "decide", "settle", "reset", "restore", "first_step")
    return sum(float(getattr(record, f"t_{name}_s")) for name in names)


# ── one failure ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_kill_in_the_optimizer_step_leaves_a_whole_record() -> None:
    job = trained()
    job.pace = {Stopped: 0.01, Protected: 0.1, Settled: 0.001, Connected: 0.02, Restored: 0.04, Committed: 0.5}
    job.at(READY, 7)
    job.at(COMMITTED, 7, 0)
    failed, began = job.worker(2), job.now
    job.tell(Exited(failed, -9, KILLED, Position(COMMITTED, Step(7)), quiet_s=0.03))
    job.recovered()
    failure = Failure("EXIT", KILLED, 2, 2, "n0", "COMMITTED", 7, Replacement(3, "n0", standby=True))
    assert job.record == Recovery(
        number=0,
        time=began,
        generation=2,
        generations=(2,),
        cause="EXIT",
        evidence=KILLED,
        rank=2,
        node="n0",
        phase="COMMITTED",
        step=7,
        false_alarm=False,
        target=8,
        decision=Decision.FINISH,
        reason=(
            "of 2 live holders 1 had passed the barrier of step 7, so its update counts: "
            "2 finish it and all go on with step 8"
        ),
        replaced_by=Replacement(3, "n0", standby=True),
        donors=(Donor(worker=0, rank=0, to=3),),
        bytes=SIZE_BYTES,
        t_detect_s=0.03,
        t_stop_s=0.02,
        t_decide_s=0.0,
        t_settle_s=0.102,
        t_script_s=0.12,
        t_reset_s=0.06,
        t_restore_s=0.04,
        t_first_step_s=0.5,
        t_total_s=0.752,
        steps_redone=0,
        outcome=Outcome.RECOVERED,
        failures=(failure,),
    )
    assert job.record.sentence == (
        "recovered in 0.75 s: rank 2 (killed by SIGKILL in COMMITTED of step 7) → standby 3; all go on with step 8 "
        "(detect 0.03, stop 0.02, decide 0.00, settle 0.10, reset 0.06, restore 0.04, first_step 0.50)"
    )


def test_in_forward_the_step_is_done_again_by_a_new_process() -> None:
    job = trained(standbys=0)
    job.tell(Exited(job.worker(1), -9, "killed", Position(FORWARD, Step(7))))
    job.recovered()
    record = job.record
    assert (record.decision, record.target, record.steps_redone) == (Decision.REDO, 7, 1)
    assert record.replaced_by == Replacement(3, "n0", standby=False)
    assert "all redo step 7" in record.sentence
    assert "→ new worker 3" in record.sentence


def test_the_script_of_a_new_process_counts_from_init() -> None:
    job = trained(standbys=0)
    job.pace = {Registered: 2.0, Protected: 0.25}
    job.crash(1)
    job.recovered()
    assert job.record.t_script_s == 0.25


def test_waiting_for_the_dead_to_go_belongs_to_the_decision() -> None:
    job = trained()
    victim = job.worker(2)
    job.silent.add(victim)
    job.tell(Verdict(victim, Cause.HANG, "has not moved", Position(BACKWARD, Step(7)), quiet_s=2.5))
    job.run()
    job.now += 0.2
    job.tell(Exited(victim, -9))
    job.recovered()
    assert job.record.t_decide_s == pytest.approx(0.2)
    assert job.record.t_detect_s == 2.5
    assert job.record.t_total_s == pytest.approx(2.7)


def test_a_false_alarm_is_marked() -> None:
    job = trained()
    victim = job.worker(2)
    job.silent.add(victim)
    job.tell(Verdict(victim, Cause.FROZEN, "no sign of life", Position(BACKWARD, Step(7))))
    job.tell(Exited(victim, -9, moved=True))
    job.recovered()
    assert job.record.false_alarm
    assert job.record.failures[0].false_alarm
    assert "a false alarm" in job.record.sentence


def test_who_was_on_a_lost_node_is_named_with_his_place() -> None:
    job = trained(ranks=2, standbys=0, nodes=2, devices=2)
    victim = job.worker(1)
    where = ((victim, Position(BACKWARD, Step(7))),)
    job.tell(NodeLost(job.node_of(1), "no heartbeat for 3.0 s", 3.0, where))
    job.recovered()
    record = job.record
    assert (record.cause, record.node, record.phase, record.step) == ("NODE", "n1", "BACKWARD", 7)
    assert record.t_detect_s == 3.0
    assert record.replaced_by is not None
    assert record.replaced_by.node == "n0"


def test_where_a_holder_was_stays_open_when_nobody_saw_it() -> None:
    job = trained(devices=4)
    job.tell(DeviceSick(job.node_of(0), "d0", "ECC"))
    job.recovered()
    assert (job.record.cause, job.record.phase, job.record.step) == ("DEVICE", None, None)


def test_of_a_broken_collective_that_nobody_explains_the_grace_is_detection() -> None:
    job = trained()
    job.tell(Broken(job.worker(0), job.generation, "connection reset"))
    job.now += 2.0
    job.tell(Deadline(job.generation, RUNNING))
    job.recovered()
    record = job.record
    assert (record.cause, record.rank, record.replaced_by) == ("COLLECTIVE", None, None)
    assert record.t_detect_s == 2.0
    assert record.sentence.startswith("recovered in 2.00 s: a collective failed and nobody died; all redo step 7")


def test_a_broken_collective_that_a_commit_follows_explains_nothing_later() -> None:
    job = trained()
    job.tell(Broken(job.worker(0), job.generation))
    job.crash(1)
    job.recovered()
    job.tell(Broken(job.worker(0), job.generation))
    job.now += 2.0
    job.tell(Deadline(job.generation, RUNNING))
    job.recovered()
    assert [record.t_detect_s for record in job.records] == [0.0, 2.0]


def test_a_stall_blames_nobody() -> None:
    job = trained()
    job.tell(Stalled(job.generation, "ranks 0, 1 wait in step 7", 10.0))
    job.recovered()
    assert job.record.failures == (Failure("STALLED", "ranks 0, 1 wait in step 7", None, None, None, None, None),)
    assert job.record.t_detect_s == 10.0


def test_the_loss_of_a_standby_is_no_recovery() -> None:
    job = trained()
    [standby] = job.machine.members.pool
    job.tell(Exited(standby, -9))
    assert job.records == []
    assert job.recorder.take(Restarted(), job.machine, [], job.now) is None


# ── several failures ─────────────────────────────────────────────────────────────────────────────────────


def test_two_at_once_are_one_recovery() -> None:
    job = trained(standbys=1)
    first, second = job.worker(0), job.worker(2)
    job.tell(Exited(first, -9, "one", Position(FORWARD, Step(7))), Exited(second, -9, "two"))
    job.recovered()
    assert [failure.rank for failure in job.record.failures] == [0, 2]
    assert {donor.worker for donor in job.record.donors} == {1}
    assert [donor.to for donor in job.record.donors] == [
        failure.replaced_by.worker for failure in job.record.failures if failure.replaced_by
    ]
    assert job.record.bytes == 2 * SIZE_BYTES
    assert job.record.generations == (2,)


@pytest.mark.parametrize("phase", [SETTLING, RESETTING, RESTORING, RESUMING])
def test_a_failure_during_the_recovery_goes_on_with_the_same_record(phase: JobPhase) -> None:
    job = trained(standbys=2)
    job.pace = {Stopped: 0.01, Protected: 0.1, Connected: 0.02, Restored: 0.04, Committed: 0.5}
    job.tell(Exited(job.worker(2), -9, "first", Position(FORWARD, Step(7)), quiet_s=0.03))
    began = job.now
    job.run(phase)
    job.crash(2)
    job.recovered()
    record = job.record
    assert [failure.worker for failure in record.failures] == [2, 3]
    assert [failure.replaced_by for failure in record.failures] == [
        Replacement(3, "n0", standby=True),
        Replacement(4, "n0", standby=True),
    ]
    assert (record.generation, record.generations) == (3, (2, 3))
    assert record.evidence == "first"
    assert record.steps_redone == 1
    assert [donor.to for donor in record.donors] == [4]
    assert record.t_total_s == pytest.approx(job.now - began + 0.03)
    assert parts(record) == pytest.approx(record.t_total_s)


def test_the_next_recovery_is_another_record() -> None:
    job = trained()
    for _ in range(2):
        job.crash(1)
        job.recovered()
    assert [record.number for record in job.records] == [0, 1]
    assert [record.generations for record in job.records] == [(2,), (3,)]
    assert job.recorder.count == 2
    assert job.recorder.last == job.records[-1]


# ── other ways ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_rollback_tells_how_many_steps_are_done_again() -> None:
    job = trained(ranks=2, standbys=0)
    job.tell(Persisted(checkpoint(4)))
    job.tell(*[Exited(job.worker(rank), -9, where=Position(FORWARD, Step(7))) for rank in (0, 1)])
    job.recovered()
    record = job.record
    assert (record.decision, record.target, record.steps_redone) == (Decision.ROLLBACK, 4, 4)
    assert "newest persistent checkpoint" in record.reason
    assert (record.donors, record.bytes) == ((), 2 * SIZE_BYTES)


def test_before_protect_all_start_again() -> None:
    job = RecordedJob(2)
    job.pace = {Registered: 0.1, Protected: 0.2, Committed: 0.5}
    job.tell(Exited(job.worker(1), 1, "ImportError", Position(WorkerPhase.SPAWNED, Step(-1)), quiet_s=0.04))
    job.training()
    record = job.record
    assert (record.decision, record.target, record.steps_redone) == (Decision.RESTART, 0, 0)
    assert (record.phase, record.step, record.generations) == ("SPAWNED", None, (2,))
    assert record.replaced_by == Replacement(job.worker(1), "n0", standby=False)
    assert "protect()" in record.reason
    assert "all started again" in record.sentence
    assert record.t_script_s == pytest.approx(0.4)
    assert record.t_first_step_s == 0.5
    assert parts(record) == pytest.approx(record.t_total_s)


def test_a_rank_that_is_restarted_twice_is_replaced_by_its_last_process() -> None:
    job = RecordedJob(2)
    job.crash(1)
    while job.phase is STARTING and len(job.machine.members.seats) < 2:
        job.tell(job.answers.popleft())
    job.crash(0)
    job.training()
    by = [failure.replaced_by.worker for failure in job.record.failures if failure.replaced_by]
    assert by == [job.worker(1), job.worker(0)]
    assert job.record.generations == (2, 3)


def test_a_script_without_protect_recovers_by_ending_well() -> None:
    job = RecordedJob(1)
    job.crash(0)
    job.answers.clear()
    job.tell(Exited(job.worker(0), 0))
    assert job.record.outcome is Outcome.DONE
    assert "protect()" in job.record.reason
    assert job.record.sentence.startswith("the job is done, 0.00 s after: rank 0 (exit code -9) → new worker 1; all st")


def test_who_has_left_the_loop_needs_no_commit() -> None:
    job = trained(ranks=2)
    job.at(WorkerPhase.ENDED, 7)
    job.tell(Ended(job.worker(0), job.generation, Step(7)))
    job.crash(1)
    job.run(RESUMING)
    job.tell(*[Ended(job.worker(rank), job.generation, Step(7)) for rank in (0, 1)])
    assert job.record.outcome is Outcome.RECOVERED


# ── the job ends inside a recovery ───────────────────────────────────────────────────────────────────────


def nobody_left(job: RecordedJob) -> None:
    job.crash(0, 1, 2)
    job.run()


def too_often(job: RecordedJob) -> None:
    for _ in range(4):
        job.crash(1)
        job.run()


@pytest.mark.parametrize("end", [nobody_left, too_often])
def test_a_job_that_fails_in_a_recovery_says_so(end: Callable[[RecordedJob], None]) -> None:
    job = trained(max_failures_per_step=3)
    end(job)
    assert job.phase is FAILED
    assert job.record.outcome is Outcome.FAILED
    assert job.end is not None
    assert job.record.reason == job.end.reason
    assert job.record.sentence.startswith("not recovered, the job failed after")


def test_a_failure_too_many_has_a_record_too() -> None:
    job = trained(max_failures=0)
    job.crash(1)
    assert (job.record.outcome, job.record.generations, job.record.decision) == (Outcome.FAILED, (), None)


def test_an_interruption_is_no_failure_of_the_recovery() -> None:
    job = trained()
    job.crash(1)
    job.tell(Interrupted())
    assert job.record.outcome is Outcome.INTERRUPTED


# ── the recorder itself ──────────────────────────────────────────────────────────────────────────────────


def test_a_clock_that_is_set_back_makes_no_negative_times() -> None:
    job = trained()
    job.crash(1)
    job.now = START_S - 50
    job.recovered()
    assert job.record.t_total_s >= 0
    assert job.record.t_stop_s == 0


def test_reports_that_come_twice_change_nothing() -> None:
    job = trained()
    job.crash(1)
    job.run(RESUMING)
    newcomer = job.worker(1)
    for event in list(job.log):
        if isinstance(event, Restored | Protected) and event.worker == newcomer:
            job.tell(event)
    job.recovered()
    assert job.record.bytes == SIZE_BYTES


@pytest.mark.parametrize("seed", range(40))
def test_any_story_gives_records_whose_parts_add_up_and_gives_them_again(seed: int) -> None:
    """Random failures at random moments; then the same events through a new machine and a new recorder."""
    draw = random.Random(seed)
    job = RecordedJob(3, draw.randrange(3), max_failures_per_step=20)
    step = 0
    for _ in range(120):
        job.now += draw.random() / 100
        if job.phase in (DONE, FAILED):
            break
        if draw.random() < 0.12 and job.machine.members.seats:
            victim = job.worker(draw.choice(sorted(job.machine.members.seats)))
            where = Position(draw.choice([FORWARD, READY, COMMITTED]), Step(job.machine.target))
            lost: list[Event] = [
                Exited(victim, -9, "killed", where, quiet_s=0.01),
                Verdict(victim, Cause.HANG, "hangs", where, quiet_s=2.0),
                Deadline(job.generation, job.phase),
            ]
            job.tell(draw.choice(lost))
        elif job.answers:
            job.tell(job.answers.popleft())
        elif job.phase is RESUMING:
            job.tell(Committed(job.worker(0), job.generation, Step(job.machine.target)))
            step = job.machine.target
            job.at(draw.choice([FORWARD, READY, COMMITTED]), step)
    assert all(parts(record) == pytest.approx(record.t_total_s, abs=1e-5) for record in job.records)
    assert [record.number for record in job.records] == list(range(len(job.records)))
    assert replayed(job) == job.records


def replayed(job: RecordedJob) -> list[Recovery]:
    fresh = type(job.recorder)()
    machine = Machine(job.config)
    machine.start()
    found = [fresh.take(event, machine, machine.handle(event), time_s) for event, time_s in job.story]
    return [record for record in found if record is not None]
