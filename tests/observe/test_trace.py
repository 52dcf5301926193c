"""A trace has a track for each worker and the controller, slices with their step, and arrows along each recovery."""

from __future__ import annotations

from typing import Any

from tests.observe.traces import check

from everstep.core.events import JobPhase
from everstep.observe.history import PhaseSpan
from everstep.observe.records import Decision, Failure, Outcome, Recovery, Replacement
from everstep.observe.timeline import Lane, Span
from everstep.observe.trace import CONTROLLER, JOB, RECOVERIES, render
from everstep.types import Generation

BEGIN_S = 1_800_000_000.0
EVIDENCE = "killed by SIGKILL in BACKWARD of step 1"


def spans(start_s: float, *phases: tuple[str, int], step_s: float = 0.125, generation: int = 1) -> tuple[Span, ...]:
    """One after the other; the last one lasts."""
    times = [BEGIN_S + start_s + step_s * index for index in range(len(phases))]
    ends = [*times[1:], None]
    return tuple(
        Span(phase, step, 0, generation, at, end) for (phase, step), at, end in zip(phases, times, ends, strict=True)
    )


def step(number: int) -> tuple[tuple[str, int], ...]:
    return (
        *(("FORWARD", number), ("BACKWARD", number), ("READY", number), ("COMMITTED", number)),
        ("IDLE", number + 1),
    )


DIED = Lane(1, 1, "a", spans(0, *step(0), ("FORWARD", 1), ("BACKWARD", 1)), BEGIN_S + 1, EVIDENCE)
"""Killed in Backward, at 1 s."""
LIVED = Lane(0, 0, "a", spans(0, *step(0), ("FORWARD", 1), ("BACKWARD", 1), ("STOP", 1), ("CLEAN", 1)))
CAME = Lane(2, 1, "b", spans(0.5, ("SPAWNED", -1), ("STANDBY", 0), ("BUILDING", 0), ("RESET", 0), step_s=0.375))
"""A standby, given the rank at 1.25 s."""
IDLER = Lane(3, None, "b", spans(1.5, ("SPAWNED", -1), ("STANDBY", 0)))
PHASES = tuple(
    PhaseSpan(phase, Generation(generation), BEGIN_S + start_s, None if end_s is None else BEGIN_S + end_s)
    for phase, generation, start_s, end_s in (
        (JobPhase.RUNNING, 1, 0.0, 1.0625),
        (JobPhase.STOPPING, 2, 1.0625, 1.125),
        (JobPhase.RESETTING, 2, 1.125, 1.5),
        (JobPhase.RUNNING, 2, 1.5, None),
    )
)


def recovery(cause: str = "EXIT", worker: int = 1, replacement: int | None = 2) -> Recovery:
    after = None if replacement is None else Replacement(replacement, "b", standby=True)
    failure = Failure(cause, EVIDENCE, worker, 1, "a", "BACKWARD", 1, after)
    seconds = dict.fromkeys(("stop", "decide", "settle", "script", "reset", "restore", "first_step"), 0.0)
    facts: dict[str, Any] = {f"t_{name}_s": value for name, value in seconds.items()}
    return Recovery(
        number=0,
        time=BEGIN_S + 1.0625,
        generation=2,
        generations=(2,),
        cause=cause,
        evidence=EVIDENCE,
        rank=1,
        node="a",
        phase="BACKWARD",
        step=1,
        false_alarm=False,
        target=1,
        decision=Decision.REDO,
        reason="nobody had passed the barrier",
        replaced_by=after,
        donors=(),
        bytes=0,
        t_detect_s=0.0625,
        t_total_s=0.5,
        steps_redone=1,
        outcome=Outcome.RECOVERED,
        failures=(failure,),
        **facts,
    )


def drawn(*lanes: Lane, recoveries: tuple[Recovery, ...] = ()) -> list[dict[str, Any]]:
    return check(render(lanes, PHASES, recoveries))


def names(events: list[dict[str, Any]], kind: str) -> dict[str, tuple[int, int | None]]:
    return {
        event["args"]["name"]: (event["pid"], event.get("tid"))
        for event in events
        if event["ph"] == "M" and event["name"] == kind
    }


def test_a_rank_is_a_process_and_each_of_its_workers_a_thread_of_it() -> None:
    events = drawn(LIVED, DIED, CAME, IDLER)
    processes, threads = names(events, "process_name"), names(events, "thread_name")
    assert list(processes) == ["Controller", "rank 0", "rank 1", "standbys"]
    where = {name: pid for name, (pid, _) in threads.items()}
    assert where["worker 1 on a"] == where["worker 2 on b"] == processes["rank 1"][0]
    assert where["worker 3 on b"] == processes["standbys"][0]
    assert where["job"] == where["recoveries"] == processes["Controller"][0]


def test_a_slice_says_where_the_worker_was_and_a_step_is_around_its_phases() -> None:
    slices = [event for event in drawn(DIED) if event["ph"] == "X" and event["pid"] != CONTROLLER]
    assert [event["name"] for event in slices] == [
        *("step 0", "FORWARD", "BACKWARD", "READY", "COMMITTED", "IDLE"),
        *("step 1", "FORWARD", "BACKWARD"),
    ]
    assert slices[1]["args"] == {"step": 0, "attempt": 0, "generation": 1, "version": 0}
    assert (slices[0]["ts"], slices[0]["dur"]) == (0, 500_000)


def test_the_last_slice_of_a_worker_ends_with_it_and_that_of_a_living_one_with_the_trace() -> None:
    ends = {}
    for event in drawn(DIED, LIVED):
        if event["ph"] == "X":
            ends[event["pid"], event["tid"]] = event["ts"] + event["dur"]
    assert ends[3, 2] == 1_000_000
    assert ends[2, 1] == 1_500_000


def test_the_controller_shows_the_phases_of_the_recovery_and_its_record() -> None:
    events = drawn(LIVED, DIED, CAME, recoveries=(recovery(),))
    slices = [event for event in events if event["ph"] == "X" and event["pid"] == CONTROLLER]
    job = [event["name"] for event in slices if event["tid"] == JOB]
    assert job == ["RUNNING", "STOPPING", "RESETTING", "RUNNING"]
    [record] = [event for event in slices if event["tid"] == RECOVERIES]
    assert (record["name"], record["ts"], record["dur"]) == ("recovery 0: EXIT", 1_062_500, 437_500)
    assert record["args"]["target"] == 1
    assert EVIDENCE in record["args"]["sentence"]


def flow(*recoveries: Recovery) -> list[tuple[int, int, float]]:
    events = drawn(LIVED, DIED, CAME, recoveries=recoveries)
    return [(event["pid"], event["tid"], event["ts"]) for event in events if event["ph"] in "stf"]


def test_an_arrow_leads_from_the_failure_over_the_controller_to_the_replacement() -> None:
    assert flow(recovery()) == [(3, 2, 999_999), (CONTROLLER, JOB, 1_062_501), (3, 3, 1_250_001)]


def test_who_hangs_has_failed_at_the_verdict_although_it_is_killed_later() -> None:
    died_later = Lane(1, 1, "a", DIED.spans, BEGIN_S + 1.3, "hangs")
    events = drawn(LIVED, died_later, CAME, recoveries=(recovery("HANG"),))
    assert [event["ts"] for event in events if event["ph"] in "stf"] == [1_062_500, 1_062_501, 1_250_001]


def test_without_a_replacement_or_its_lane_there_is_no_half_arrow() -> None:
    assert flow(recovery(replacement=None)) == []
    assert flow(recovery(replacement=9)) == []
    assert flow(recovery(worker=9)) == []


def test_how_many_workers_live_is_counted() -> None:
    counts = [(event["ts"], event["args"]["alive"]) for event in drawn(LIVED, DIED, CAME) if event["ph"] == "C"]
    assert counts[-2:] == [(500_000, 3), (1_000_000, 2)]


def test_a_run_of_which_nothing_is_known_is_an_empty_trace() -> None:
    assert [event["ph"] for event in check(render((), (), ()))] == ["M"] * 4
