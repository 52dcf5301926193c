"""Where a time lies in a picture: linear, but for long stretches in which nothing happens, which are cut short.

A hang of two seconds in steps of 50 ms would else leave nothing to see but the hang.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

DULL = 0.45
"""A stretch without an event that takes more of the picture than this is cut short …"""
KEPT = 0.16
"""… to this."""
MOST_CUTS = 4


@dataclass(frozen=True, slots=True)
class Cut:
    """A stretch of time that is drawn shorter than it was."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Scale:
    """Knots (time, x), both growing; straight lines between them."""

    times: tuple[float, ...]
    places: tuple[float, ...]
    cuts: tuple[Cut, ...] = ()

    @classmethod
    def fit(cls, events: Iterable[float], start_s: float, end_s: float, left: float, right: float) -> Self:
        """From ``left`` at ``start_s`` to ``right`` at ``end_s``, with one slope wherever nothing is cut."""
        end_s = max(end_s, start_s + 1e-6)
        times = sorted({start_s, end_s, *(time for time in events if start_s < time < end_s)})
        lengths = [after - before for before, after in pairwise(times)]
        drawn = _shortened(lengths)
        cuts = tuple(
            Cut(before, after)
            for before, after, length, short in zip(times, times[1:], lengths, drawn, strict=False)
            if short < length
        )
        knots = sorted({start_s, end_s, *(cut.start_s for cut in cuts), *(cut.end_s for cut in cuts)})
        pixels = (right - left) / sum(drawn)
        places, at = [], left
        for time, short in zip(times, [*drawn, 0.0], strict=True):
            if time in knots:
                places.append(at)
            at += short * pixels
        places[-1] = right
        return cls(tuple(knots), tuple(places), cuts)

    def __call__(self, time_s: float) -> float:
        """Times outside of the picture lie on its edges."""
        time_s = min(max(time_s, self.times[0]), self.times[-1])
        index = min(bisect_right(self.times, time_s), len(self.times) - 1)
        (before, after), (left, right) = self.times[index - 1 : index + 1], self.places[index - 1 : index + 1]
        return left + (right - left) * (time_s - before) / (after - before)

    @property
    def start_s(self) -> float:
        return self.times[0]

    @property
    def end_s(self) -> float:
        return self.times[-1]

    @property
    def left(self) -> float:
        return self.places[0]

    @property
    def right(self) -> float:
        return self.places[-1]

    def ticks(self, zero_s: float, about: int) -> list[float]:
        """Round times, counted from ``zero_s``, outside of the cuts; at most some ``about``."""
        shown_s = (self.end_s - self.start_s) - sum(cut.length_s for cut in self.cuts)
        gap_s = nice(shown_s / max(about, 1))
        ticks = []
        for start_s, end_s in self._whole():
            first = math.ceil((start_s - zero_s) / gap_s - 1e-9)
            last = math.floor((end_s - zero_s) / gap_s + 1e-9)
            ticks += [zero_s + index * gap_s for index in range(first, last + 1)]
        return ticks

    def _whole(self) -> list[tuple[float, float]]:
        """What is not cut."""
        edges = [self.start_s, *(edge for cut in self.cuts for edge in (cut.start_s, cut.end_s)), self.end_s]
        return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if end > start]


def nice(value: float) -> float:
    """The next of 1, 2, 5, 10, …"""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 5, 10) if power * step >= value * (1 - 1e-9))


def _shortened(lengths: list[float]) -> list[float]:
    """The longest one is cut as long as it leaves too little for the rest."""
    drawn = list(lengths)
    for _ in range(MOST_CUTS):
        longest = max(range(len(drawn)), key=drawn.__getitem__)
        rest = sum(drawn) - drawn[longest]
        if rest <= 0 or drawn[longest] <= DULL * (rest + drawn[longest]):
            break
        drawn[longest] = rest * KEPT / (1 - KEPT)
    return drawn
