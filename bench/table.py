"""What the tables of the benchmarks say of many measurements."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

median = statistics.median


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: one of the values, so with few of them the largest."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Of the median, with 95 %: two of the values, by their order alone."""
    ordered = sorted(values)
    reach = 0.98 * math.sqrt(len(ordered))
    low, high = math.floor(len(ordered) / 2 - reach), math.ceil(len(ordered) / 2 + reach)
    return ordered[max(0, low)], ordered[min(len(ordered) - 1, high)]
