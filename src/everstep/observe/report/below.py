"""Below the lanes of the failure timeline: the steps, where the time of the recovery went, and the reason."""

from __future__ import annotations

from everstep.observe.report import words
from everstep.observe.report.markup import Markup, join
from everstep.observe.report.parts import (
    axis,
)
from everstep.observe.report.scene import STAGE_CLASSES, Stage
from everstep.observe.report.sentences import summary
from everstep.observe.report.sheet import Sheet
from everstep.observe.report.svg import (
    SMALL_PX,
    fitting,
    group,
    hint,
    path,
    rect,
    spread,
    text,
    text_width,
    wrapped,
)


def below(sheet: Sheet) -> tuple[Markup, float]:
    """Steps, stages, the axis, the reason; and the height of it all."""
    y = sheet.bottom + 12
    parts = [_steps(sheet, y)]
    y += 34
    stages, y = _stages(sheet, y)
    parts += [stages, axis(sheet.scale, sheet.scene.failed_s, y, "0: failure")]
    y += 36
    for row in wrapped(summary(sheet.scene.recovery), sheet.width - 16, 12.5):
        parts.append(text(8, y, row))
        y += 18
    if sheet.scene.hidden:
        parts.append(text(8, y, f"{words.plural(sheet.scene.hidden, 'more device')} not shown.", "soft small"))
        y += 16
    return join(parts), y


def _steps(sheet: Sheet, y: float) -> Markup:
    shapes, edge = [], 0.0
    for step in sheet.scene.steps:
        x, right = sheet(max(step.start_s, sheet.scene.start_s)), sheet(min(step.end_s, sheet.scene.end_s))
        x = max(x, edge + 3)  # devices are not quite at one: the next step may have begun somewhere
        if right - x < 14:
            continue
        edge = right
        shapes.append(path(f"M{x:.2f},{y}v6H{right:.2f}v-6", "bracket"))
        offset = step.step - sheet.scene.step
        name = "i-th step" if offset == 0 else f"(i+{offset})-th step"
        again = " again" if step.again else ""
        choices = [f"{name}{again} (step {step.step})", f"{name}{again}", name, f"step {step.step}"]
        if sheet.scene.rolled_back:
            choices = [f"step {step.step}{again}", f"step {step.step}"]
        label = fitting(choices, right - x + 10, SMALL_PX)
        shapes.append(text((x + right) / 2, y + 20, label, "small middle"))
    return group(*shapes, class_="steps")


def _stages(sheet: Sheet, y: float) -> tuple[Markup, float]:
    """Where the time of the recovery went: a ruler with a label for each stage."""
    stages = [stage for stage in sheet.scene.stages if stage.end_s > stage.start_s]
    shapes = [_stage(sheet, stage, y) for stage in stages]
    if not sheet.narrow:
        total = words.duration(sheet.scene.recovery.t_total_s)
        shapes.append(text(sheet.scale.left - 12, y + 10, f"recovery {total}", "bold end"))
    left, right = 4 if sheet.narrow else sheet.scale.left, sheet.width - 4
    told = _told(stages, right - left)
    widths = [_label_width(stage) for stage in told]
    middles = [(sheet(stage.start_s) + sheet(stage.end_s)) / 2 for stage in told]
    for stage, middle, place in zip(told, middles, spread(middles, widths, left, right), strict=True):
        shapes.append(path(f"M{middle:.2f},{y + 12}v3L{place:.2f},{y + 22}v3", "leader"))
        shapes.append(text(place, y + 36, stage.name, "small middle"))
        shapes.append(text(place, y + 49, words.duration(stage.length_s), "small bold middle"))
    return group(*shapes, class_="stages"), y + 64


def _stage(sheet: Sheet, stage: Stage, y: float) -> Markup:
    x, right = sheet(stage.start_s), sheet(stage.end_s)
    told = hint(
        f"{stage.name}: {words.exact(stage.length_s)}",
        f"from {sheet.since(stage.start_s)} to {sheet.since(stage.end_s)} after the failure",
        "counted from the last sign of life" if stage.name == "detect" else "",
    )
    shape = rect(
        x,
        y,
        right - x,
        12,
        f"stage {STAGE_CLASSES[stage.name]}",
        told,
        data_stage=stage.name,
        data_start=f"{stage.start_s - sheet.scene.failed_s:.6f}",
        data_end=f"{stage.end_s - sheet.scene.failed_s:.6f}",
    )
    if stage.start_s < sheet.scene.failed_s < stage.end_s:  # it was still alive then
        shape += rect(x, y, sheet(sheet.scene.failed_s) - x, 12, "veil")
    return shape


def _told(stages: list[Stage], room: float) -> list[Stage]:
    """Where there are too many for their labels, those that took longest."""
    told = list(stages)
    while told and sum(map(_label_width, told)) > room:
        told.remove(min(told, key=lambda stage: stage.length_s))
    return told


def _label_width(stage: Stage) -> float:
    return max(text_width(stage.name, SMALL_PX), text_width(words.duration(stage.length_s), SMALL_PX, bold=True)) + 6
