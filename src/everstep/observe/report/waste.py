"""F(t): what checkpoints and fallbacks cost the run for each interval t, with the best t and the one in use."""

from __future__ import annotations

import math
from collections.abc import Iterator

from everstep.core.interval import Measured, waste_s
from everstep.errors import ConfigError
from everstep.observe import plan as planning
from everstep.observe.plan import Plan, Value
from everstep.observe.report import words
from everstep.observe.report.markup import Markup, join
from everstep.observe.report.run import Run
from everstep.observe.report.scale import nice
from everstep.observe.report.svg import SMALL_PX, Svg, group, hint, line, nothing, path, text, text_width, wrapped
from everstep.observe.report.words import duration

WIDE = 1120.0
CHART = 190.0
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


def _chart(made: Plan, used_s: float | None, width: float) -> tuple[Markup, float]:
    narrow = width < 600
    left, right, top = (46.0 if narrow else 158.0), width - 14.0, 22.0
    base = top + CHART
    low, high = made.optimum_s / AROUND, made.optimum_s * AROUND
    for other in (used_s, made.inputs.k1_s.value):
        if other is not None and made.optimum_s / 1000 < other < made.optimum_s * 1000:
            low, high = min(low, other / 1.6), max(high, other * 1.6)
    ts = [low * (high / low) ** (index / POINTS) for index in range(POINTS + 1)]
    curves = {"curve": [_share(made, t) for t in ts]}
    least = _share(made, made.optimum_s)
    most = min(max(curves["curve"]), least * 6)

    def x(t: float) -> float:
        return left + (right - left) * math.log(t / low) / math.log(high / low)

    def y(share: float) -> float:
        return base - CHART * min(share / most, 1.06)

    shapes = [*_axes(left, right, base, most, x, y, low, high)]
    d = "L".join(f"{x(t):.2f},{y(share):.2f}" for t, share in zip(ts, curves["curve"], strict=True))
    shapes.append(path(f"M{d}", "curve"))
    marks = [(made.optimum_s, "t*: least waste", "dot")]
    if made.t_s > made.optimum_s * 1.001:
        marks.append((made.t_s, "k₁: storage follows no faster", "dot"))
    if used_s is not None:
        marks.append((used_s, "t in use", "dot used"))
    for index, (t, name, class_) in enumerate(marks):
        share = _share(made, t)
        told = hint(f"{name}: {duration(t)}", f"wastes {words.share(share)} of the run")
        label = f"{name}, {duration(t)}"
        half = text_width(label, SMALL_PX, bold=True) / 2
        at = min(max(x(t), left + half), width - half - 4)
        row = base - 16 - 17 * index
        shapes.append(line(x(t), y(share), x(t), base, "boundary"))
        shapes.append(tag_circle(x(t), y(share), class_, told))
        shapes.append(text(at, row, label, "small bold middle outlined"))
    return group(*shapes, class_="waste"), base + 46


def tag_circle(x: float, y: float, class_: str, told: Markup) -> Markup:
    return path(f"M{x - 5:.2f},{y:.2f}a5,5 0 1,0 10,0a5,5 0 1,0 -10,0Z", class_, told)


def _axes(left, right, base, most, x, y, low, high) -> Iterator[Markup]:  # type: ignore[no-untyped-def]
    step = nice(most / 4)
    for index in range(int(most / step + 1e-9) + 1):
        level = y(index * step)
        yield line(left, level, right, level, "grid")
        yield text(left - 6, level + 4, words.share(index * step) if index else "0", "small soft end")
    yield line(left, base, right, base, "axis")
    decade = 10.0 ** math.floor(math.log10(low))
    edge = -math.inf
    while decade <= high:
        for t in (decade, 2 * decade, 5 * decade):
            half = text_width(duration(t), SMALL_PX) / 2
            if low <= t <= high and x(t) - half > edge and x(t) + half < right + 12:
                yield line(x(t), base, x(t), base + 4, "axis")
                yield text(x(t), base + 16, duration(t), "small soft middle")
                edge = x(t) + half + 14
        decade *= 10
    yield text(left, base + 32, "t: training between two checkpoints", "small soft")
    yield text(left - 6, 12, "wasted share of the run", "small soft")


def _share(made: Plan, t_s: float) -> float:
    inputs = made.inputs
    cost_s = Measured(inputs.k0_s.value, inputs.k1_s.value, inputs.slowdown.value, 1.0).cost_s
    d: Value = inputs.run_s
    return waste_s(
        d.value, t_s, cost_s, inputs.mtbf_s.value, inputs.healed_share.value, inputs.fallback_s.value
    ) / d.value
