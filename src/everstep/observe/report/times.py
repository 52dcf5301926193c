"""How long recoveries took: a histogram, and where the time of each went."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from everstep.observe.records import Recovery
from everstep.observe.report import words
from everstep.observe.report.markup import Markup, join
from everstep.observe.report.parts import Key, legend, square
from everstep.observe.report.run import Run
from everstep.observe.report.scale import nice
from everstep.observe.report.scene import STAGE_CLASSES, recovered, stage_times
from everstep.observe.report.svg import SMALL_PX, Svg, group, hint, line, nothing, rect, text, text_width

WIDE = 1120.0
BINS = 24
MOST_BARS = 14
BAR, ROOM = 15.0, 21.0
CHART = 130.0


def recovery_times(run: Run, width: float = WIDE) -> Svg:
    """Those that succeeded; what failed has no time of recovery."""
    done = [recovery for recovery in run.recoveries if recovered(recovery)]
    name, title = "recovery-times", "How long recoveries took"
    if not done:
        return nothing(name, title, "No recovery has been completed in this run.", width)
    seconds = sorted(recovery.t_total_s for recovery in done)
    histogram, y = _histogram(seconds, width, 16)
    bars, height = _bars(done, width, y + 14)
    return Svg(name, width, height, title, times_summary(seconds), join([histogram, bars]))


def times_summary(seconds: Sequence[float]) -> str:
    return (
        f"{words.plural(len(seconds), 'recovery', 'recoveries')}: median {words.duration(median(seconds))}, "
        f"from {words.duration(seconds[0])} to {words.duration(seconds[-1])}."
    )


def _histogram(seconds: Sequence[float], width: float, top: float) -> tuple[Markup, float]:
    left, right = (34.0, width - 10.0) if width < 600 else (158.0, width - 14.0)
    bin_s = nice(max(seconds[-1], 1e-6) * 1.02 / BINS)
    bins = math.ceil(seconds[-1] / bin_s + 1e-9) + 1
    counts = [0] * bins
    for value in seconds:
        counts[int(value / bin_s)] += 1
    most = max(counts)
    base = top + CHART

    def x(value: float) -> float:
        return left + (right - left) * value / (bins * bin_s)

    shapes = []
    for level in sorted({most, round(most / 2)} - {0}):
        y = base - CHART * level / most
        shapes += [line(left, y, right, y, "grid"), text(left - 6, y + 4, str(level), "small soft end")]
    for index, count in enumerate(counts):
        if count:
            y = base - CHART * count / most
            told = hint(
                words.plural(count, "recovery", "recoveries"),
                f"{words.duration(index * bin_s)} to {words.duration((index + 1) * bin_s)}",
            )
            box = x((index + 1) * bin_s) - x(index * bin_s) - 2
            shapes.append(rect(x(index * bin_s) + 1, y, box, base - y, "bar", told, data_count=str(count)))
    shapes.append(line(left, base, right, base, "axis"))
    tick_s = nice(bins * bin_s / max(2, (right - left) // 90))
    for index in range(int(bins * bin_s / tick_s + 1e-9) + 1):
        label = words.duration(index * tick_s) if index else "0"
        half = text_width(label, SMALL_PX) / 2
        at = min(max(x(index * tick_s), left), width - half - 2)
        shapes.append(line(x(index * tick_s), base, x(index * tick_s), base + 4, "axis"))
        shapes.append(text(at, base + 16, label, "small soft middle"))
    middle = x(median(seconds))
    said = f"median {words.duration(median(seconds))}"
    half = text_width(said, SMALL_PX, bold=True) / 2
    shapes.append(line(middle, top, middle, base, "median"))
    shapes.append(text(min(max(middle, left + half), width - half - 4), top - 4, said, "small bold middle"))
    return group(*shapes, class_="histogram"), base + 26


def _bars(recoveries: Sequence[Recovery], width: float, top: float) -> tuple[Markup, float]:
    """One bar for each, its stages in their order; of many, the longest."""
    shown = sorted(sorted(recoveries, key=lambda one: -one.t_total_s)[:MOST_BARS], key=lambda one: one.number)
    narrow = width < 600
    left, right = (34.0, width - 64.0) if narrow else (158.0, width - 74.0)
    longest = max(recovery.t_total_s for recovery in shown) or 1.0
    keys = [Key(name, square(f"stage {class_}")) for name, class_ in STAGE_CLASSES.items() if name != "restart"]
    head, y = legend(keys, 8, width - 8, top)
    shapes = [head]
    for recovery in shown:
        name = f"#{recovery.number}" if narrow else f"recovery {recovery.number}"
        shapes.append(text(left - 12 if not narrow else left - 6, y + 12, name, "small end"))
        x = left
        for stage, seconds in stage_times(recovery):
            length = (right - left) * seconds / longest
            told = hint(f"recovery {recovery.number}, {stage}: {words.exact(seconds)}")
            if length > 0:
                shapes.append(rect(x, y, length, BAR, f"stage {STAGE_CLASSES[stage]}", told))
            x += length
        shapes.append(text(x + 6, y + 12, words.duration(recovery.t_total_s), "small bold"))
        y += ROOM
    if len(recoveries) > len(shown):
        shapes.append(text(left, y + 12, f"the {len(shown)} longest of {len(recoveries)}", "small soft"))
        y += 20
    return group(*shapes, class_="stages"), y + 6
