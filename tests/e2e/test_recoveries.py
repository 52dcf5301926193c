"""A real job leaves one record for each recovery, also when its controller is killed in the middle of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from tests.e2e.conftest import SCRIPTS, Run, eventually

from everstep.observe.records import Decision, Outcome, Recovery, Replacement, read_recoveries

Start = Callable[..., Run]
STEPS = str(SCRIPTS / "steps.py")
TWO = ("--nproc", "2")


def records(run: Run) -> list[Recovery]:
    return read_recoveries(run.dir / "recoveries.jsonl")


def test_a_kill_before_protect_leaves_a_restart(start: Start) -> None:
    run = start(*TWO, "--chaos", "kill rank=1 step=3 phase=forward", STEPS, "6", "0.05")
    assert run.wait() == 0
    [record] = records(run)
    assert (record.cause, record.rank, record.phase, record.step) == ("EXIT", 1, "FORWARD", 3)
    assert (record.decision, record.outcome) == (Decision.RESTART, Outcome.DONE)
    assert record.evidence.startswith("killed by SIGKILL in FORWARD of step 3")
    assert record.generations == (2,)
    assert record.steps_redone == 4
    assert isinstance(record.replaced_by, Replacement)
    assert 0 < record.t_detect_s < record.t_total_s
    assert f"rank 1 ({record.evidence}) → new worker {record.replaced_by.worker}; all started again" in run.text()


def test_a_controller_that_is_killed_in_a_recovery_loses_no_record_and_repeats_none(start: Start) -> None:
    run = start(*TWO, STEPS, "10000", "0.02")
    victim = run.training()["workers"][1]["pid"]
    os.kill(victim, signal.SIGKILL)
    run.when(lambda status: bool(status["failures"]), "the failure is seen")
    for _ in range(2):
        old = run.controller_pid()
        os.kill(old, signal.SIGKILL)
        eventually(lambda old=old: run.controller_pid() != old, "another controller listens")  # type: ignore[misc]
    status = run.training()
    assert (status["recoveries"], status["last_recovery"]) == (0, None)
    assert records(run) == []
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130
    [record] = records(run)
    assert (record.outcome, record.decision, record.rank) == (Outcome.INTERRUPTED, Decision.RESTART, 1)
    assert [failure.rank for failure in record.failures] == [1], record.failures
    assert "killed by SIGKILL" in record.evidence
