"""The failure-recovery timeline: everything is where its time is, under the names that the protocol has for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.observe.report.conftest import Drawing, parsed
from tests.observe.report.invented import (
    BACKWARD_S,
    BARRIER_S,
    FORWARD_S,
    OPTIMIZER_S,
    RESET_S,
    RESTORE_S,
    SETTLE_S,
    STEP,
    STOP_S,
    Fault,
    invented,
)

from everstep.observe.records import Decision, Failure, Outcome, Replacement
from everstep.observe.report.failure import failure_timeline
from everstep.observe.report.run import Run

DETECT_S = 0.012
STOPPED_S, RESTORED_S = DETECT_S, DETECT_S + STOP_S + SETTLE_S + RESET_S
RESUMED_S = RESTORED_S + RESTORE_S
PIXEL = 0.02


def drawn(run: Run, width: float = 1120.0) -> Drawing:
    return parsed(failure_timeline(run, run.recoveries[0], width))


def blocks(lane: Drawing, phase: str) -> list[tuple[float, float]]:
    return [
        (float(block.get("x", "")), float(block.get("x", "")) + float(block.get("width", "")))
        for block in lane.find("rect", phase=phase)
    ]


@pytest.mark.parametrize("width", [1120.0, 360.0])
def test_blocks_are_as_long_as_their_phases_took(width: float) -> None:
    drawing = drawn(invented(), width)
    lane = drawing.device(0)
    [_, again] = [block for block in blocks(lane, "FORWARD") if block[0] < drawing.place(RESUMED_S + 0.03)]
    assert again[0] == pytest.approx(drawing.place(RESUMED_S), abs=PIXEL)
    assert again[1] == pytest.approx(drawing.place(RESUMED_S + FORWARD_S), abs=PIXEL)
    [optimizer] = blocks(lane, "COMMITTED")
    assert optimizer[1] - optimizer[0] == pytest.approx(drawing.place(OPTIMIZER_S) - drawing.place(0), abs=PIXEL)


def test_the_failure_is_where_it_was_and_its_lane_ends_there() -> None:
    drawing = drawn(invented())
    [bolt] = drawing.find("g", arrow="bolt")
    assert float(bolt.get("data-time", "")) == pytest.approx(0, abs=1e-6)
    assert bolt.get("data-worker") == "2"
    assert max(end for _, end in blocks(drawing.device(2), "BACKWARD")) == pytest.approx(drawing.place(0), abs=PIXEL)
    assert "Failure" in drawing.words


def test_the_controller_stops_all_survivors_and_restores_the_replacement() -> None:
    drawing = drawn(invented())
    stops = {arrow.get("data-worker"): float(arrow.get("data-time", "")) for arrow in drawing.find("g", arrow="stop")}
    assert stops == {worker: pytest.approx(STOPPED_S, abs=1e-6) for worker in ("0", "1", "3")}
    [restore] = drawing.find("g", arrow="restore")
    assert restore.get("data-worker") == "4"
    assert float(restore.get("data-time", "")) == pytest.approx(RESTORED_S, abs=1e-6)
    assert {"Stop+Clean+Reset", "Restoration+Rollback", f"Controller: redo step {STEP}"} <= set(drawing.words)


def test_a_survivor_that_has_replaced_another_one_a_moment_before_is_the_one_that_is_shown() -> None:
    run = invented()
    [recovery, *_] = run.recoveries
    [survivor] = [lane for lane in run.lanes if lane.worker == 1]
    others = [lane for lane in run.lanes if lane is not survivor]
    former = replace(survivor, end_s=recovery.time - recovery.t_detect_s - 0.5)
    drawing = drawn(replace(run, lanes=(*others, former, replace(survivor, worker=9))))
    assert blocks(drawing.device(9), "FORWARD")
    assert not [group for group in drawing.find("g", worker="1") if group.get("class") == "device"]


def test_heads_of_arrows_touch_the_blocks_that_they_start() -> None:
    drawing = drawn(invented())
    [arrow] = [arrow for arrow in drawing.find("g", arrow="stop") if arrow.get("data-worker") == "1"]
    head = next(path for path in Drawing(arrow).find("path") if path.get("class") == "head").get("d", "")
    x, y = map(float, head[1:].split("L")[0].split(","))
    [first, *_] = drawing.device(1).find("rect", phase="STOP")
    assert x == pytest.approx(float(first.get("x", "")), abs=PIXEL)
    assert y == pytest.approx(float(first.get("y", "")), abs=PIXEL)


def test_the_barrier_is_where_the_first_device_passed_it() -> None:
    drawing = drawn(invented())
    [barrier] = drawing.having("barrier")
    passed_s = RESUMED_S + FORWARD_S + BACKWARD_S + BARRIER_S
    assert float(barrier.get("x1", "")) == pytest.approx(drawing.place(passed_s), abs=PIXEL)
    assert "Gradient Synchronization Barrier" in drawing.words


def test_in_forward_and_backward_the_step_is_done_again() -> None:
    words = drawn(invented()).words
    assert f"i-th step (step {STEP})" in words
    assert f"i-th step again (step {STEP})" in words


def test_in_the_optimizer_step_it_goes_on_with_the_next_one() -> None:
    drawing = drawn(invented(fault=Fault(phase="COMMITTED")))
    assert f"Controller: finish step {STEP}, go on with step {STEP + 1}" in drawing.words
    assert f"(i+1)-th step (step {STEP + 1})" in drawing.words
    assert len(list(drawing.having("barrier"))) == 2


def fills(lane: Drawing) -> list[str]:
    [held] = [group for group in lane.find("g") if group.get("class") == "held"]
    return [shape.get("class", "") for shape in held]


def test_parameters_are_updated_in_the_optimizer_step_and_the_replacement_has_none_before() -> None:
    drawing = drawn(invented())
    assert fills(drawing.device(0)) == ["old", "old", "new", "new"]  # not updated, the update (two halves), updated
    assert fills(drawing.device(2)) == ["old"]
    [held] = [group for group in drawing.device(4).find("g") if group.get("class") == "held"]
    assert float(held[0].get("x", "")) == pytest.approx(drawing.place(RESUMED_S), abs=PIXEL)


def test_a_replacement_after_the_optimizer_step_gets_updated_parameters() -> None:
    assert fills(drawn(invented(fault=Fault(phase="COMMITTED"))).device(4)) == ["new"]


def test_stages_add_up_to_the_recovery() -> None:
    run = invented()
    stages = {stage.get("data-stage"): stage for stage in drawn(run).having("stage")}
    assert list(stages) == ["detect", "stop", "settle", "reset", "restore", "first step"]
    spent = sum(float(s.get("data-end", "")) - float(s.get("data-start", "")) for s in stages.values())
    assert spent == pytest.approx(run.recoveries[0].t_total_s, abs=1e-4)


def test_a_long_wait_is_cut_and_says_how_long_it_was() -> None:
    drawing = drawn(invented(fault=Fault(phase="FORWARD", cause="HANG", detect_s=30.0)))
    assert "30.0 s cut" in drawing.words
    step = drawing.place(30.0 + STOP_S + SETTLE_S + RESET_S + RESTORE_S + FORWARD_S) - drawing.place(
        30.0 + STOP_S + SETTLE_S + RESET_S + RESTORE_S
    )
    assert step > 40


def test_a_device_that_hangs_has_failed_when_it_was_last_seen_to_move() -> None:
    drawing = drawn(invented(fault=Fault(phase="FORWARD", part=0.5, cause="HANG", detect_s=2.0)))
    [bolt] = drawing.find("g", arrow="bolt")
    assert float(bolt.get("data-time", "")) == pytest.approx(0, abs=1e-6)
    [*_, (_, end)] = blocks(drawing.device(2), "FORWARD")
    assert end == pytest.approx(drawing.place(2.0), abs=PIXEL)


def test_of_many_devices_only_those_involved_and_a_sample_are_shown() -> None:
    drawing = drawn(invented(1024))
    shown = {group.get("data-worker") for group in drawing.find("g") if group.get("class") == "device"}
    assert {"0", "2", "1024"} <= shown
    assert len(shown) == 5
    assert "1,020 more devices not shown." in drawing.words


def test_a_replacement_that_fails_too_has_one_lane_and_two_bolts_are_drawn() -> None:
    run = invented()
    [recovery] = run.recoveries
    second = Failure("EXIT", "killed", 4, 2, "local-0", "BUILDING", None, Replacement(5, "local-0", standby=False))
    both = replace(recovery, failures=(*recovery.failures, second))
    drawing = parsed(failure_timeline(replace(run, recoveries=(both,)), both))
    assert {bolt.get("data-worker") for bolt in drawing.find("g", arrow="bolt")} == {"2", "4"}
    assert len([group for group in drawing.find("g", worker="4") if group.get("class") == "device"]) == 1


def test_without_a_timeline_the_controller_and_its_stages_are_drawn() -> None:
    drawing = drawn(replace(invented(), lanes=()))
    assert f"Controller: redo step {STEP}" in drawing.words
    assert len(list(drawing.having("stage"))) == 6
    assert drawing.find("g", arrow="bolt")


def test_a_rollback_takes_back_updates_that_the_checkpoint_has_not() -> None:
    run = invented()
    [recovery] = run.recoveries
    back = replace(recovery, step=STEP, target=STEP - 2, decision=Decision.ROLLBACK, donors=())
    lanes = tuple(
        replace(
            lane,
            spans=tuple(replace(span, step=span.step - 2) if span.generation == 2 else span for span in lane.spans),
        )
        for lane in run.lanes
    )
    drawing = parsed(failure_timeline(replace(run, recoveries=(back,), lanes=lanes), back))
    assert f"Controller: back to the checkpoint of step {STEP - 2}" in drawing.words
    assert {f"step {STEP}", f"step {STEP - 2} again"} <= set(drawing.words)
    assert fills(drawing.device(0)) == ["new", "old", "old", "new", "new"]
    assert fills(drawing.device(2)) == ["new"]


@pytest.mark.parametrize("decision", [None, *Decision])
@pytest.mark.parametrize("outcome", Outcome)
def test_every_end_of_a_recovery_can_be_drawn(decision: Decision | None, outcome: Outcome) -> None:
    run = invented()
    recovery = replace(run.recoveries[0], decision=decision, outcome=outcome, failures=(), phase=None, step=None)
    assert parsed(failure_timeline(run, recovery)).words


def test_what_a_run_says_is_text_and_never_markup() -> None:
    evil = 'killed <script>alert("x")</script> \x1b[2J\x00 & so on'
    drawing = drawn(invented(fault=Fault(evidence=evil)))
    assert not list(drawing.root.iter("{http://www.w3.org/2000/svg}script"))
    assert any("<script>" in "".join(title.itertext()) for title in drawing.find("title"))
