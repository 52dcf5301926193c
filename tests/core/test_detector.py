"""Each rule of the detector: its boundary, its exemptions, its words. By hypothesis: no false alarm, no miss."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from itertools import cycle, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.core.detector import Detector, DetectorConfig, Finding, Sighting
from everstep.core.events import Cause, NodeLost, Position, Stalled, Verdict
from everstep.errors import ConfigError
from everstep.types import Generation, NodeId, Rank, Step, WorkerId, WorkerPhase

SPAWNED, STANDBY, BUILDING, HOLLOW, IDLE, FORWARD, BACKWARD, READY, COMMITTED, ENDED = WorkerPhase
PERIOD_S = 0.125  # exact in binary, so that boundaries are exact too
WARM = DetectorConfig(first_steps=0)
A, B = NodeId("a"), NodeId("b")
BEGAN = Step(7)
"""Where the workers are at first."""


class Bench:
    """A job on a manual clock, one worker per rank, all on one node. Everybody lives unless told otherwise."""

    def __init__(self, ranks: int, config: DetectorConfig = WARM, *, resumed: bool = True, began: Step = BEGAN) -> None:
        self.detector = Detector(ranks, config)
        self.now = 100.0
        self.moved_at: dict[int, float] = {}
        self.boards: dict[int, Sighting] = {}
        self.frozen: set[int] = set()
        self.busy_s = dict.fromkeys(range(ranks), 0.0)
        for rank in range(ranks):
            self.add(rank, Rank(rank))
        if resumed:
            self.detector.resume(self.now, began)
        assert self.look() == []

    def add(self, worker: int, rank: Rank | None, phase: WorkerPhase = FORWARD) -> None:
        version = BEGAN if phase >= IDLE else -1
        self.boards[worker] = Sighting(
            WorkerId(worker), rank, phase, version, Generation(1), pulse=1, moves=1, moved_ago_s=0.0, cpu_s=1.0
        )
        self.moved_at[worker] = self.now

    def move(self, worker: int, phase: WorkerPhase | None = None, **stamp: Any) -> None:
        old = self.boards[worker]
        self.boards[worker] = dataclasses.replace(
            old, moves=old.moves + 1, phase=old.phase if phase is None else phase, **stamp
        )
        self.moved_at[worker] = self.now

    def look(self) -> list[Finding]:
        """One heartbeat, now."""
        return self.detector.observe(
            A,
            [
                dataclasses.replace(board, moved_ago_s=self.now - self.moved_at[worker])
                for worker, board in self.boards.items()
            ],
            self.now,
        )

    def tick(self, passed_s: float = PERIOD_S) -> list[Finding]:
        """Time passes, then a heartbeat and a check."""
        self.now += passed_s
        for worker, board in self.boards.items():
            beats = 0 if worker in self.frozen or not board.pulse else 1
            cpu_s = board.cpu_s + self.busy_s.get(worker, 0.0) * passed_s
            self.boards[worker] = dataclasses.replace(board, pulse=board.pulse + beats, cpu_s=cpu_s)
        return [*self.look(), *self.detector.check(self.now)]

    def pass_time(self, passed_s: float) -> list[Finding]:
        """Many heartbeats; the time must be a multiple of the period."""
        return [finding for _ in range(round(passed_s / PERIOD_S)) for finding in self.tick()]

    def visit(self, worker: int, phase: WorkerPhase, stretch_s: float, version: int, **stamp: Any) -> None:
        self.move(worker, phase, version=version, **stamp)
        assert self.pass_time(stretch_s) == []


def causes(findings: list[Finding]) -> list[tuple[int, Cause]]:
    assert all(isinstance(finding, Verdict) for finding in findings)
    return [(finding.worker, finding.cause) for finding in findings if isinstance(finding, Verdict)]


def hanging(phase: WorkerPhase = FORWARD, config: DetectorConfig = WARM) -> Bench:
    """Rank 0 enters a phase and stays there; rank 1 waits for it in the same step."""
    bench = Bench(2, config)
    bench.move(0, phase)
    bench.move(1, BACKWARD, waiting=True)
    return bench


# ── the configuration ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("heartbeat_s", 0.0),
        ("missed", 0),
        ("missed", 2.5),
        ("frozen_s", -1.0),
        ("frozen_s", math.nan),
        ("hang_floor_s", math.inf),
        ("hang_factor", 0.5),
        ("first_steps", -1),
        ("first_s", 0.0),
        ("stall_s", "10"),
        ("widen", 0.9),
        ("memory", True),
        ("idle_cpu", -0.1),
        ("gap_s", 2.0),
    ],
)
def test_a_setting_that_cannot_work_is_refused_with_its_value(setting: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{setting} is {value!r}: it must be"):
        DetectorConfig(**{setting: value})  # type: ignore[arg-type]


def test_a_detector_for_no_ranks_is_refused() -> None:
    with pytest.raises(ConfigError, match="ranks is 0"):
        Detector(0)


# ── nodes ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_silent_node_is_lost_after_the_missed_heartbeats_and_once() -> None:
    detector = Detector(2)
    detector.observe(A, [], 0.0)
    findings: list[Finding] = []
    for quarter in range(1, 12):
        findings += detector.check(quarter / 4)
    assert findings == []
    assert detector.check(3.0) == [NodeLost(A, "no heartbeat for 3.0 s (limit 3 × 1 s)", 3.0)]
    assert detector.check(4.0) == []


def test_every_heartbeat_counts_also_one_without_workers() -> None:
    detector = Detector(2)
    for second in range(10):
        detector.observe(A, [], float(second))
        assert detector.check(second + 0.5) == []


def test_only_the_silent_node_is_lost() -> None:
    detector = Detector(2)
    detector.observe(A, [], 0.0)
    lost: list[Finding] = []
    for half in range(8):
        detector.observe(B, [], half / 2)
        lost += detector.check(half / 2)
    assert [finding.node for finding in lost if isinstance(finding, NodeLost)] == [A]


def test_time_in_which_the_controller_did_not_run_is_no_silence() -> None:
    detector = Detector(2)
    detector.observe(A, [], 0.0)
    assert detector.check(0.5) == []
    assert detector.check(60.0) == [], "its heartbeats lie unread in our socket"
    assert detector.check(61.0) == []
    assert detector.check(62.0) != []


def test_a_node_that_is_gone_is_not_judged_and_its_workers_are_forgotten() -> None:
    bench = hanging()
    bench.detector.node_gone(A)
    assert bench.detector.check(bench.now + 60) == []
    assert bench.pass_time(10) == []


def test_the_workers_of_a_lost_node_get_no_verdicts_too() -> None:
    bench = hanging()
    assert [type(finding) for finding in map_checks(bench, 4.0)] == [NodeLost]
    assert bench.pass_time(10) == []


def map_checks(bench: Bench, passed_s: float) -> Iterator[Finding]:
    for _ in range(round(passed_s / 0.5)):
        bench.now += 0.5
        yield from bench.detector.check(bench.now)


# ── frozen ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("phase", list(WorkerPhase))
@pytest.mark.parametrize("resumed", [True, False])
def test_a_worker_without_a_sign_of_life_is_frozen_in_every_phase(phase: WorkerPhase, resumed: bool) -> None:
    bench = Bench(2, resumed=resumed)
    bench.move(0, phase)
    bench.tick()
    bench.frozen.add(0)
    assert bench.pass_time(2 - PERIOD_S) == []
    assert causes(bench.tick()) == [(0, Cause.FROZEN)]
    assert bench.pass_time(10) == []


def test_the_verdict_on_a_frozen_worker_says_what_was_seen() -> None:
    bench = Bench(2)
    bench.frozen.add(0)
    [verdict] = bench.pass_time(2)
    assert verdict == Verdict(
        WorkerId(0),
        Cause.FROZEN,
        "no sign of life for 2.0 s in FORWARD of step 7 (limit 2 s): heartbeat stands at 1, CPU time at 1.00 s",
        Position(FORWARD, Step(7)),
        quiet_s=2.0,
    )


def test_a_frozen_standby_is_judged() -> None:
    bench = Bench(2)
    bench.add(9, None, STANDBY)
    bench.tick()
    bench.frozen.add(9)
    assert causes(bench.pass_time(3)) == [(9, Cause.FROZEN)]


def test_growing_cpu_time_is_slow_and_not_frozen() -> None:
    bench = Bench(2)
    bench.frozen.add(0)
    bench.busy_s[0] = 0.5
    assert bench.pass_time(30) == []


def test_who_stops_after_a_long_time_of_computing_is_frozen_as_fast_as_any() -> None:
    bench = Bench(2)
    bench.frozen.add(0)
    bench.busy_s[0] = 1.0
    assert bench.pass_time(30) == []
    bench.busy_s[0] = 0.0
    assert causes(bench.pass_time(2)) == [(0, Cause.FROZEN)]


def test_the_little_cpu_time_of_threads_that_wait_for_the_gil_is_no_life() -> None:
    bench = Bench(2)
    bench.frozen.add(0)
    bench.busy_s[0] = 0.005
    assert causes(bench.pass_time(2.5)) == [(0, Cause.FROZEN)]


def test_a_main_thread_that_moves_is_a_sign_of_life() -> None:
    bench = Bench(2)
    bench.frozen.add(0)
    for _ in range(10):
        assert bench.pass_time(1) == []
        bench.move(0)


def test_before_its_first_heartbeat_nobody_is_frozen() -> None:
    bench = Bench(1)
    bench.add(9, None, SPAWNED)
    bench.boards[9] = dataclasses.replace(bench.boards[9], pulse=0)
    assert bench.pass_time(60) == [], "a script that sleeps before init() has no thread that could beat"


def test_a_gap_in_the_agents_looks_restarts_the_window() -> None:
    bench = Bench(2)
    bench.frozen.add(0)
    assert bench.pass_time(1.75) == []
    assert bench.tick(2.5) == [], "the agent did not run, so perhaps nobody could"
    assert bench.pass_time(1.875) == []
    assert causes(bench.tick()) == [(0, Cause.FROZEN)]


def test_a_late_message_is_not_a_late_look() -> None:
    """The controller gets three looks at once: what counts is when they were made."""
    bench = Bench(2)
    bench.frozen.add(0)
    assert bench.pass_time(1.75) == []
    made_at, bench.now = bench.now, bench.now + 30
    bench.moved_at = {worker: at + 30 for worker, at in bench.moved_at.items()}
    assert bench.look() == []
    assert made_at + 30 == bench.now
    assert causes(bench.pass_time(0.25)) == [(0, Cause.FROZEN)]


# ── hang ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("phase", [IDLE, FORWARD, BACKWARD, COMMITTED])
def test_who_stands_still_while_another_waits_for_it_hangs(phase: WorkerPhase) -> None:
    bench = hanging(phase)
    assert bench.pass_time(2) == [], "longer than the limit, not as long"
    assert causes(bench.tick()) == [(0, Cause.HANG)]
    assert bench.pass_time(30) == []


def test_the_verdict_on_a_hang_names_phase_times_and_who_waits() -> None:
    bench = Bench(7)
    bench.move(0, BACKWARD)
    for rank in range(1, 7):
        bench.move(rank, READY)
    [verdict] = bench.pass_time(2.125)
    assert verdict == Verdict(
        WorkerId(0),
        Cause.HANG,
        "has not moved for 2.1 s in BACKWARD of step 7 (limit 2.0 s: the least; typical 0.00 s), "
        "while ranks 1, 2, 3, 4 and 2 more wait in step 7 since 2.1 s",
        Position(BACKWARD, Step(7)),
        quiet_s=2.125,
    )


@pytest.mark.parametrize("phase", [SPAWNED, STANDBY, BUILDING, HOLLOW, READY, ENDED])
def test_phases_in_which_nobody_hangs(phase: WorkerPhase) -> None:
    assert hanging(phase).pass_time(9) == []


def test_a_standby_does_not_hang() -> None:
    bench = hanging()
    bench.add(9, None, FORWARD)
    assert causes(bench.pass_time(9)) == [(0, Cause.HANG)]


def test_who_waits_itself_does_not_hang() -> None:
    bench = hanging()
    bench.move(0, FORWARD, waiting=True)
    assert bench.pass_time(9) == []


def test_while_nobody_waits_nobody_hangs() -> None:
    assert Bench(3).pass_time(60) == []


@pytest.mark.parametrize(
    ("stamp", "hangs"),
    [
        ({"version": 7}, True),
        ({"version": 8}, True),  # it passed the barrier: rank 0 hangs in the Optimizer Step
        ({"version": 6}, False),  # what it waits for, rank 0 has done
        ({"generation": Generation(0)}, False),
    ],
)
def test_only_who_is_waited_for_hangs(stamp: dict[str, object], hangs: bool) -> None:
    bench = Bench(2)
    bench.move(0, COMMITTED)
    bench.move(1, FORWARD, waiting=True, **stamp)
    assert causes(bench.pass_time(9)) == ([(0, Cause.HANG)] if hangs else [])


def test_who_hangs_between_the_barrier_and_its_update_is_found_in_the_barrier() -> None:
    """Others are in the next step already, so the barrier is behind all."""
    bench = Bench(2)
    bench.move(0, READY)
    bench.move(1, FORWARD, version=8, waiting=True)
    assert causes(bench.pass_time(9)) == [(0, Cause.HANG)]


def test_who_waits_in_the_barrier_for_a_slow_rank_does_not_hang() -> None:
    bench = Bench(3)
    bench.move(0, READY)
    bench.move(1, READY)
    bench.busy_s[2] = 1.0
    assert causes(bench.pass_time(3)) == [(2, Cause.HANG)]


# ── in a recovery ────────────────────────────────────────────────────────────────────────────────────────


def recovering(phase: WorkerPhase = COMMITTED) -> Bench:
    """Rank 1 is gone; rank 0 stands in a phase, and a recovery begins to wait for it."""
    bench = Bench(2)
    bench.move(0, phase)
    bench.detector.forget(WorkerId(1))
    bench.boards.pop(1)
    bench.detector.pause()
    bench.detector.expect([WorkerId(0)], bench.now)
    return bench


@pytest.mark.parametrize("phase", [FORWARD, BACKWARD, READY, COMMITTED])
def test_a_survivor_that_does_not_answer_hangs(phase: WorkerPhase) -> None:
    bench = recovering(phase)
    [finding] = bench.pass_time(9)
    assert isinstance(finding, Verdict)
    assert (finding.worker, finding.cause) == (0, Cause.HANG)
    assert finding.evidence.endswith("while a recovery waits for it")


def test_what_stood_still_before_it_was_asked_has_the_whole_time_to_answer() -> None:
    bench = Bench(2)
    bench.move(0, BACKWARD, waiting=True)
    assert causes(bench.pass_time(9)) == [(1, Cause.HANG)]
    bench.boards.pop(1)
    bench.detector.pause()
    bench.detector.expect([WorkerId(0)], bench.now)
    assert bench.pass_time(1.875) == []
    bench.detector.expect([], bench.now)
    assert bench.pass_time(60) == []


def test_a_newcomer_that_runs_its_script_owes_nothing_yet() -> None:
    bench = recovering()
    bench.add(2, Rank(1), BUILDING)
    bench.detector.expect([WorkerId(2)], bench.now)
    assert bench.pass_time(60) == []


def test_the_first_to_arrive_does_not_accuse_all_the_others() -> None:
    """All take four times longer than ever before; one is there a little earlier."""
    bench = Bench(3)
    assert bench.pass_time(8) == []
    bench.move(0, FORWARD, waiting=True)
    assert bench.pass_time(0.875) == []
    bench.move(1, FORWARD, waiting=True)
    assert causes(bench.tick()) == [(2, Cause.HANG)], "half of its limit is long enough"


def test_a_waiter_that_goes_on_and_waits_again_has_not_waited_long() -> None:
    bench = hanging()
    for _ in range(20):
        assert bench.pass_time(0.75) == []
        bench.move(1, BACKWARD, waiting=True)


def test_the_one_who_waits_longest_counts_also_when_others_come_and_go() -> None:
    bench = Bench(3)
    bench.move(1, FORWARD, waiting=True)
    bench.move(2, FORWARD, waiting=True)
    findings: list[Finding] = []
    for _ in range(5):
        findings += bench.pass_time(0.5)
        bench.move(1, FORWARD, waiting=True)
    assert causes(findings) == [(0, Cause.HANG)]


def test_the_limit_follows_the_typical_time_in_the_phase() -> None:
    bench = Bench(2)
    for version in range(8, 11):
        bench.visit(0, FORWARD, 1.0, version)
        bench.visit(0, BACKWARD, 0.25, version)
    bench.move(0, FORWARD, version=11)
    bench.move(1, FORWARD, version=11, waiting=True)
    [verdict] = bench.pass_time(5.125)
    assert isinstance(verdict, Verdict)
    assert "limit 5.0 s: 5 × typical 1.00 s" in verdict.evidence


def test_one_extreme_visit_does_not_change_the_typical_time() -> None:
    bench = Bench(2)
    for version in range(8, 17):
        bench.visit(0, FORWARD, 60.0 if version == 12 else 0.25, version)
    bench.move(0, FORWARD, version=17)
    bench.move(1, FORWARD, version=17, waiting=True)
    assert causes(bench.pass_time(2.125)) == [(0, Cause.HANG)]


def test_a_phase_of_many_short_stretches_and_a_long_one_is_known_by_the_long_one() -> None:
    bench = Bench(2)
    for version in range(8, 11):
        bench.visit(0, BACKWARD, 3.0, version)
        for _ in range(20):
            bench.visit(0, BACKWARD, 0.125, version)
    bench.move(0, BACKWARD, version=11)
    bench.move(1, BACKWARD, version=11, waiting=True)
    assert bench.pass_time(15) == []
    assert causes(bench.tick()) == [(0, Cause.HANG)]


def test_time_that_it_waited_itself_is_not_typical_for_it() -> None:
    bench = Bench(2)
    for version in range(8, 11):
        bench.visit(0, BACKWARD, 0.25, version)
        bench.move(1, IDLE, limit_s=100.0)
        bench.visit(0, BACKWARD, 5.0, version, waiting=True)
        bench.move(0, BACKWARD, waiting=False)
    bench.move(0, BACKWARD, version=11)
    bench.move(1, BACKWARD, version=11, waiting=True, limit_s=0.0)
    assert causes(bench.pass_time(2.125)) == [(0, Cause.HANG)]


def test_the_first_steps_of_an_incarnation_have_their_own_allowance() -> None:
    bench = hanging(config=DetectorConfig(first_steps=2, first_s=20.0))
    assert bench.pass_time(20) == []
    [verdict] = bench.tick()
    assert isinstance(verdict, Verdict)
    assert "limit 20.0 s: first 2 steps" in verdict.evidence


def test_after_its_first_steps_a_worker_is_held_to_its_own_times() -> None:
    bench = hanging(config=DetectorConfig(first_steps=2, first_s=20.0))
    for version in (8, 9):
        bench.visit(0, FORWARD, 0.25, version)
    bench.move(1, FORWARD, version=9, waiting=True)
    assert causes(bench.pass_time(2.125)) == [(0, Cause.HANG)]


def test_steps_that_nobody_looked_at_are_steps() -> None:
    """A look comes twenty times a second, a step may be a thousandth."""
    bench = Bench(2, DetectorConfig(first_steps=2, first_s=20.0), began=Step(5))
    bench.move(0, FORWARD)
    bench.move(1, BACKWARD, waiting=True)
    assert causes(bench.pass_time(2.125)) == [(0, Cause.HANG)]


def test_steps_of_a_newcomer_that_nobody_looked_at_are_steps() -> None:
    bench = Bench(2, DetectorConfig(first_steps=2, first_s=20.0))
    bench.add(0, Rank(0), HOLLOW)
    bench.tick()
    bench.move(0, FORWARD, version=9)
    bench.move(1, BACKWARD, version=9, waiting=True)
    assert causes(bench.pass_time(2.25)) == [(0, Cause.HANG)]


def test_coming_to_hold_a_state_is_no_step() -> None:
    bench = hanging(config=DetectorConfig(first_steps=3, first_s=20.0))
    bench.add(2, Rank(2), HOLLOW)
    bench.tick()
    bench.move(2, IDLE, version=7)
    assert 2 not in dict(causes(bench.pass_time(10)))


def test_a_declared_long_phase_has_the_declared_limit() -> None:
    bench = Bench(2)
    bench.move(0, FORWARD, limit_s=30.0)
    bench.move(1, FORWARD, waiting=True)
    assert bench.pass_time(30) == []
    assert causes(bench.tick()) == [(0, Cause.HANG)]


def test_a_declared_long_phase_is_not_typical() -> None:
    bench = Bench(2)
    for version in range(8, 14):
        bench.visit(0, FORWARD, 5.0, version, limit_s=30.0)
    bench.move(0, FORWARD, version=14, limit_s=0.0)
    bench.move(1, FORWARD, version=14, waiting=True)
    assert causes(bench.pass_time(2.125)) == [(0, Cause.HANG)]


def test_who_shows_no_life_at_all_is_frozen_and_not_hung() -> None:
    bench = hanging()
    bench.frozen.add(0)
    assert causes(bench.pass_time(3)) == [(0, Cause.FROZEN)]


def test_who_computes_and_lets_no_thread_run_hangs() -> None:
    bench = hanging()
    bench.frozen.add(0)
    bench.busy_s[0] = 1.0
    assert causes(bench.pass_time(2.125)) == [(0, Cause.HANG)]


def test_who_never_had_a_heartbeat_can_hang() -> None:
    bench = hanging()
    bench.boards[0] = dataclasses.replace(bench.boards[0], pulse=0)
    assert causes(bench.pass_time(2.125)) == [(0, Cause.HANG)]


def test_time_in_which_the_agent_did_not_look_does_not_count() -> None:
    bench = hanging()
    assert bench.pass_time(1.5) == []
    assert bench.tick(2.5) == []
    assert bench.pass_time(0.5) == []
    assert causes(bench.tick()) == [(0, Cause.HANG)]


def test_a_move_that_was_made_while_the_agent_did_not_look_is_as_good_as_new() -> None:
    bench = hanging()
    bench.now += 0.125
    bench.move(0)
    assert bench.tick(2.5) == []
    assert bench.pass_time(2) == []
    assert causes(bench.tick()) == [(0, Cause.HANG)]


def test_a_standstill_from_before_the_first_look_does_not_count() -> None:
    """A controller that was restarted knows nothing of what it did not see."""
    bench = hanging()
    bench.pass_time(1)
    bench.detector = Detector(2, WARM)
    bench.detector.resume(bench.now, BEGAN)
    assert bench.pass_time(2.125) == []
    assert causes(bench.tick()) == [(0, Cause.HANG)]


# ── recovery ─────────────────────────────────────────────────────────────────────────────────────────────


def test_it_starts_paused() -> None:
    bench = Bench(2, resumed=False)
    bench.move(1, FORWARD, waiting=True)
    assert bench.pass_time(30) == []


def test_a_worker_parked_in_a_recovery_does_not_hang() -> None:
    bench = hanging()
    bench.tick()
    bench.detector.pause()
    assert bench.pass_time(60) == []


def test_stillness_counts_only_from_the_resume() -> None:
    bench = hanging()
    bench.tick()
    bench.detector.pause()
    assert bench.pass_time(60) == []
    bench.detector.resume(bench.now, BEGAN)
    assert bench.pass_time(2.125) == [], "the first look after the resume is where it begins"
    assert causes(bench.tick()) == [(0, Cause.HANG)]


def test_a_second_resume_changes_nothing() -> None:
    bench = hanging()
    assert bench.pass_time(2) == []
    bench.detector.resume(bench.now, BEGAN)
    assert causes(bench.tick()) == [(0, Cause.HANG)]


def test_time_spent_parked_is_not_typical() -> None:
    bench = Bench(2)
    bench.detector.pause()
    for version in range(8, 18):
        bench.visit(0, FORWARD, 4.0, version)
    bench.detector.resume(bench.now, BEGAN)
    bench.move(0, FORWARD, version=18)
    bench.move(1, FORWARD, version=18, waiting=True)
    assert causes(bench.pass_time(2.25)) == [(0, Cause.HANG)]


def test_time_spent_excused_is_not_typical() -> None:
    bench = Bench(2)
    for version in range(8, 18):
        bench.move(0, FORWARD, version=version)
        bench.detector.excuse(WorkerId(0))
        assert bench.pass_time(4) == []
        bench.detector.pause()
        bench.detector.resume(bench.now, BEGAN)
        bench.tick()
    bench.move(0, FORWARD, version=18)
    bench.move(1, FORWARD, version=18, waiting=True)
    assert causes(bench.pass_time(2.25)) == [(0, Cause.HANG)]


def test_a_waiter_that_was_not_seen_since_the_resume_accuses_nobody() -> None:
    bench = hanging()
    bench.detector.pause()
    assert bench.pass_time(10) == []
    bench.detector.resume(bench.now, BEGAN)
    del bench.boards[1]
    assert bench.pass_time(10) == []


def test_who_reported_a_broken_collective_is_excused_until_the_next_resume() -> None:
    bench = hanging()
    bench.detector.excuse(WorkerId(0))
    assert bench.pass_time(10) == []
    bench.detector.pause()
    bench.detector.resume(bench.now, BEGAN)
    assert causes(bench.pass_time(2.25)) == [(0, Cause.HANG)]


def test_an_excuse_holds_also_when_it_comes_before_the_first_look_after_a_resume() -> None:
    bench = hanging()
    bench.detector.pause()
    bench.detector.resume(bench.now, BEGAN)
    bench.detector.excuse(WorkerId(0))
    assert bench.pass_time(10) == []


def test_the_excused_can_freeze() -> None:
    bench = hanging()
    bench.detector.excuse(WorkerId(0))
    bench.frozen.add(0)
    assert causes(bench.pass_time(3)) == [(0, Cause.FROZEN)]


# ── one verdict each, and patience after a false alarm ───────────────────────────────────────────────────


def test_a_forgotten_worker_is_not_judged_and_does_not_count_as_waiting() -> None:
    bench = hanging()
    bench.tick()
    bench.detector.forget(WorkerId(1))
    assert bench.pass_time(10) == []


def test_a_judged_worker_is_not_judged_again_after_it_was_forgotten() -> None:
    bench = hanging()
    assert causes(bench.pass_time(3)) == [(0, Cause.HANG)]
    bench.detector.forget(WorkerId(0))
    bench.frozen.add(0)
    assert bench.pass_time(30) == []


def test_a_worker_that_is_named_twice_in_a_heartbeat_is_judged_once() -> None:
    bench = hanging()
    bench.boards[9] = bench.boards[0]
    bench.moved_at[9] = bench.moved_at[0]
    assert causes(bench.pass_time(3)) == [(0, Cause.HANG)]


def test_to_forget_who_is_unknown_is_harmless() -> None:
    detector = Detector(1)
    detector.forget(WorkerId(5))
    detector.false_alarm(WorkerId(5))
    detector.excuse(WorkerId(5))
    detector.node_gone(A)


@pytest.mark.parametrize("forget_first", [True, False])
def test_a_false_alarm_widens_the_limit_of_the_rank_and_so_of_its_replacement(forget_first: bool) -> None:
    bench = hanging()
    assert causes(bench.pass_time(3)) == [(0, Cause.HANG)]
    if forget_first:
        bench.detector.forget(WorkerId(0))
    bench.detector.false_alarm(WorkerId(0))
    bench.detector.false_alarm(WorkerId(0))
    del bench.boards[0]
    bench.add(2, Rank(0))
    bench.move(1, BACKWARD, waiting=True)
    bench.tick()
    bench.move(2)
    assert bench.pass_time(8) == [], "widened once, not twice"
    [verdict] = bench.tick()
    assert isinstance(verdict, Verdict)
    assert "limit 8.0 s: the least, ×4 after a false alarm" in verdict.evidence


def test_a_false_alarm_widens_nobody_elses_limit() -> None:
    bench = hanging()
    assert causes(bench.pass_time(3)) == [(0, Cause.HANG)]
    bench.detector.false_alarm(WorkerId(0))
    bench.move(1, FORWARD, waiting=False)
    bench.add(2, Rank(0))
    bench.move(2, READY)
    del bench.boards[0]
    assert causes(bench.pass_time(2.125)) == [(1, Cause.HANG)]


def test_a_false_alarm_widens_the_frozen_limit_too() -> None:
    bench = Bench(2)
    bench.frozen.update((0, 2))
    assert causes(bench.pass_time(2)) == [(0, Cause.FROZEN)]
    bench.detector.false_alarm(WorkerId(0))
    del bench.boards[0]
    bench.add(2, Rank(0))
    assert bench.pass_time(8) == []
    assert causes(bench.tick()) == [(2, Cause.FROZEN)]


# ── stalled ──────────────────────────────────────────────────────────────────────────────────────────────


def stalled(ranks: int = 3, config: DetectorConfig = WARM) -> Bench:
    bench = Bench(ranks, config)
    for rank in range(ranks):
        bench.move(rank, BACKWARD, waiting=True)
    return bench


def test_when_all_wait_and_nobody_moves_the_job_is_stalled_once() -> None:
    bench = stalled()
    assert bench.pass_time(10) == []
    assert bench.tick() == [
        Stalled(
            Generation(1),
            "ranks 0, 1, 2 wait in step 7; nobody has moved for 10.1 s (limit 10.0 s: the least)",
            quiet_s=10.125,
        )
    ]
    assert bench.pass_time(60) == []


def test_a_stall_in_the_next_generation_is_a_new_one() -> None:
    bench = stalled()
    assert len(bench.pass_time(20)) == 1
    bench.detector.pause()
    bench.detector.resume(bench.now, BEGAN)
    for rank in range(3):
        bench.move(rank, FORWARD, waiting=True, generation=Generation(2))
    assert [type(finding) for finding in bench.pass_time(20)] == [Stalled]


def test_a_stall_teaches_no_patience() -> None:
    bench = stalled()
    assert len(bench.pass_time(20)) == 1
    bench.detector.pause()
    for phase in (IDLE, BACKWARD):
        for rank in range(3):
            bench.move(rank, phase, waiting=False)
        assert bench.tick() == []
    bench.detector.resume(bench.now, BEGAN)
    for rank in range(3):
        bench.move(rank, BACKWARD, waiting=True, generation=Generation(2))
    assert [type(finding) for finding in bench.pass_time(12)] == [Stalled]


def test_the_barrier_can_stall_too() -> None:
    bench = Bench(2)
    bench.move(0, READY)
    bench.move(1, READY)
    assert [type(finding) for finding in bench.pass_time(20)] == [Stalled]


def test_as_long_as_somebody_moves_nothing_is_stalled() -> None:
    bench = stalled()
    for turn in range(20):
        assert bench.pass_time(5) == []
        bench.move(turn % 3, BACKWARD, waiting=True)


def test_a_move_puts_the_stall_off_by_its_full_time_only() -> None:
    bench = stalled(config=DetectorConfig(first_s=60.0))
    assert bench.pass_time(50) == []
    for rank in range(3):
        bench.move(rank, FORWARD, waiting=True)
    assert bench.pass_time(60) == []
    assert len(bench.pass_time(1)) == 1


def test_a_stall_is_judged_by_the_limits_of_now() -> None:
    bench = Bench(2)
    bench.move(0, FORWARD, waiting=True, limit_s=100.0)
    bench.move(1, FORWARD, waiting=True, limit_s=100.0)
    assert bench.pass_time(20) == []
    bench.move(0, BACKWARD, waiting=True, limit_s=0.0)
    bench.move(1, BACKWARD, waiting=True, limit_s=0.0)
    assert len(bench.pass_time(12)) == 1


def test_a_rank_that_was_not_seen_since_the_resume_may_have_moved() -> None:
    bench = stalled()
    bench.detector.pause()
    assert bench.pass_time(30) == []
    bench.detector.resume(bench.now, BEGAN)
    del bench.boards[2]
    assert bench.pass_time(30) == []


def test_ranks_of_two_generations_do_not_stall_together() -> None:
    bench = stalled()
    bench.move(1, FORWARD, waiting=True, generation=Generation(2))
    assert bench.pass_time(30) == []


def test_a_rank_that_was_not_seen_yet_may_be_the_one_that_moves() -> None:
    bench = stalled(2)
    bench.detector = Detector(3, WARM)
    bench.detector.resume(bench.now, BEGAN)
    assert bench.pass_time(60) == []


def test_a_stall_waits_for_the_most_patient_rank() -> None:
    bench = Bench(2)
    bench.move(0, FORWARD, waiting=True)
    bench.move(1, FORWARD, waiting=True, limit_s=30.0)
    assert bench.pass_time(30) == []
    assert len(bench.pass_time(0.5)) == 1


def test_collectives_that_always_take_long_are_no_stall() -> None:
    bench = Bench(2, DetectorConfig(first_steps=0, stall_s=2.0))
    for version in range(8, 30):
        duration_s = min(0.5 * (version - 7), 6.0)
        for rank in range(2):
            bench.move(rank, BACKWARD, version=version, waiting=True)
        assert bench.pass_time(duration_s) == []


def test_a_paused_job_is_not_stalled() -> None:
    bench = stalled()
    bench.detector.pause()
    assert bench.pass_time(60) == []


def test_a_controller_that_did_not_run_has_seen_no_stall() -> None:
    bench = stalled()
    bench.tick()
    assert bench.detector.check(bench.now + 60) == []


def test_who_has_left_the_loop_never_serves_those_who_wait_in_a_later_step() -> None:
    bench = Bench(3)
    bench.move(0, FORWARD, waiting=True)
    bench.move(1, FORWARD, waiting=True)
    bench.move(2, ENDED)
    [finding] = bench.pass_time(12)
    assert isinstance(finding, Stalled)
    assert finding.evidence.startswith("rank 2 left the loop at step 7 while ranks 0, 1 wait in step 7; nobody")


def test_who_hangs_in_the_last_step_is_waited_for_at_the_end() -> None:
    bench = Bench(3)
    bench.move(0, ENDED, version=8, waiting=True)
    bench.move(1, COMMITTED)
    bench.move(2, ENDED, version=8, waiting=True)
    [finding] = bench.pass_time(12)
    assert isinstance(finding, Verdict)
    assert (finding.worker, finding.cause) == (1, Cause.HANG)
    assert finding.evidence.endswith("while ranks 0, 2 have left the loop since 2.1 s")


def test_where_nothing_is_protected_nobody_waits_at_the_end() -> None:
    bench = Bench(2)
    bench.move(0, ENDED, version=8)
    assert bench.pass_time(60) == []


def test_when_all_have_left_the_loop_nothing_is_stalled() -> None:
    bench = Bench(3)
    for rank in range(3):
        bench.move(rank, ENDED)
    assert bench.pass_time(60) == []


def test_mismatched_steps_are_both_named() -> None:
    bench = Bench(2)
    bench.move(0, FORWARD, waiting=True, version=8)
    bench.move(1, BACKWARD, waiting=True)
    [finding] = bench.pass_time(12)
    assert isinstance(finding, Stalled)
    assert finding.evidence.startswith("rank 0 waits in step 8, rank 1 waits in step 7; nobody")


# ── traces ───────────────────────────────────────────────────────────────────────────────────────────────

Stamp = tuple[float, WorkerPhase, int, bool]  # at, phase, version, waiting


def train(ranks: int, steps: int, durations: list[float], halt: tuple[int, int] | None) -> list[list[Stamp]]:
    """The stamps of ranks in lock step: two collectives and the barrier in each. With ``halt`` one rank makes no
    more stamps after that many, and the others come as far as they can without it."""
    duration = cycle(durations)
    stamps: list[list[Stamp]] = [[(0.0, IDLE, 0, False)] for _ in range(ranks)]
    clocks = [0.0] * ranks

    def stamp(rank: int, phase: WorkerPhase, version: int, waiting: bool) -> bool:
        if halt is not None and rank == halt[0] and len(stamps[rank]) >= halt[1]:
            return False
        stamps[rank].append((clocks[rank], phase, version, waiting))
        return True

    for version in range(steps):
        for phase, at in ((FORWARD, FORWARD), (BACKWARD, BACKWARD), (COMMITTED, READY)):
            if phase is not COMMITTED:
                for rank in range(ranks):
                    clocks[rank] += next(duration)
                    stamp(rank, phase, version, False)
            for rank in range(ranks):
                clocks[rank] += next(duration)
            entered = [stamp(rank, at, version, True) for rank in range(ranks)]
            if not all(entered):
                return stamps
            clocks = [max(clocks)] * ranks
            for rank in range(ranks):
                stamp(rank, phase, version, False)
        for rank in range(ranks):
            clocks[rank] += next(duration)
            stamp(rank, IDLE, version + 1, False)
    return stamps


@dataclasses.dataclass
class Life:
    """What an agent sees of one worker at any time."""

    rank: int
    stamps: list[Stamp]
    beats: Iterator[float]
    stops_at: float = math.inf
    """When the whole process stops, not only its main thread."""
    pulse: int = 1
    beat_at: float = 0.0

    def seen(self, now: float) -> Sighting:
        while self.beat_at <= min(now, self.stops_at):
            self.beat_at += next(self.beats)
            self.pulse += 1
        past = [stamp for stamp in self.stamps if stamp[0] <= min(now, self.stops_at)]
        at, phase, version, waiting = past[-1]
        return Sighting(
            WorkerId(self.rank),
            Rank(self.rank),
            phase,
            version,
            Generation(1),
            self.pulse,
            len(past),
            now - at,
            0.0,
            waiting,
        )


def play(lives: list[Life], until: float, looks: list[float], delays: list[float]) -> list[tuple[float, Finding]]:
    """Two agents look at their workers in their own rhythm; their messages come late, but in order."""
    detector = Detector(len(lives), WARM)
    detector.resume(0.0, BEGAN)
    arrivals: list[tuple[float, int, NodeId, list[Sighting]]] = []
    for node, mine in ((A, lives[::2]), (B, lives[1::2])):
        now, arrived = 0.0, 0.0
        for passed_s, late_s in zip(cycle(looks), cycle(delays), strict=False):
            arrived = max(arrived, now + late_s)
            arrivals.append((arrived, len(arrivals), node, [life.seen(now) for life in mine]))
            now += passed_s
            if now > until:
                break
    findings: list[tuple[float, Finding]] = []
    for arrived, _, node, sightings in sorted(arrivals, key=lambda arrival: arrival[:2]):
        found = [*detector.observe(node, sightings, arrived), *detector.check(arrived)]
        findings += [(arrived, finding) for finding in found]
    return findings


def spans(most_s: float, least_s: float = 0.01) -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(least_s, most_s), min_size=1, max_size=17)


def halted(worker: Life, stamp: int) -> bool:
    """Whether it is really its turn there: it is not in a collective, so nobody else can be the one to wait for."""
    return stamp <= len(worker.stamps) and not worker.stamps[stamp - 1][3]


@settings(max_examples=80, deadline=None)
@given(
    ranks=st.integers(2, 4),
    durations=spans(1.9),
    beats=spans(1.0, 0.05),
    looks=spans(1.0, 0.05),
    delays=spans(1.0, 0.0),
)
def test_whoever_lives_gets_no_verdict_whatever_the_jitter(
    ranks: int, durations: list[float], beats: list[float], looks: list[float], delays: list[float]
) -> None:
    stamps = train(ranks, 6, durations, None)
    lives = [Life(rank, mine, cycle(beats[rank % len(beats) :] or beats)) for rank, mine in enumerate(stamps)]
    assert play(lives, min(mine[-1][0] for mine in stamps), looks, delays) == []


@settings(max_examples=120, deadline=None)
@given(
    ranks=st.integers(2, 4),
    halt=st.tuples(st.integers(0, 3), st.integers(1, 40)),
    freezes=st.booleans(),
    durations=spans(0.35),
    looks=spans(0.15, 0.05),
)
def test_the_one_who_stops_for_good_is_judged_in_time_and_nobody_else(
    ranks: int, halt: tuple[int, int], freezes: bool, durations: list[float], looks: list[float]
) -> None:
    halt = (halt[0] % ranks, halt[1])
    stamps = train(ranks, 8, durations, halt)
    lives = [Life(rank, mine, cycle([0.05])) for rank, mine in enumerate(stamps)]
    victim = lives[halt[0]]
    if not freezes and not halted(victim, halt[1]):
        return
    stopped_at = victim.stamps[-1][0]
    if freezes:
        victim.stops_at = stopped_at
    [(judged_at, verdict)] = play(lives, stopped_at + 8.0, looks, [0.0])
    assert isinstance(verdict, Verdict)
    assert (verdict.worker, verdict.cause) == (victim.rank, Cause.FROZEN if freezes else Cause.HANG)
    # One look to see the last move or beat, one to see that the time is over.
    assert 2.0 <= judged_at - stopped_at <= 2.0 + 2 * max(looks) + 0.05


def test_the_trace_generator_itself_moves_on() -> None:
    for mine in train(3, 4, [0.1, 0.2], None):
        assert mine[-1][1:] == (IDLE, 4, False)
        assert all(before[0] <= after[0] for before, after in pairwise(mine))
