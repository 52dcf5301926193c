"""One clock for all nodes: what the controller's wall clock showed at a moment of a node's monotonic clock.

A node asks the controller for the time, and knows only that the answer was made between its question and the arrival.
So each exchange gives an interval, as long as the round trip. No clock is read here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from everstep.observe.notes import Clock, Opened

_NS = 1e-9


class Exchange(NamedTuple):
    """A question and its answer. Only the answer is by the controller's clock."""

    sent_ns: int
    wall_s: float
    received_ns: int


def estimate(exchanges: Iterable[Exchange], at_ns: int, own_wall_s: float) -> Clock:
    """From the shortest of some exchanges in a row.

    ``own_wall_s`` is what the clock of this node shows at ``at_ns``: if it fits the interval it is taken. So it is
    exact on the controller's own machine, and nodes whose clocks are synchronized well are as good as that.
    """
    best = min(exchanges, key=lambda exchange: exchange.received_ns - exchange.sent_ns)
    earliest_s = best.wall_s + (at_ns - best.received_ns) * _NS
    latest_s = best.wall_s + (at_ns - best.sent_ns) * _NS
    return Clock(at_ns, min(max(own_wall_s, earliest_s), latest_s), latest_s - earliest_s)


class NodeClock:
    """The clock of one agent's time on a node."""

    def __init__(self, opened: Opened, clocks: Sequence[Clock]) -> None:
        known = sorted(clocks, key=lambda clock: clock.at_ns) or [Clock(opened.at_ns, opened.wall_s, 0.0)]
        # Relative to the first: a float that holds seconds since 1970 and nanoseconds would not be exact.
        self._at_ns = [clock.at_ns for clock in known]
        self._wall_s = [clock.wall_s for clock in known]

    def wall_s(self, at_ns: int) -> float:
        """In between two estimates the clocks drift evenly; outside of all, not at all."""
        right = bisect_right(self._at_ns, at_ns)
        left = max(0, right - 1)
        since_s = (at_ns - self._at_ns[left]) * _NS
        if 0 < right < len(self._at_ns):
            length_s = (self._at_ns[right] - self._at_ns[left]) * _NS
            since_s *= (self._wall_s[right] - self._wall_s[left]) / length_s
        return self._wall_s[left] + since_s
