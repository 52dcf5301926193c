"""A node's monotonic clock is brought to the controller's: as exactly as the shortest round trip allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.observe.clocks import Exchange, NodeClock, estimate
from everstep.observe.notes import Clock, Opened

S = 1_000_000_000
OPENED = Opened("a", "host", 1, 100 * S, 5000.0)


@given(
    offset_s=st.floats(-1e6, 1e6),
    trips=st.lists(st.tuples(st.integers(1, S), st.integers(1, S)), min_size=1, max_size=5),
    own_error_s=st.floats(-1e3, 1e3),
)
def test_the_truth_is_never_further_off_than_the_error_that_is_told(
    offset_s: float, trips: list[tuple[int, int]], own_error_s: float
) -> None:
    """The way there and the way back take as long as they like; the node's own clock shows what it likes."""
    now_ns, exchanges = 50 * S, []
    for there_ns, back_ns in trips:
        exchanges.append(Exchange(now_ns, offset_s + (now_ns + there_ns) / S, now_ns + there_ns + back_ns))
        now_ns += there_ns + back_ns
    truth_s = offset_s + now_ns / S
    clock = estimate(exchanges, now_ns, truth_s + own_error_s)
    assert abs(clock.wall_s - truth_s) <= clock.error_s + 1e-6
    assert clock.error_s == pytest.approx(min(sum(trip) for trip in trips) / S, abs=1e-6)


def test_a_clock_of_the_node_that_can_be_right_is_taken_as_it_is() -> None:
    exchange = Exchange(10 * S, 1000.5, 11 * S)
    assert estimate([exchange], 20 * S, 1010.25) == Clock(20 * S, 1010.25, 1.0)


@pytest.mark.parametrize(("own_s", "taken_s"), [(0.0, 1009.5), (2000.0, 1010.5)])
def test_one_that_cannot_be_right_is_not_believed(own_s: float, taken_s: float) -> None:
    assert estimate([Exchange(10 * S, 1000.5, 11 * S)], 20 * S, own_s).wall_s == taken_s


def test_without_an_answer_the_nodes_own_clock_has_to_do() -> None:
    assert NodeClock(OPENED, []).wall_s(103 * S) == 5003.0


def test_between_two_estimates_the_drift_is_even_and_outside_there_is_none() -> None:
    clock = NodeClock(OPENED, [Clock(110 * S, 6010.0, 0.0), Clock(120 * S, 6022.0, 0.0)])
    assert [clock.wall_s(at * S) for at in (100, 110, 115, 120, 130)] == [6000.0, 6010.0, 6016.0, 6022.0, 6032.0]


@given(ticks=st.lists(st.integers(0, 1000), min_size=2, max_size=20))
def test_time_never_runs_backwards_where_the_controllers_does_not(ticks: list[int]) -> None:
    clock = NodeClock(OPENED, [Clock(at * S, 5000.0 + at * 1.01, 0.0) for at in (10, 300, 700)])
    times = [clock.wall_s(at * S) for at in sorted(ticks)]
    assert times == sorted(times)
