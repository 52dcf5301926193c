"""F(t): what checkpoints and fallbacks cost the run for each interval t, with the best t and the one in use."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from everstep.core.interval import Measured, waste_s
from everstep.errors import ConfigError
from everstep.observe import plan as planning
from everstep.observe.plan import Plan
from everstep.observe.report import words
from everstep.observe.report.markup import Markup, join
from everstep.observe.report.run import Run
from everstep.observe.report.svg import SMALL_PX, Svg, group, hint, line, nothing, path, text, text_width, wrapped
from everstep.observe.report.words import duration

WIDE = 1120.0
HEIGHT = 190.0
AROUND = 10.0
"""From t* / 10 to 10 t*."""
POINTS = 96


def waste_curve(run: Run, width: float = WIDE) -> Svg:
    name, title = "checkpoint-interval", "How often to take a checkpoint: F(t)"
    made = plan_of(run)
    if made is None:
        return nothing(name, title, "No checkpoint was recorded, so nobody knows what one costs here.", width)
    steps = run.checkpoints[-1].every
    used_s = steps * made.inputs.step_s.value if made.inputs.step_s is not None else None
    body, height = _chart(made, used_s, width)
    rows = wrapped(run.checkpoints[-1].why, width - 16, SMALL_PX)
    shapes = [text(8, height + 14 * index, row, "small soft") for index, row in enumerate(rows)]
    return Svg(name, width, height + 14 * len(rows), title, waste_summary(made, steps), join([body, *shapes]))


def plan_of(run: Run) -> Plan | None:
    """With what this run has measured; the rest is assumed, as `everstep plan` does."""
    if not run.checkpoints:
        return None
    run_s = run.trained_s - run.began_s if run.trained_s is not None and run.began_s is not None else None
    try:
        return planning.plan({}, planning.seen(run.recoveries, run.checkpoints, run_s, run.ranks or None))
    except ConfigError:  # numbers of which no formula can be made, as of a clock that was set
        return None


def waste_summary(made: Plan, steps: int) -> str:
    best = f"t* = {duration(made.optimum_s)}"
    if made.steps is not None:
        best += f", so a checkpoint every {words.plural(made.steps, 'step')}"
    return f"F(t) is least at {best}; the run takes one every {words.plural(steps, 'step')}."


@dataclass(frozen=True, slots=True)
class _Chart:
    """Both axes are logarithmic: F grows tenfold on both sides of its least value."""

    left: float
    right: float
    top: float
    base: float
    t: tuple[float, float]
    share: tuple[float, float]

    def x(self, t_s: float) -> float:
        return self.left + (self.right - self.left) * _part(t_s, self.t)

    def y(self, share: float) -> float:
        return self.base - (self.base - self.top) * _part(share, self.share)


def _part(value: float, ends: tuple[float, float]) -> float:
    return math.log(value / ends[0]) / math.log(ends[1] / ends[0])


def _chart(made: Plan, used_s: float | None, width: float) -> tuple[Markup, float]:
    least, most = made.optimum_s / AROUND, made.optimum_s * AROUND
    for other in (used_s, made.t_s):
        if other is not None:
            least, most = min(least, other / 1.6), max(most, other * 1.6)
    ts = [least * (most / least) ** (index / POINTS) for index in range(POINTS + 1)]
    shares = [_share(made, t) for t in ts]
    left = 58.0 if width < 600 else 158.0
    chart = _Chart(left, width - 14, 26, 26 + HEIGHT, (least, most), (min(shares) / 1.8, max(shares) * 1.1))
    points = "L".join(f"{chart.x(t):.2f},{chart.y(share):.2f}" for t, share in zip(ts, shares, strict=True))
    shapes = [*_axes(chart), path(f"M{points}", "curve")]
    marks = [(made.optimum_s, "t*, least waste", "dot")]
    if made.t_s > made.optimum_s * 1.001:
        marks.append((made.t_s, "k₁, storage is no faster", "dot"))
    if used_s is not None:
        marks.append((used_s, "t in use", "dot used"))
    for index, (t, name, class_) in enumerate(marks):
        x, y = chart.x(t), chart.y(_share(made, t))
        told = hint(f"{name}: {duration(t)}", f"wastes {words.share(_share(made, t))} of the run")
        label = f"{name}: {duration(t)}"
        half = text_width(label, SMALL_PX, bold=True) / 2
        middle = min(max(x, chart.left + half), width - half - 4)
        shapes.append(line(x, y, x, chart.base, "boundary"))
        shapes.append(path(f"M{x - 5:.2f},{y:.2f}a5,5 0 1,0 10,0a5,5 0 1,0 -10,0Z", class_, told))
        shapes.append(text(middle, chart.base - 8 - 15 * index, label, "small bold middle outlined"))
    return group(*shapes, class_="waste"), chart.base + 48


def _axes(chart: _Chart) -> Iterator[Markup]:
    edge = math.inf
    for share in _round(*chart.share):
        y = chart.y(share)
        if y < edge:
            yield line(chart.left, y, chart.right, y, "grid")
            yield text(chart.left - 6, y + 4, words.share(share), "small soft end")
            edge = y - 22
    yield line(chart.left, chart.base, chart.right, chart.base, "axis")
    edge = -math.inf
    for t in _round(*chart.t):
        x, half = chart.x(t), text_width(duration(t), SMALL_PX) / 2
        if x - half > edge and x + half < chart.right + 12:
            yield line(x, chart.base, x, chart.base + 4, "axis")
            yield text(x, chart.base + 16, duration(t), "small soft middle")
            edge = x + half + 14
    yield text(chart.left, chart.base + 32, "t: training between two checkpoints", "small soft")
    yield text(8, 12, "wasted share of the run", "small soft")


def _round(least: float, most: float) -> Iterator[float]:
    power = 10.0 ** math.floor(math.log10(least))
    while power <= most:
        yield from (value for value in (power, 2 * power, 5 * power) if least <= value <= most)
        power *= 10


def _share(made: Plan, t_s: float) -> float:
    inputs = made.inputs
    cost_s = Measured(inputs.k0_s.value, inputs.k1_s.value, inputs.slowdown.value, 1.0).cost_s
    run_s = inputs.run_s.value
    return waste_s(run_s, t_s, cost_s, inputs.mtbf_s.value, inputs.healed_share.value, inputs.fallback_s.value) / run_s
