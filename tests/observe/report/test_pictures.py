"""The consistency picture, the checkpoint timeline, F(t), the times of recoveries, all devices at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import pytest
from tests.observe.report.conftest import SVG, Drawing, parsed
from tests.observe.report.invented import (
    BACKWARD_S,
    BARRIER_S,
    FORWARD_S,
    OPTIMIZER_S,
    STEP_S,
    Fault,
    invented,
    with_checkpoints,
)

from everstep.observe.checkpoints import Fate
from everstep.observe.report.checkpoint import checkpoint_timeline
from everstep.observe.report.consistency import consistency
from everstep.observe.report.devices import all_devices
from everstep.observe.report.run import Run, State
from everstep.observe.report.steps import typical_step
from everstep.observe.report.svg import SMALL_PX, text_width
from everstep.observe.report.times import recovery_times
from everstep.observe.report.waste import waste_curve

PIXEL = 0.05
EMPTY = Run("run", State.EMPTY)


def test_a_typical_step_is_the_median_of_whole_ones() -> None:
    step = typical_step(invented(2, jitter_s=0.0).lanes)
    assert step is not None
    assert step.lengths == pytest.approx(
        {"FORWARD": FORWARD_S, "BACKWARD": BACKWARD_S, "READY": BARRIER_S, "COMMITTED": OPTIMIZER_S}, abs=1e-6
    )
    assert typical_step(()) is None


@pytest.mark.parametrize(("phase", "part"), [("FORWARD", 0.25), ("BACKWARD", 0.5), ("COMMITTED", 0.75)])
def test_failures_lie_in_their_phase_as_far_as_it_had_come(phase: str, part: float) -> None:
    drawing = parsed(consistency(invented(fault=Fault(phase=phase, part=part), jitter_s=0.0)))
    [first, second] = drawing.find("rect", phase=phase)
    x, width = float(second.get("x", "")), float(second.get("width", ""))
    assert float(first.get("x", "")) == x
    [failure] = drawing.find("g", count="1")
    points = [tuple(map(float, p.split(","))) for p in Drawing(failure).find("path")[0].get("d", "")[1:-1].split()]
    middle = points[0][0] - 2 * 1.15
    assert middle == pytest.approx(x + part * width, abs=0.2)


def test_the_band_changes_at_the_barrier() -> None:
    drawing = parsed(consistency(invented(jitter_s=0.0)))
    assert {"Consistent Parameters", "Update Parameters", "Gradient Synchronization", "Barrier"} <= set(drawing.words)
    [consistent] = [
        band
        for band in drawing.find("rect")
        if band.get("class") == "consistent" and float(band.get("height", "")) > 20
    ]
    [barrier] = [line for line in drawing.find("line") if line.get("class") == "barrier"]
    [optimizer, _] = drawing.find("rect", phase="COMMITTED")
    end = float(consistent.get("x", "")) + float(consistent.get("width", ""))
    assert end == pytest.approx(float(barrier.get("x1", "")), abs=PIXEL)
    assert end == pytest.approx(float(optimizer.get("x", "")), abs=PIXEL)


def test_failures_at_one_place_share_a_bolt() -> None:
    run = invented()
    drawing = parsed(consistency(replace(run, recoveries=run.recoveries * 3)))
    assert "3 × Failure" in drawing.words
    assert drawing.find("g", count="3")


def test_failures_outside_of_steps_are_counted() -> None:
    run = invented()
    [recovery] = run.recoveries
    outside = replace(recovery, failures=(replace(recovery.failures[0], phase="BUILDING"),))
    assert any(
        "1 failure outside of a step." in said
        for said in parsed(consistency(replace(run, recoveries=(outside,)))).words
    )


def test_k0_is_on_the_training_lane_and_k1_above_the_next_steps() -> None:
    drawing = parsed(checkpoint_timeline(with_checkpoints(invented(), k0_s=0.1, k1_s=0.4)))
    [memory] = [
        shape for shape in drawing.find("rect") if shape.get("class") == "memory-block" and shape.get("data-start")
    ]
    [storage] = [
        shape for shape in drawing.find("rect") if shape.get("class") == "storage-block" and shape.get("data-start")
    ]
    assert float(memory.get("x", "")) == pytest.approx(drawing.place(float(memory.get("data-start", ""))), abs=PIXEL)
    assert float(storage.get("x", "")) == pytest.approx(drawing.place(float(memory.get("data-end", ""))), abs=PIXEL)
    end = float(storage.get("x", "")) + float(storage.get("width", ""))
    assert end == pytest.approx(drawing.place(float(storage.get("data-start", "")) + 0.4), abs=PIXEL)
    assert float(storage.get("y", "")) + float(storage.get("height", "")) < float(memory.get("y", ""))
    assert sum("Training for t = 20 steps" in said for said in drawing.words) == 2


def test_a_short_k0_is_drawn_wider_and_says_so() -> None:
    drawing = parsed(checkpoint_timeline(with_checkpoints(invented())))
    [memory] = [
        shape for shape in drawing.find("rect") if shape.get("class") == "memory-block" and shape.get("data-start")
    ]
    assert float(memory.get("width", "")) == pytest.approx(64, abs=PIXEL)
    assert any("× as wide as it was" in said for said in drawing.words)


@pytest.mark.parametrize("fate", [Fate.SEALED, Fate.INCOMPLETE, Fate.SKIPPED])
def test_checkpoints_that_did_not_come_to_storage_are_drawn(fate: Fate) -> None:
    run = with_checkpoints(invented())
    records = tuple(
        replace(record, fate=fate, reason="storage failed", k1_s=None, committed_s=None, sealed_s=None)
        for record in run.checkpoints
    )
    assert parsed(checkpoint_timeline(replace(run, checkpoints=records))).words


def test_one_checkpoint_alone_can_be_drawn() -> None:
    assert parsed(checkpoint_timeline(with_checkpoints(invented(), count=1))).words


def test_the_curve_marks_the_best_interval_and_the_one_in_use() -> None:
    words = parsed(waste_curve(with_checkpoints(invented()))).words
    assert any(said.startswith("t in use: ") for said in words)
    assert any(said.startswith("t*, least waste: ") for said in words)


def test_the_histogram_counts_every_recovery() -> None:
    run = invented()
    several = tuple(replace(run.recoveries[0], number=n, t_total_s=0.1 * (1 + n % 3)) for n in range(9))
    drawing = parsed(recovery_times(replace(run, recoveries=several)))
    bars = list(drawing.having("count"))
    assert sorted(int(bar.get("data-count", "")) for bar in bars) == [3, 3, 3]


def test_all_devices_are_a_few_paths_however_many_there_are() -> None:
    run = invented(1024)
    drawing = parsed(all_devices(run, run.recoveries[0]))
    assert len(list(drawing.root.iter())) < 400
    [forward] = [path for path in drawing.find("path") if path.get("class") == "forward flat"]
    assert forward.get("d", "").count("M") > 1024
    assert STEP_S > 0


def test_of_too_many_devices_a_sample_is_shown_with_those_that_failed() -> None:
    run = invented(300)
    picture = all_devices(run, run.recoveries[0], most=50)
    assert "of 301 devices" in picture.summary
    assert "rank 2" in " ".join(parsed(picture).words) or picture.body.count("bolt") == 1


@pytest.mark.parametrize("draw", [consistency, checkpoint_timeline, waste_curve, recovery_times])
@pytest.mark.parametrize("width", [1120.0, 360.0])
def test_of_an_empty_run_each_picture_says_what_is_missing(draw: object, width: float) -> None:
    assert callable(draw)
    assert parsed(draw(EMPTY, width)).words


@pytest.mark.parametrize("width", [1120, 360, 300, 220])
def test_what_is_said_of_a_checkpoint_does_not_overlap(width: float) -> None:
    """At 300 the name of k₀ has one line above the lane, at 220 it is below."""
    said = list(boxes(parsed(checkpoint_timeline(with_checkpoints(invented()), width))))
    for (left, right, y, words), (other_left, other_right, other_y, others) in combinations(said, 2):
        apart = abs(y - other_y) >= SMALL_PX or right <= other_left or other_right <= left
        assert apart, (words, others)


def boxes(drawing: Drawing) -> Iterator[tuple[float, float, float, str]]:
    """Left, right and base line of each text of the cycle."""
    [cycle] = [group for group in drawing.find("g") if group.get("class") == "cycle"]
    for text in cycle.iter(f"{SVG}text"):
        kinds, words, x = (text.get("class") or "").split(), "".join(text.itertext()), float(text.get("x", ""))
        wide = text_width(words, SMALL_PX, bold="bold" in kinds) * 0.9  # the estimate is on the safe side
        left = x - (wide if "end" in kinds else wide / 2 if "middle" in kinds else 0)
        yield left, left + wide, float(text.get("y", "")), words
