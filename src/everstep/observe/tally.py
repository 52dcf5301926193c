"""Counts durations by size: what a histogram is drawn from. No clock, and no memory but a number for each bound."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

STEP_BOUNDS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
"""From an optimizer that has nothing to do to a step that evaluates as well."""

RECOVERY_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(slots=True)
class Tally:
    bounds_s: tuple[float, ...]
    """Upper and inclusive; what is more than the last one is counted too."""
    counts: list[int] = field(default_factory=list)
    """One more than there are bounds."""
    sum_s: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds_s) + 1)

    def add(self, duration_s: float) -> None:
        self.counts[bisect_left(self.bounds_s, duration_s)] += 1
        self.sum_s += duration_s

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """How many were at most so long, for each bound and at last for infinity."""
        so_far = 0
        for bound_s, count in zip((*self.bounds_s, float("inf")), self.counts, strict=True):
            so_far += count
            yield bound_s, so_far
