"""Where a time lies in a picture."""

from __future__ import annotations

import pytest

from everstep.observe.report.scale import Scale, nice


def test_without_a_long_wait_it_is_linear() -> None:
    scale = Scale.fit([1, 2, 3], 0, 4, 100, 500)
    assert [scale(time) for time in (0, 1, 2.5, 4)] == [100, 200, 350, 500]
    assert scale.cuts == ()


def test_times_outside_lie_on_the_edges() -> None:
    scale = Scale.fit([], 0, 4, 100, 500)
    assert (scale(-1), scale(5)) == (100, 500)


def test_a_long_wait_is_cut_and_all_else_keeps_one_slope() -> None:
    scale = Scale.fit([1, 2, 102, 103], 0, 104, 0, 1000)
    [cut] = scale.cuts
    assert (cut.start_s, cut.end_s, cut.length_s) == (2, 102, 100)
    assert scale(1) - scale(0) == pytest.approx(scale(104) - scale(103))
    assert scale(102) - scale(2) == pytest.approx(160)
    assert scale(104) == 1000


def test_it_only_grows() -> None:
    scale = Scale.fit([0.1, 0.2, 50, 50.1, 400, 400.2], 0, 401, 10, 800)
    places = [scale(index / 10) for index in range(4010)]
    assert places == sorted(places)


def test_ticks_are_round_from_zero_and_never_inside_a_cut() -> None:
    scale = Scale.fit([1, 2, 102, 103], 0, 104, 0, 1000)
    ticks = [tick - 0.5 for tick in scale.ticks(0.5, 8)]
    assert all(tick == pytest.approx(round(tick * 2) / 2) for tick in ticks)
    assert all(not 2 < tick + 0.5 < 102 for tick in ticks)


@pytest.mark.parametrize(("value", "rounder"), [(0.3, 0.5), (1, 1), (1.1, 2), (7, 10), (0, 1)])
def test_a_nice_number_is_the_next_one(value: float, rounder: float) -> None:
    assert nice(value) == pytest.approx(rounder)
