"""The failure-recovery timeline: device lanes over time, the parameters, the barrier, the Controller and its arrows."""

from __future__ import annotations

from collections.abc import Iterator

from everstep.observe.records import Recovery
from everstep.observe.report import words
from everstep.observe.report.below import below
from everstep.observe.report.control import (
    arrival_labels,
    arrows,
    barrier,
    barrier_labels,
    bolts,
    boundary,
    controller,
    failure_arrows,
    failure_words,
)
from everstep.observe.report.lanes import backdrop, block_label, halt_label, lane, name
from everstep.observe.report.markup import Markup, join
from everstep.observe.report.parts import (
    CLASSES,
    Key,
    bolt,
    cuts,
    grid,
    legend,
    square,
)
from everstep.observe.report.run import Run
from everstep.observe.report.scale import Scale
from everstep.observe.report.scene import Scene, StepSpan, set_scene
from everstep.observe.report.sentences import summary, title
from everstep.observe.report.sheet import ROWS, SQUARE, Sheet, lay_out
from everstep.observe.report.svg import (
    Svg,
    group,
    hint,
    path,
    text,
)
from everstep.observe.report.words import READY, RESTORE, RESUME, STEP_PHASES

WIDE = 1120.0


def failure_timeline(run: Run, recovery: Recovery, width: float = WIDE) -> Svg:
    """One recovery, from the step that failed to the step after. ``width`` below 600 is for a phone."""
    scene = set_scene(run, recovery)
    keys, top = legend(_keys(scene), 8, width - 8, 6)
    sheet = lay_out(scene, width, top)
    foot, height = below(sheet)
    body = join(
        [
            keys,
            backdrop(sheet),
            grid(sheet.scale, scene.failed_s, sheet.controller + 62, sheet.bottom),
            *(lane(sheet, actor) for actor in scene.actors),
            cuts(sheet.scale, sheet.strip + SQUARE * ROWS + 8, sheet.bottom),
            boundary(sheet),
            *(barrier(sheet, step) for step in scene.steps),
            barrier_labels(sheet),
            _strip(sheet),
            controller(sheet),
            *arrows(sheet),
            *failure_arrows(sheet),
            *_labels(sheet),
            *bolts(sheet),
            foot,
        ]
    )
    scaled = group(body, data_scale=" ".join(f"{t - scene.failed_s:.6f}:{x:.2f}" for t, x in _knots(sheet.scale)))
    return Svg(f"recovery-{recovery.number}", width, height, title(recovery), summary(recovery), scaled)


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


def _labels(sheet: Sheet) -> Iterator[Markup | None]:
    """All words in and at the lanes: they lie above the arrows."""
    for actor in sheet.scene.actors:
        y = sheet.lanes[actor.lane.worker]
        yield name(sheet, actor, y)
        for span in actor.lane.spans:
            yield block_label(sheet, span, y)
        yield halt_label(sheet, actor, y)
        yield from arrival_labels(sheet, actor, y)
        if actor.failure is not None and actor.failed_s is not None:
            yield from failure_words(sheet, actor, sheet(actor.failed_s), y)


def _strip(sheet: Sheet) -> Markup:
    """Squares above all lanes: the parameters of those who live, not updated → updated."""
    scene, scale, updated = sheet.scene, sheet.scale, sheet.scene.updated
    pitch = SQUARE + 2
    count = int((scale.right - scale.left) // pitch)
    begin, done = _update(updated, scene)
    fills: dict[str, list[str]] = {"old": [], "new": []}
    for column in range(count):
        x = scale.left + column * pitch
        middle = x + SQUARE / 2
        share = (middle - scale(begin)) / max(scale(done) - scale(begin), 1e-6)
        light = round(min(max(share, 0.0), 1.0) * ROWS)
        if scene.rolled_back and scene.resume_s is not None and middle < scale(scene.resume_s):
            light = ROWS  # they were newer than the checkpoint
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
