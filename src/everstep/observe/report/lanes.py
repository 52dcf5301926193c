"""The lanes of the failure timeline: a device, what it did, and which parameters it held."""

from __future__ import annotations

from collections.abc import Iterator

from everstep.observe.report import words
from everstep.observe.report.markup import Markup, join, tag
from everstep.observe.report.parts import (
    CLASSES,
    LABELS,
    roomiest,
)
from everstep.observe.report.scene import Actor, Part, Scene
from everstep.observe.report.sheet import BLOCK, STRIP, Sheet, label_at
from everstep.observe.report.svg import (
    SMALL_PX,
    TEXT_PX,
    fitting,
    group,
    hint,
    path,
    rect,
    text,
)
from everstep.observe.report.words import COMMITTED, RESTORE, STEP_PHASES, STOPPED_PHASES
from everstep.observe.timeline import Span


def backdrop(sheet: Sheet) -> Markup:
    """Life of each device, behind its blocks."""
    shapes = []
    for actor in sheet.scene.actors:
        y, lane = sheet.lanes[actor.lane.worker], actor.lane
        start = lane.spans[0].start_s if lane.spans and actor.part is Part.NEWCOMER else sheet.scene.start_s
        end = actor.failed_s if actor.failed_s is not None else sheet.scene.end_s
        if lane.end_s is not None:
            end = min(lane.end_s, sheet.scene.end_s)
        x = sheet(start)
        shapes.append(rect(x, y, sheet(end) - x, BLOCK, "lane"))
    return join(shapes)


def lane(sheet: Sheet, actor: Actor) -> Markup:
    y = sheet.lanes[actor.lane.worker]
    blocks = [_block(sheet, actor, span, y) for span in actor.lane.spans if span.phase in CLASSES]
    return group(
        *blocks,
        _versions(sheet, actor, y + BLOCK + 2),
        class_="device",
        data_worker=str(actor.lane.worker),
    )


def name(sheet: Sheet, actor: Actor, y: float) -> Markup:
    lane = actor.lane
    rank = "no rank" if lane.rank is None else f"rank {lane.rank}"
    roles = {
        Part.SURVIVOR: "",
        Part.DONOR: "gives its state",
        Part.FAILED: "fails",
        Part.NEWCOMER: "was standby" if actor.standby else "new process",
    }
    facts = [rank, roles[actor.part]]
    if sheet.narrow:
        said = " · ".join(fact for fact in (*facts, lane.node) if fact)
        name = tag("tspan", f"Device {lane.worker}", class_="bold") + tag("tspan", f"  {said}", class_="small soft")
        return text(sheet.scale.left, y - 5, name, "outlined")
    node = fitting([lane.node, lane.node[:18] + "…", ""], 140, SMALL_PX)
    second = " · ".join(fact for fact in facts if fact)
    return join(
        [
            text(sheet.scale.left - 12, y + 9, f"Device {lane.worker}", "bold end"),
            text(sheet.scale.left - 12, y + 23, second, "small soft end"),
            text(sheet.scale.left - 12, y + 36, node, "small soft end"),
        ]
    )


def _block(sheet: Sheet, actor: Actor, span: Span, y: float) -> Markup:
    scene = sheet.scene
    start_s, end_s = max(span.start_s, scene.start_s), min(span.end_s or scene.end_s, scene.end_s)
    x, right = sheet(start_s), sheet(end_s)
    told = hint(
        f"Device {actor.lane.worker}, rank {actor.lane.rank}: {words.phase(span.phase)}"
        + (f" of step {span.step}" if span.phase in STEP_PHASES else ""),
        f"{words.exact((span.end_s or scene.end_s) - span.start_s)}, "
        f"from {sheet.since(span.start_s)} to {sheet.since(span.end_s or scene.end_s)} after the failure",
        f"attempt {span.attempt}, generation {span.generation}",
    )
    return rect(
        x,
        y,
        right - x,
        BLOCK,
        CLASSES[span.phase],
        told,
        data_phase=span.phase,
        data_start=f"{start_s - scene.failed_s:.6f}",
        data_end=f"{end_s - scene.failed_s:.6f}",
        data_step=str(span.step),
    )


def block_label(sheet: Sheet, span: Span, y: float) -> Markup | None:
    scale, scene = sheet.scale, sheet.scene
    x, right = roomiest(scale, scale(span.start_s), scale(span.end_s or scene.end_s))
    label = fitting(LABELS.get(span.phase, ()), right - x - 5, SMALL_PX if sheet.narrow else TEXT_PX)
    if not label:
        return None
    ink = "on-block" if span.phase in STEP_PHASES or span.phase == RESTORE else "outlined"
    return text((x + right) / 2, y + BLOCK / 2 + 4.5, label, f"{ink} middle" + (" small" if sheet.narrow else ""))


def _halted(actor: Actor) -> tuple[Span, ...]:
    return tuple(span for span in actor.lane.spans if span.phase in STOPPED_PHASES)


def halt_label(sheet: Sheet, actor: Actor, y: float) -> Markup | None:
    """Below the red blocks of the first device that has them: the others have the same."""
    first = next((other for other in sheet.scene.actors if other.part in _HEALTHY and _halted(other)), None)
    if first is None or first.lane.worker != actor.lane.worker:
        return None
    x = sheet(_halted(actor)[0].start_s)
    return label_at(sheet, x, y + BLOCK + STRIP + 13, "Stop+Clean+Reset", "small red bold outlined")


_HEALTHY = (Part.SURVIVOR, Part.DONOR)


def _versions(sheet: Sheet, actor: Actor, y: float) -> Markup:
    """Which parameters this device holds, over time: a thin strip."""
    shapes = []
    for start_s, end_s, state in _held(sheet.scene, actor):
        x, right = sheet(start_s), sheet(end_s)
        if state == "moving":  # the update goes through the parameters
            shapes.append(path(f"M{x:.2f},{y:.2f}H{right:.2f}L{x:.2f},{y + STRIP:.2f}Z", "old"))
            shapes.append(path(f"M{right:.2f},{y:.2f}V{y + STRIP:.2f}H{x:.2f}Z", "new"))
        else:
            shapes.append(rect(x, y, right - x, STRIP, state))
    return group(*shapes, class_="held")


def _held(scene: Scene, actor: Actor) -> Iterator[tuple[float, float, str]]:
    """(from, to, not updated: old, updated: new, between the two: moving). A newcomer begins with nothing."""
    at_s, state = scene.start_s, "old"
    end_s = actor.lane.end_s if actor.lane.end_s is not None else scene.end_s
    if actor.failed_s is not None:
        end_s = actor.failed_s
    end_s = min(end_s, scene.end_s)
    spans = actor.lane.spans
    if actor.part is Part.NEWCOMER:
        filled = [span.end_s for span in spans if span.phase == RESTORE and span.end_s is not None]
        if not filled:
            return
        at_s = filled[-1]
    elif scene.rolled_back:  # what it held was newer than the checkpoint
        back = [span.end_s for span in spans if span.phase == RESTORE and span.end_s is not None and span.end_s < end_s]
        yield at_s, back[-1] if back else end_s, "new"
        at_s = back[-1] if back else end_s
    elif spans and spans[0].step > scene.step and spans[0].phase in STEP_PHASES:
        state = "new"
    if actor.part is Part.NEWCOMER and scene.recovery.target > scene.step:
        state = "new"
    update = next((s for s in spans if s.phase == COMMITTED and s.step == scene.step and s.start_s >= at_s), None)
    if state == "old" and update is not None and update.end_s is not None:
        yield at_s, update.start_s, "old"
        yield update.start_s, min(update.end_s, end_s), "moving"
        at_s, state = update.end_s, "new"
    if at_s < end_s:
        yield at_s, end_s, state
