"""The failure-recovery timeline: device lanes over time, the parameters, the barrier, the Controller and its arrows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from everstep.observe.records import Decision, Donor, Recovery, one_line
from everstep.observe.report import words
from everstep.observe.report.markup import Markup, join, tag
from everstep.observe.report.parts import (
    CLASSES,
    LABELS,
    Key,
    arrow,
    axis,
    bolt,
    cuts,
    grid,
    legend,
    roomiest,
    square,
)
from everstep.observe.report.run import Run
from everstep.observe.report.scale import Scale
from everstep.observe.report.scene import STAGE_CLASSES, Actor, Part, Scene, StepSpan, recovered, set_scene
from everstep.observe.report.svg import (
    SMALL_PX,
    TEXT_PX,
    Svg,
    fitting,
    group,
    hint,
    line,
    path,
    rect,
    spread,
    text,
    text_width,
    wrapped,
)
from everstep.observe.report.words import COMMITTED, READY, RESTORE, RESUME, STEP_PHASES, STOPPED_PHASES
from everstep.observe.timeline import Span

WIDE, NARROW = 1120.0, 380.0
BLOCK, STRIP, GAP = 30.0, 6.0, 20.0
"""Heights: of a lane's blocks, of the parameters below it, and of the room for words below that."""
LEAST_ROOM = 64.0
"""For the words of a failure."""
SQUARE, ROWS = 8.0, 3
"""Of the parameters above all lanes."""


@dataclass(frozen=True, slots=True)
class _Sheet:
    """Where things are."""

    scene: Scene
    scale: Scale
    narrow: bool
    width: float
    barriers: float
    strip: float
    controller: float
    lanes: dict[int, float]
    """Top of the blocks of each worker."""
    bottom: float
    """Of the last lane."""

    def __call__(self, time_s: float) -> float:
        return self.scale(time_s)

    def since(self, time_s: float) -> str:
        """For people: since the failure."""
        return words.exact(time_s - self.scene.failed_s)


def failure_timeline(run: Run, recovery: Recovery, width: float = WIDE) -> Svg:
    """One recovery, from the step that failed to the step after. ``width`` below 600 is for a phone."""
    scene = set_scene(run, recovery)
    keys, top = legend(_keys(scene), 8, width - 8, 6)
    sheet = _sheet(scene, width, top)
    below, height = _below(sheet)
    body = join(
        [
            keys,
            _backdrop(sheet, height),
            grid(sheet.scale, scene.failed_s, sheet.controller + 62, sheet.bottom),
            *(_lane(sheet, actor) for actor in scene.actors),
            cuts(sheet.scale, sheet.strip + SQUARE * ROWS + 8, sheet.bottom),
            _boundary(sheet),
            *(_barrier(sheet, step) for step in scene.steps),
            _barrier_labels(sheet),
            _strip(sheet),
            _controller(sheet),
            *_arrows(sheet),
            *_failures(sheet),
            *_labels(sheet),
            below,
        ]
    )
    scaled = group(body, data_scale=" ".join(f"{t - scene.failed_s:.6f}:{x:.2f}" for t, x in _knots(sheet.scale)))
    return Svg(f"recovery-{recovery.number}", width, height, title(recovery), summary(recovery), scaled)


def title(recovery: Recovery) -> str:
    failed = recovery.failures[0] if recovery.failures else None
    who = "the job" if failed is None or failed.rank is None else f"rank {failed.rank}"
    where = f" in {words.phase(failed.phase)}" if failed is not None and failed.phase else ""
    step = f" of step {recovery.step}" if recovery.step is not None else ""
    more = f" and {words.plural(len(recovery.failures) - 1, 'more failure')}" if len(recovery.failures) > 1 else ""
    return f"Recovery {recovery.number}: {who} failed{where}{step}{more}"


def summary(recovery: Recovery) -> str:
    """What happened, in a sentence or two."""
    after = {
        Decision.REDO: f"all did step {recovery.target} again",
        Decision.FINISH: f"the others finished their update and all went on with step {recovery.target}",
        Decision.ROLLBACK: f"all went back to a checkpoint of step {recovery.target}",
        Decision.RESTART: "all started again",
        None: "nothing was decided",
    }[recovery.decision]
    seconds = words.duration(recovery.t_total_s)
    if not recovered(recovery):
        return f"Not recovered: the job was {recovery.outcome.value} after {seconds}. {recovery.reason}"
    return f"Recovered in {seconds}: {after}. {recovery.reason[:1].upper()}{recovery.reason[1:]}."


# ── layout ───────────────────────────────────────────────────────────────────────────────────────────────


def _sheet(scene: Scene, width: float, top: float) -> _Sheet:
    narrow = width < 600
    left, right = (8.0, width - 8.0) if narrow else (158.0, width - 14.0)
    scale = Scale.fit(scene.events(), scene.start_s, scene.end_s, left, right)
    barriers = top
    strip = barriers + 28 + (15 if narrow else 0)
    controller = strip + SQUARE * ROWS + 16
    y = controller + 30 + 38
    lanes = {}
    for actor in scene.actors:
        y += 17 if narrow else 0
        lanes[actor.lane.worker] = y
        y += BLOCK + STRIP + GAP
    return _Sheet(scene, scale, narrow, width, barriers, strip, controller, lanes, y - GAP + 4)


def _keys(scene: Scene) -> Iterator[Key]:
    yield Key("Parameters not updated", square("old"))
    yield Key("Parameters updated", square("new"))
    shown = {span.phase for actor in scene.actors for span in actor.lane.spans}
    for phase in STEP_PHASES:
        if phase in shown:
            words_ = "waits in the barrier" if phase == READY else words.phase(phase)
            yield Key(words_, square(CLASSES[phase]))
    yield Key("Failure", lambda x, y: bolt(x, y, size=0.55))
    yield Key("Stop+Clean+Reset", square("halt"))
    if RESTORE in shown:
        yield Key("gives or takes parameters", square("restore"))
    if RESUME in shown:
        yield Key("Rollback: all set step, data and random numbers to T", square("rollback"))
    if shown & {"BUILDING", "SCRIPT", "HOLLOW", "SPAWNED"}:
        yield Key("runs the script", square("script"))


def _knots(scale: Scale) -> Iterator[tuple[float, float]]:
    return zip(scale.times, scale.places, strict=True)


def _backdrop(sheet: _Sheet, height: float) -> Markup:
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


# ── lanes ────────────────────────────────────────────────────────────────────────────────────────────────


def _lane(sheet: _Sheet, actor: Actor) -> Markup:
    y = sheet.lanes[actor.lane.worker]
    blocks = [_block(sheet, actor, span, y) for span in actor.lane.spans if span.phase in CLASSES]
    return group(
        *blocks,
        _versions(sheet, actor, y + BLOCK + 2),
        class_="device",
        data_worker=str(actor.lane.worker),
    )


def _name(sheet: _Sheet, actor: Actor, y: float) -> Markup:
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


def _block(sheet: _Sheet, actor: Actor, span: Span, y: float) -> Markup:
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


def _block_label(sheet: _Sheet, span: Span, y: float) -> Markup | None:
    scale, scene = sheet.scale, sheet.scene
    x, right = roomiest(scale, scale(span.start_s), scale(span.end_s or scene.end_s))
    label = fitting(LABELS.get(span.phase, ()), right - x - 5, SMALL_PX if sheet.narrow else TEXT_PX)
    if not label:
        return None
    ink = "on-block" if span.phase in STEP_PHASES or span.phase == RESTORE else "outlined"
    return text((x + right) / 2, y + BLOCK / 2 + 4.5, label, f"{ink} middle" + (" small" if sheet.narrow else ""))


def _labels(sheet: _Sheet) -> Iterator[Markup | None]:
    """All words in and at the lanes: they lie above the arrows."""
    for actor in sheet.scene.actors:
        y = sheet.lanes[actor.lane.worker]
        yield _name(sheet, actor, y)
        for span in actor.lane.spans:
            yield _block_label(sheet, span, y)
        yield _halt_label(sheet, actor, y)
        yield from _arrival_labels(sheet, actor, y)
        if actor.failure is not None and actor.failed_s is not None:
            yield from _failure_words(sheet, actor, sheet(actor.failed_s), y)


def _halted(actor: Actor) -> tuple[Span, ...]:
    return tuple(span for span in actor.lane.spans if span.phase in STOPPED_PHASES)


def _halt_label(sheet: _Sheet, actor: Actor, y: float) -> Markup | None:
    """Below the red blocks of the first device that has them: the others have the same."""
    first = next((other for other in sheet.scene.actors if other.part in _HEALTHY and _halted(other)), None)
    if first is None or first.lane.worker != actor.lane.worker:
        return None
    x = sheet(_halted(actor)[0].start_s)
    return _label_at(sheet, x, y + BLOCK + STRIP + 13, "Stop+Clean+Reset", "small red bold outlined")


_HEALTHY = (Part.SURVIVOR, Part.DONOR)


def _label_at(sheet: _Sheet, x: float, y: float, label: str, class_: str) -> Markup:
    """It begins there, or ends at the edge of the picture."""
    width = text_width(label, SMALL_PX, bold=True)
    return text(min(x, sheet.scale.right - width), y, label, class_)


# ── parameters ───────────────────────────────────────────────────────────────────────────────────────────


def _versions(sheet: _Sheet, actor: Actor, y: float) -> Markup:
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
    if spans and actor.part is not Part.NEWCOMER and spans[0].step > scene.step and spans[0].phase in STEP_PHASES:
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


def _strip(sheet: _Sheet) -> Markup:
    """Squares above all lanes: the parameters of those who live, not updated → updated."""
    scene, scale, updated = sheet.scene, sheet.scale, sheet.scene.updated
    pitch = SQUARE + 2
    count = int((scale.right - scale.left) // pitch)
    begin, done = _update(updated, scene)
    fills: dict[str, list[str]] = {"old": [], "new": []}
    for column in range(count):
        x = scale.left + column * pitch
        middle = x + SQUARE / 2
        share = 0.0 if middle <= scale(begin) else 1.0 if middle >= scale(done) else 0.5
        if 0 < share < 1:
            share = (middle - scale(begin)) / max(scale(done) - scale(begin), 1e-6)
        light = round(share * ROWS)
        for row in range(ROWS):
            y = sheet.strip + (ROWS - 1 - row) * pitch * 0.9
            fills["new" if row < light else "old"].append(f"M{x:.1f},{y:.1f}h{SQUARE}v{SQUARE - 1}h-{SQUARE}z")
    told = hint(
        "Parameters of the devices that live",
        "not updated in this picture"
        if updated is None or updated.updated_s is None
        else f"updated from {sheet.since(begin)} to {sheet.since(done)} after the failure",
    )
    squares = [path("".join(d), class_, told if class_ == "old" else None) for class_, d in fills.items() if d]
    if sheet.narrow:
        name = text(scale.left, sheet.strip - 5, "Parameters", "small bold")
    else:
        name = text(scale.left - 12, sheet.strip + 16, "Parameters", "bold end")
    return group(name, *squares, class_="parameters")


def _update(updated: StepSpan | None, scene: Scene) -> tuple[float, float]:
    if updated is None or updated.updated_s is None or updated.barrier_s is None:
        return scene.end_s, scene.end_s
    return updated.barrier_s, updated.updated_s


# ── lines across ─────────────────────────────────────────────────────────────────────────────────────────


def _boundary(sheet: _Sheet) -> Markup | None:
    """Where step T begins."""
    resume_s = sheet.scene.resume_s
    if resume_s is None:
        return None
    x = sheet(resume_s)
    return line(
        x, sheet.controller + 36, x, sheet.bottom + 6, "boundary", data_time=f"{resume_s - sheet.scene.failed_s:.6f}"
    )


def _shown_barrier(sheet: _Sheet, step: StepSpan) -> float | None:
    """One that nobody passed is shown only if the failure was in it."""
    if step.barrier_s is None or not (step.passed or sheet.scene.recovery.phase == READY):
        return None
    return step.barrier_s if step.barrier_s <= sheet.scene.end_s else None


def _barrier(sheet: _Sheet, step: StepSpan) -> Markup | None:
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


def _barrier_labels(sheet: _Sheet) -> Markup:
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


# ── the Controller ───────────────────────────────────────────────────────────────────────────────────────


def _controller(sheet: _Sheet) -> Markup:
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


def _arrows(sheet: _Sheet) -> Iterator[Markup]:
    scene = sheet.scene
    bottom = sheet.controller + 30
    for actor in reversed(scene.actors):  # the heads of the upper ones lie on the shafts of the lower ones
        y = sheet.lanes[actor.lane.worker]
        who = f"Device {actor.lane.worker}"
        halted = [span for span in _halted(actor) if span.start_s >= scene.verdict_s - 0.001]
        if actor.part in _HEALTHY and halted:
            x = sheet(halted[0].start_s)
            told = hint(f"Controller → {who}: Stop+Clean+Reset", f"{sheet.since(halted[0].start_s)} after the failure")
            yield _timed(arrow([(x, bottom), (x, y)], "control", told), "stop", actor, halted[0].start_s, scene)
        restored = [span for span in actor.lane.spans if span.phase == RESTORE]
        if actor.part is not Part.NEWCOMER or not restored:
            continue
        last = restored[-1]
        x = sheet(last.start_s)
        told = hint(f"Controller → {who}: Restoration+Rollback", f"{sheet.since(last.start_s)} after the failure")
        yield _timed(arrow([(x, bottom), (x, y)], "control", told), "restore", actor, last.start_s, scene)
        yield from _gift(sheet, actor, last, y)


def _arrival_labels(sheet: _Sheet, actor: Actor, y: float) -> Iterator[Markup]:
    restored = [span for span in actor.lane.spans if span.phase == RESTORE]
    if actor.part is not Part.NEWCOMER or not restored:
        return
    x = sheet(restored[-1].start_s)
    yield _label_at(sheet, x, y + BLOCK + STRIP + 13, "Restoration+Rollback", "small red bold outlined")
    if _donor(sheet, actor) is not None and not sheet.narrow:
        given = f"state, {words.size(_each(sheet.scene.recovery))}"
        yield _label_at(sheet, _gift_x(sheet, restored[-1]) + 8, y - 8, given, "small green outlined")


def _donor(sheet: _Sheet, actor: Actor) -> Donor | None:
    """Who gave it its state, if both are in the picture."""
    donors = sheet.scene.recovery.donors
    return next((donor for donor in donors if donor.to == actor.lane.worker and donor.worker in sheet.lanes), None)


def _each(recovery: Recovery) -> int:
    return recovery.bytes // max(len(recovery.donors), 1)


def _gift_x(sheet: _Sheet, span: Span) -> float:
    return max(sheet(((span.end_s or span.start_s) + span.start_s) / 2), sheet(span.start_s) + 9)


def _gift(sheet: _Sheet, actor: Actor, span: Span, y: float) -> Iterator[Markup]:
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


def _failures(sheet: _Sheet) -> Iterator[Markup]:
    """The bolt at its place, its arrow to the Controller, and what it was."""
    scene = sheet.scene
    for actor in scene.actors:
        if actor.failed_s is None or actor.failure is None:
            continue
        y, x = sheet.lanes[actor.lane.worker], sheet(actor.failed_s)
        first = actor.failure is scene.recovery.failures[0]
        verdict = sheet(scene.verdict_s) if first else x
        bend = (min(x, verdict) - 22, (y + sheet.controller + 30) / 2)
        points = [(x, y - 2), bend, (verdict, sheet.controller + 30)]
        told = hint(
            f"Failure of Device {actor.lane.worker}, rank {actor.failure.rank}: {words.cause(actor.failure.cause)}",
            actor.failure.evidence[:600],
        )
        yield _timed(arrow(points, "control", told), "failure", actor, actor.failed_s, scene)
        yield _timed(bolt(x, y + BLOCK / 2, told), "bolt", actor, actor.failed_s, scene)


def _failure_words(sheet: _Sheet, actor: Actor, x: float, y: float) -> Iterator[Markup]:
    assert actor.failure is not None
    end = sheet(actor.lane.end_s) if actor.lane.end_s is not None else x
    at = max(x, end) + 12
    room = _room_after(sheet, at)
    if room < LEAST_ROOM and sheet.scene.resume_s is not None:
        at = sheet(sheet.scene.resume_s) + 8
        room = _room_after(sheet, at)
    if room < LEAST_ROOM:
        yield text(x - 12, y + 12, "Failure", "red bold end outlined")
        return
    yield text(at, y + 11, "Failure", "red bold outlined")
    rows = wrapped(one_line(actor.failure.evidence), room, SMALL_PX)
    if len(rows) > 2 or any(text_width(row, SMALL_PX) > room for row in rows):
        said = one_line(actor.failure.evidence)
        rows = [fitting([said.partition(" in ")[0], words.cause(actor.failure.cause)], room, SMALL_PX)]
    for index, row in enumerate(rows):
        yield text(at, y + 24 + 13 * index, row, "small soft outlined")


def _room_after(sheet: _Sheet, x: float) -> float:
    """Until the next arrow to a newcomer."""
    newcomers = (actor.lane for actor in sheet.scene.actors if actor.part is Part.NEWCOMER)
    arrows = [sheet(span.start_s) for lane in newcomers for span in lane.spans if span.phase == RESTORE]
    return min((arrow for arrow in arrows if arrow > x), default=sheet.scale.right) - 6 - x


# ── below the lanes ──────────────────────────────────────────────────────────────────────────────────────


def _below(sheet: _Sheet) -> tuple[Markup, float]:
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


def _steps(sheet: _Sheet, y: float) -> Markup:
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
        label = fitting(choices, right - x + 10, SMALL_PX)
        shapes.append(text((x + right) / 2, y + 20, label, "small middle"))
    return group(*shapes, class_="steps")


def _stages(sheet: _Sheet, y: float) -> tuple[Markup, float]:
    """Where the time of the recovery went: a ruler with a label for each stage."""
    stages = [stage for stage in sheet.scene.stages if stage.end_s > stage.start_s]
    scale = sheet.scale
    total = words.duration(sheet.scene.recovery.t_total_s)
    shapes = []
    if not sheet.narrow:
        shapes.append(text(scale.left - 12, y + 10, f"recovery {total}", "bold end"))
    labels = [(stage.name, words.duration(stage.end_s - stage.start_s)) for stage in stages]
    widths = [max(text_width(part, SMALL_PX) for part in label) + 8 for label in labels]
    middles = [(scale(stage.start_s) + scale(stage.end_s)) / 2 for stage in stages]
    places = spread(middles, widths, 4 if sheet.narrow else scale.left, sheet.width - 4)
    for stage, label, middle, place in zip(stages, labels, middles, places, strict=True):
        x, right = scale(stage.start_s), scale(stage.end_s)
        told = hint(
            f"{stage.name}: {words.exact(stage.end_s - stage.start_s)}",
            f"from {sheet.since(stage.start_s)} to {sheet.since(stage.end_s)} after the failure",
            "counted from the last sign of life" if stage.name == "detect" else "",
        )
        shapes.append(
            rect(
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
        )
        if stage.start_s < sheet.scene.failed_s < stage.end_s:  # it was still alive then
            shapes.append(rect(x, y, scale(sheet.scene.failed_s) - x, 12, "veil"))
        shapes.append(path(f"M{middle:.2f},{y + 12}v3L{place:.2f},{y + 22}v3", "leader"))
        shapes.append(text(place, y + 36, label[0], "small middle"))
        shapes.append(text(place, y + 49, label[1], "small bold middle"))
    return group(*shapes, class_="stages"), y + 64
