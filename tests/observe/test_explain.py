"""A recovery in sentences: each part of the record is told, and nothing that is not in it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.observe.conftest import RecordedJob

from everstep.core.events import Committed, Connected, Exited, Position, Protected, Restored, Settled, Stopped
from everstep.observe.explain import Section, explain, headline, ranks
from everstep.observe.records import Decision, Failure, Outcome, Recovery, Replacement
from everstep.types import Generation, Rank, Step, WorkerPhase

READY, COMMITTED, BACKWARD = WorkerPhase.READY, WorkerPhase.COMMITTED, WorkerPhase.BACKWARD


@pytest.fixture(scope="module")
def recovery() -> Recovery:
    """Rank 2 of 3 died in the Optimizer Step of step 7; the others finish it."""
    job = RecordedJob(3, standbys=1)
    job.training()
    job.pace = {Stopped: 0.01, Protected: 0.1, Settled: 0.001, Connected: 0.02, Restored: 0.04, Committed: 0.5}
    job.at(READY, 7)
    job.at(COMMITTED, 7, 0)
    where = Position(COMMITTED, Step(7))
    job.tell(Exited(job.worker(2), -9, "killed by SIGKILL in COMMITTED of step 7", where, quiet_s=0.03))
    job.recovered()
    return job.record


def told(recovery: Recovery, title: str) -> tuple[str, ...]:
    return next((section.lines for section in explain(recovery) if section.title == title), ())


def test_a_recovery_is_told_from_the_failure_to_what_was_lost(recovery: Recovery) -> None:
    at = {Rank(0): Position(COMMITTED, Step(7)), Rank(1): Position(READY, Step(7))}
    assert explain(recovery, {Generation(2): at}) == [
        Section(
            "What failed",
            (
                "rank 2 (worker 2 on n0) exited in the Optimizer Step of step 7, past the barrier: "
                "killed by SIGKILL in COMMITTED of step 7",
                "It was known 30ms after the last sign of life.",
            ),
        ),
        Section(
            "Where the others were",
            (
                "rank 1: in the Gradient Synchronization Barrier of step 7, with complete gradients",
                "rank 0: in the Optimizer Step of step 7, past the barrier",
            ),
        ),
        Section(
            "What was decided",
            (
                "To let the update count, and go on with step 8.",
                "Why: of 2 live holders 1 had passed the barrier of step 7, so its update counts: 2 finish it and all "
                "go on with step 8.",
            ),
        ),
        Section("Who replaced whom", ("rank 2: standby 3 on the same node took it from worker 2.",)),
        Section("What was copied", ("rank 0 (worker 0) gave its state to worker 3.", "4.1 KB in all.")),
        Section(
            "Where the time went",
            (
                "detect         30ms  from the last sign of life to the verdict",
                "stop           20ms  until all had stopped",
                "decide            0  until the decision went out",
                "settle        102ms  until all were at protect(); a newcomer's script took 120ms",
                "reset          60ms  until all had new groups",
                "restore        40ms  until newcomers had their state",
                "first step    500ms  until step 8 had committed",
                "total         752ms",
            ),
        ),
        Section("What was lost", ("No completed step, and no step ran again.",)),
    ]
    assert headline(recovery) == "recovery 0, generation 2: recovered in 752ms"


def test_without_the_journal_nothing_is_said_of_the_others(recovery: Recovery) -> None:
    assert told(recovery, "Where the others were") == ()


@pytest.mark.parametrize(
    ("change", "decided", "lost"),
    [
        ({"decision": Decision.REDO, "steps_redone": 1}, "To drop step 8", "No completed step; 1 step ran again."),
        (
            {"decision": Decision.ROLLBACK, "steps_redone": 12},
            "To go back to the checkpoint of step 8",
            "What came after the checkpoint of step 8: 12 steps ran again.",
        ),
        (
            {"decision": Decision.RESTART, "steps_redone": 3},
            "To start all workers again.",
            "What came after the checkpoint of step 8: 3 steps ran again.",
        ),
        (
            {"decision": Decision.RESTART, "target": 0, "steps_redone": 0},
            "To start all workers again.",
            "Nothing: there was no state yet.",
        ),
        (
            {"decision": None, "outcome": Outcome.FAILED},
            "Nothing: the job ended before.",
            "The job ended here; what it had saved is what there is.",
        ),
    ],
)
def test_each_decision_says_what_it_cost(
    recovery: Recovery, change: dict[str, object], decided: str, lost: str
) -> None:
    changed = replace(recovery, **change)  # type: ignore[arg-type]
    assert told(changed, "What was decided")[0].startswith(decided)
    assert told(changed, "What was lost") == (lost,)


def test_the_reason_of_a_job_that_ended_is_why_it_ended(recovery: Recovery) -> None:
    failed = replace(recovery, outcome=Outcome.FAILED, reason="too often (Traceback:\n  File x\nOSError: no\n)")
    assert told(failed, "What was decided")[1] == "Why the job ended: too often (Traceback: … OSError: no."
    assert headline(failed) == "recovery 0, generation 2: not recovered: the job failed"


def test_what_a_job_that_ended_did_not_come_to_is_not_told(recovery: Recovery) -> None:
    failed = replace(recovery, outcome=Outcome.FAILED, t_reset_s=0.0, t_restore_s=0.0, t_first_step_s=0.0)
    stages = [line.split()[0] for line in told(failed, "Where the time went")]
    assert stages == ["detect", "stop", "settle", "total"]


def test_a_traceback_has_all_its_lines(recovery: Recovery) -> None:
    trace = 'Traceback (most recent call last):\n  File "t.py", line 7, in <module>\nValueError: no'
    [failure] = recovery.failures
    broken = replace(recovery, failures=(replace(failure, cause="EXCEPTION", evidence=trace, phase="BACKWARD"),))
    assert told(broken, "What failed")[:3] == (
        "rank 2 (worker 2 on n0) raised an exception in Backward of step 7: Traceback (most recent call last):",
        '      File "t.py", line 7, in <module>',
        "    ValueError: no",
    )


def test_a_further_failure_is_told_too(recovery: Recovery) -> None:
    second = Failure("EXIT", "killed", 1, 1, "n0", "READY", 7, Replacement(4, "n1", standby=False))
    twice = replace(recovery, failures=(*recovery.failures, second), generations=(2, 3))
    failed = told(twice, "What failed")
    assert failed[1].startswith("Then rank 1 (worker 1 on n0) exited in the Gradient Synchronization Barrier of step 7")
    assert failed[-1] == "The recovery began anew with what failed inside it: generations 2, 3."
    assert told(twice, "Who replaced whom")[1] == (
        "rank 1: worker 4, a new process, on n1 instead of n0 took it from worker 1."
    )


def test_a_false_alarm_is_named(recovery: Recovery) -> None:
    [failure] = recovery.failures
    alarm = replace(recovery, failures=(replace(failure, cause="HANG", false_alarm=True),))
    assert "false alarm" in told(alarm, "What failed")[1]


def test_a_failure_that_nobody_is_to_blame_for(recovery: Recovery) -> None:
    nobody = Failure("COLLECTIVE", "timed out", None, None, None, None, None)
    changed = replace(recovery, failures=(nobody,), t_detect_s=0.0)
    assert told(changed, "What failed") == (
        "a collective failed and nobody died: timed out",
        "It was known at once.",
    )
    assert told(changed, "Who replaced whom") == ()


def test_a_sick_device_is_told_as_a_sentence(recovery: Recovery) -> None:
    [failure] = recovery.failures
    sick = replace(recovery, failures=(replace(failure, cause="DEVICE", phase=None, evidence="Xid 79"),))
    assert told(sick, "What failed")[0] == "rank 2 (worker 2 on n0) had a sick device: Xid 79"


def test_words_of_another_version_are_passed_on(recovery: Recovery) -> None:
    [failure] = recovery.failures
    changed = replace(recovery, failures=(replace(failure, cause="COSMIC", phase="SIDEWAYS", evidence="?"),))
    assert told(changed, "What failed")[0] == "rank 2 (worker 2 on n0) COSMIC SIDEWAYS: ?"


def test_what_came_from_a_checkpoint_has_no_donor(recovery: Recovery) -> None:
    assert told(replace(recovery, donors=()), "What was copied") == ("4.1 KB in all, from a checkpoint.",)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([3], "rank 3"), ([2, 0, 1, 5], "ranks 0–2, 5"), ([1, 2], "ranks 1–2"), ([0, 2], "ranks 0, 2")],
)
def test_many_ranks_are_told_as_ranges(numbers: list[int], text: str) -> None:
    assert ranks(numbers) == text
