"""The Controller in the failure timeline, its arrows, failures, and the lines across all lanes."""

from __future__ import annotations

from collections.abc import Iterator

from everstep.observe.records import Decision, Donor, Failure, Recovery, one_line
from everstep.observe.report import words
from everstep.observe.report.markup import Markup, join
from everstep.observe.report.parts import (
    arrow,
    bolt,
)
from everstep.observe.report.scene import Actor, Part, Scene, StepSpan
from everstep.observe.report.sheet import BLOCK, LEAST_ROOM, STRIP, Sheet, label_at
from everstep.observe.report.svg import (
    SMALL_PX,
    fitting,
    group,
    hint,
    line,
    rect,
    text,
    text_width,
    wrapped,
)
from everstep.observe.report.words import READY, RESTORE, STOP
from everstep.observe.timeline import Span


def controller(sheet: Sheet) -> Markup:
    """An oval from the verdict until step T has committed."""
    scene, recovery = sheet.scene, sheet.scene.recovery
    start, end = sheet(scene.verdict_s) - 16, sheet(scene.over_s) + 16
    width = max(end - start, 110)
    start = min(start, sheet.width - 4 - width)
    y = sheet.controller
    what = {
        Decision.REDO: f"redo step {recovery.target}",
        Decision.FINISH: f"finish step {recovery.target - 1}, go on with step {recovery.target}",
        Decision.ROLLBACK: f"back to the checkpoint of step {recovery.target}",
        Decision.RESTART: "start again",
        None: "no decision",
    }[recovery.decision]
    brief = fitting([f"Controller: {what}", "Controller"], width - 30)
    told = hint(
        f"Controller: {what}",
        recovery.reason,
        f"verdict {sheet.since(scene.verdict_s)} after the failure, over {sheet.since(scene.over_s)} after it",
    )
    return group(
        rect(start, y, width, 30, "controller", told, rx=15),
        text(start + width / 2, y + 19.5, brief, "bold middle red"),
        class_="controller-lane",
    )


def arrows(sheet: Sheet) -> Iterator[Markup]:
    scene = sheet.scene
    bottom = sheet.controller + 30
    for actor in reversed(scene.actors):  # the heads of the upper ones lie on the shafts of the lower ones
        y = sheet.lanes[actor.lane.worker]
        who = f"Device {actor.lane.worker}"
        for span in actor.lane.spans:
            if span.phase == STOP:
                x = sheet(span.start_s)
                told = hint(f"Controller → {who}: Stop+Clean+Reset", f"{sheet.since(span.start_s)} after the failure")
                yield _timed(arrow([(x, bottom), (x, y)], "control", told), "stop", actor, span.start_s, scene)
        restored = [span for span in actor.lane.spans if span.phase == RESTORE]
        if actor.part is not Part.NEWCOMER or not restored:
            continue
        last = restored[-1]
        x = sheet(last.start_s)
        told = hint(f"Controller → {who}: Restoration+Rollback", f"{sheet.since(last.start_s)} after the failure")
        yield _timed(arrow([(x, bottom), (x, y)], "control", told), "restore", actor, last.start_s, scene)
        yield from _gift(sheet, actor, last, y)


def arrival_labels(sheet: Sheet, actor: Actor, y: float) -> Iterator[Markup]:
    restored = [span for span in actor.lane.spans if span.phase == RESTORE]
    if actor.part is not Part.NEWCOMER or not restored:
        return
    x = sheet(restored[-1].start_s)
    yield label_at(sheet, x, y + BLOCK + STRIP + 13, "Restoration+Rollback", "small red bold outlined")
    if _donor(sheet, actor) is not None and not sheet.narrow:
        given = f"state, {words.size(_each(sheet.scene.recovery))}"
        yield label_at(sheet, _gift_x(sheet, restored[-1]) + 8, y - 8, given, "small green outlined")


def _donor(sheet: Sheet, actor: Actor) -> Donor | None:
    """Who gave it its state, if both are in the picture."""
    donors = sheet.scene.recovery.donors
    return next((donor for donor in donors if donor.to == actor.lane.worker and donor.worker in sheet.lanes), None)


def _each(recovery: Recovery) -> int:
    return recovery.bytes // max(len(recovery.donors), 1)


def _gift_x(sheet: Sheet, span: Span) -> float:
    return max(sheet(((span.end_s or span.start_s) + span.start_s) / 2), sheet(span.start_s) + 9)


def _gift(sheet: Sheet, actor: Actor, span: Span, y: float) -> Iterator[Markup]:
    """State comes from a donor."""
    donor = _donor(sheet, actor)
    if donor is None:
        return
    x = _gift_x(sheet, span)
    what = f"state of step {sheet.scene.recovery.target}"
    told = hint(f"Device {donor.worker} → Device {actor.lane.worker}: {what}", words.size(_each(sheet.scene.recovery)))
    yield arrow([(x, sheet.lanes[donor.worker] + BLOCK + STRIP + 2), (x, y)], "state", told)


def _timed(shape: Markup, kind: str, actor: Actor, time_s: float, scene: Scene) -> Markup:
    return group(shape, data_arrow=kind, data_worker=str(actor.lane.worker), data_time=f"{time_s - scene.failed_s:.6f}")


def failure_arrows(sheet: Sheet) -> Iterator[Markup]:
    """From each failure to the Controller."""
    scene = sheet.scene
    for actor, failure, failed_s in scene.failed:
        y, x = sheet.lanes[actor.lane.worker], sheet(failed_s)
        verdict = sheet(scene.verdict_s) if failure is scene.recovery.failures[0] else x
        bend = (min(x, verdict) - 22, (y + sheet.controller + 30) / 2)
        points = [(x, y - 2), bend, (verdict, sheet.controller + 30)]
        yield _timed(arrow(points, "control", _failure_told(failure)), "failure", actor, failed_s, scene)


def bolts(sheet: Sheet) -> Iterator[Markup]:
    """Each failure at its place."""
    for actor, failure, failed_s in sheet.scene.failed:
        y = sheet.lanes[actor.lane.worker] + BLOCK / 2
        yield _timed(bolt(sheet(failed_s), y, _failure_told(failure)), "bolt", actor, failed_s, sheet.scene)


def _failure_told(failure: Failure) -> Markup:
    who = f"Failure of Device {failure.worker}, rank {failure.rank}"
    return hint(f"{who}: {words.cause(failure.cause)}", failure.evidence[:600])


def failure_words(sheet: Sheet, actor: Actor, x: float, y: float) -> Iterator[Markup]:
    assert actor.failure is not None
    end = sheet(actor.lane.end_s) if actor.lane.end_s is not None else x
    at = max(x, end) + 12
    room = _room_after(sheet, at)
    if room < LEAST_ROOM and sheet.scene.resume_s is not None:
        at = sheet(sheet.scene.resume_s) + 8
        room = _room_after(sheet, at)
    if room < LEAST_ROOM:
        yield label_at(sheet, x, y + BLOCK + STRIP + 13, "Failure", "small red bold outlined")
        return
    yield text(at, y + 11, "Failure", "red bold outlined")
    rows = wrapped(one_line(actor.failure.evidence), room, SMALL_PX)
    if len(rows) > 2 or any(text_width(row, SMALL_PX) > room for row in rows):
        said = one_line(actor.failure.evidence)
        rows = [fitting([said.partition(" in ")[0], words.cause(actor.failure.cause)], room, SMALL_PX)]
    for index, row in enumerate(rows):
        yield text(at, y + 24 + 13 * index, row, "small soft outlined")


def _room_after(sheet: Sheet, x: float) -> float:
    """Until the next arrow to a newcomer."""
    newcomers = (actor.lane for actor in sheet.scene.actors if actor.part is Part.NEWCOMER)
    arrows = [sheet(span.start_s) for lane in newcomers for span in lane.spans if span.phase == RESTORE]
    return min((arrow for arrow in arrows if arrow > x), default=sheet.scale.right) - 6 - x


def boundary(sheet: Sheet) -> Markup | None:
    """Where step T begins."""
    resume_s = sheet.scene.resume_s
    if resume_s is None:
        return None
    x = sheet(resume_s)
    return line(
        x, sheet.controller + 36, x, sheet.bottom + 6, "boundary", data_time=f"{resume_s - sheet.scene.failed_s:.6f}"
    )


def _shown_barrier(sheet: Sheet, step: StepSpan) -> float | None:
    """One that nobody passed is shown only if the failure was in it."""
    if step.barrier_s is None or not (step.passed or sheet.scene.recovery.phase == READY):
        return None
    return step.barrier_s if step.barrier_s <= sheet.scene.end_s else None


def barrier(sheet: Sheet, step: StepSpan) -> Markup | None:
    barrier_s = _shown_barrier(sheet, step)
    if barrier_s is None:
        return None
    x = sheet(barrier_s)
    passed = "passed" if step.passed else "reached, and not passed,"
    told = hint(
        f"Gradient Synchronization Barrier of step {step.step}",
        f"{passed} {sheet.since(barrier_s)} after the failure",
    )
    class_ = "barrier" if step.passed else "barrier open"
    since = f"{barrier_s - sheet.scene.failed_s:.6f}"
    return line(x, sheet.barriers + 20, x, sheet.bottom, class_, told, data_barrier=since)


def barrier_labels(sheet: Sheet) -> Markup:
    """In the order of time; the first one has the whole name, others as much as there is room for."""
    boxes, edge = [], sheet.scale.left - (0 if sheet.narrow else 150)
    places = [sheet(time) for time in (_shown_barrier(sheet, step) for step in sheet.scene.steps) if time is not None]
    for index, x in enumerate(places):
        limit = places[index + 1] - 32 if index + 1 < len(places) else sheet.scale.right
        for label in ("Gradient Synchronization Barrier", "Barrier"):
            width = text_width(label, SMALL_PX, bold=True) + 14
            start = min(max(x - width / 2, edge), limit - width)
            if start >= edge and start <= x <= start + width:
                boxes.append(rect(start, sheet.barriers, width, 20, "barrier-box", rx=3))
                boxes.append(text(start + width / 2, sheet.barriers + 14, label, "small red bold middle"))
                edge = start + width + 6
                break
    return join(boxes)
