"""The consistency picture: one step, when parameters are consistent and when they change, and where failures fell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from everstep.observe.records import Failure, one_line
from everstep.observe.report import words
from everstep.observe.report.markup import Markup, join
from everstep.observe.report.parts import CLASSES, LABELS, Key, bolt, legend, square
from everstep.observe.report.run import Run
from everstep.observe.report.scale import Scale
from everstep.observe.report.steps import TypicalStep, typical_step
from everstep.observe.report.svg import (
    SMALL_PX,
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
from everstep.observe.report.words import BACKWARD, COMMITTED, FORWARD, READY, STEP_PHASES

WIDE = 1120.0
BLOCK, BAND = 34.0, 36.0
LEAST_SHARE = 0.11
"""Of the width, for each phase but the barrier: an optimizer of a millisecond is still a phase."""
CLUSTER_PX = 16.0
"""Failures nearer than this share a bolt."""
UNKNOWN = TypicalStep({FORWARD: 0.3, BACKWARD: 0.4, READY: 0.05, COMMITTED: 0.25}, 0)
"""Shares of a step, where none was recorded."""


@dataclass(frozen=True, slots=True)
class Place:
    """A failure inside a step."""

    failure: Failure
    recovery: int
    at_s: float
    """From the start of a typical step."""


def consistency(run: Run, width: float = WIDE) -> Svg:
    step = typical_step(run.lanes)
    shape = step or UNKNOWN
    narrow = width < 600
    left, right = (8.0, width - 8.0) if narrow else (158.0, width - 14.0)
    scale, stretched = _scale(shape, left, right)
    places = sorted(failure_places(run, shape), key=lambda place: place.at_s)
    keys, y = legend(_keys(), 8, width - 8, 6)
    above = 15.0 if narrow else 0.0
    top = y + 32 + above
    band = top + BLOCK + 8
    second = band + BAND + 8 + above
    update_x = scale(shape.start_s(COMMITTED))
    labels, bottom = _failures(places, scale, second, narrow=narrow, width=width)
    body = join(
        [
            keys,
            _lane(shape, scale, top, "Device 1", "one that goes on", narrow=narrow),
            _band(scale, update_x, band, narrow=narrow),
            _lane(shape, scale, second, "Device 2", "where failures fell", narrow=narrow),
            _barrier(update_x, y, second + BLOCK + 6, width),
            labels,
            *_below(run, step, scale, places, bottom, width, stretched=stretched),
        ]
    )
    height = bottom + (62 if width >= 600 else 78)
    return Svg("consistency", width, height, "Consistent parameters", consistency_summary(run, len(places)), body)


def consistency_summary(run: Run, inside: int) -> str:
    total = sum(len(recovery.failures) for recovery in run.recoveries)
    rest = f", {inside} of them inside a step" if total and inside < total else ""
    return (
        "Parameters are consistent in Forward and Backward, on all devices the same; behind the Gradient "
        f"Synchronization Barrier the Optimizer Step updates them. This run had {words.plural(total, 'failure')}{rest}."
    )


def failure_places(run: Run, shape: TypicalStep) -> Iterator[Place]:
    """Of those inside a step. How far into its phase is known if the timeline has it; else it is its middle."""
    lanes = {lane.worker: lane for lane in run.lanes}
    for recovery in run.recoveries:
        for index, failure in enumerate(recovery.failures):
            if failure.phase not in STEP_PHASES:
                continue
            length_s = shape.lengths[failure.phase]
            into_s = length_s / 2
            lane = lanes.get(failure.worker) if failure.worker is not None else None
            if lane is not None and lane.spans and lane.spans[-1].phase == failure.phase:
                failed_s = lane.end_s if lane.end_s is not None else recovery.time
                if index == 0 and failure.cause not in ("EXIT", "EXCEPTION"):
                    failed_s = recovery.time - recovery.t_detect_s
                into_s = min(max(failed_s - lane.spans[-1].start_s, 0.03 * length_s), 0.97 * length_s)
            yield Place(failure, recovery.number, shape.start_s(failure.phase) + into_s)


def _keys() -> Iterator[Key]:
    for phase in STEP_PHASES:
        yield Key("waits in the barrier" if phase == READY else words.phase(phase), square(CLASSES[phase]))
    yield Key("Consistent Parameters", square("consistent"))
    yield Key("Update Parameters", square("update"))
    yield Key("Failure", lambda x, y: bolt(x, y, size=0.55))


def _lane(shape: TypicalStep, scale: Scale, y: float, name: str, what: str, *, narrow: bool) -> Markup:
    if narrow:
        parts = [text(scale.left, y - 5, name, "bold"), text(scale.left + 62, y - 5, what, "small soft")]
    else:
        parts = [text(scale.left - 12, y + 15, name, "bold end"), text(scale.left - 12, y + 29, what, "small soft end")]
    for phase, length_s in shape.lengths.items():
        start_s = shape.start_s(phase)
        x, right = scale(start_s), scale(start_s + length_s)
        told = hint(words.phase(phase), f"{words.exact(length_s)}, the median of {words.plural(shape.samples, 'step')}")
        parts.append(rect(x, y, right - x, BLOCK, CLASSES[phase], told if shape.samples else None, data_phase=phase))
        label = fitting(LABELS.get(phase, ()), right - x - 12)
        parts.append(text(x + 7, y + BLOCK / 2 + 4.5, label, "on-block") if label else Markup())
    return group(*parts, class_="device")


def _band(scale: Scale, update_x: float, y: float, *, narrow: bool) -> Markup:
    parts = []
    pieces = (
        (scale.left, update_x, "consistent", ("Consistent Parameters", "consistent")),
        (update_x, scale.right, "update", ("Update Parameters", "Update")),
    )
    for x, right, class_, choices in pieces:
        label = fitting(choices, right - x - 6)
        parts.append(rect(x, y, right - x, BAND, class_, hint(choices[0])))
        parts.append(text((x + right) / 2, y + BAND / 2 + 4.5, label, "bold middle"))
    if not narrow:
        parts.append(text(scale.left - 12, y + BAND / 2 + 4.5, "Parameters", "bold end"))
    return group(*parts, class_="band")


def _barrier(x: float, y: float, bottom: float, width: float) -> Markup:
    """The red line with the words on both sides of it."""
    before, after = "Gradient Synchronization", "Barrier"
    first = text_width(before, SMALL_PX, bold=True) + 14
    second = text_width(after, SMALL_PX, bold=True) + 14
    if x + second > width - 4:  # no room on the right: all of it on the left
        words_ = f"{before} {after}"
        first, second = text_width(words_, SMALL_PX, bold=True) + 14, 6.0
        labels = text(x - 7, y + 14, words_, "small red bold end")
    else:
        labels = text(x - 7, y + 14, before, "small red bold end") + text(x + 7, y + 14, after, "small red bold")
    box = rect(x - first, y, first + second, 20, "barrier-box", rx=3)
    return group(box, line(x, y, x, bottom, "barrier"), labels)


def _failures(places: Sequence[Place], scale: Scale, y: float, *, narrow: bool, width: float) -> tuple[Markup, float]:
    """Bolts on the second lane, and below it what they were."""
    clusters: list[list[Place]] = []
    for place in places:
        if clusters and scale(place.at_s) - scale(clusters[-1][0].at_s) < CLUSTER_PX:
            clusters[-1].append(place)
        else:
            clusters.append([place])
    middles = [sum(scale(place.at_s) for place in cluster) / len(cluster) for cluster in clusters]
    labels = [_label(cluster, brief=False) for cluster in clusters]
    room = width - 8
    if sum(_label_width(label) for label in labels) > room:
        labels = [_label(cluster, brief=True) for cluster in clusters]
    widths = [_label_width(label) for label in labels]
    at = spread(middles, widths, 4 if narrow else scale.left - 60, width - 4)
    shapes = []
    for cluster, x, label, label_x in zip(clusters, middles, labels, at, strict=True):
        told = hint(
            *(_told(place) for place in cluster[:12]), f"… {len(cluster) - 12} more" if len(cluster) > 12 else ""
        )
        facts = {"data_recovery": str(cluster[0].recovery), "data_count": str(len(cluster))}
        shapes.append(group(bolt(x, y + BLOCK / 2, told, size=1.15), **facts))
        shapes.append(line(x, y + BLOCK + 1, label_x, y + BLOCK + 9, "leader"))
        for index, words_ in enumerate(label):
            class_ = "small bold red middle" if index == 0 else "small soft middle"
            shapes.append(text(label_x, y + BLOCK + 20 + 13 * index, words_, class_))
    return group(*shapes, class_="failures"), y + BLOCK + (40 if clusters else 10)


def _label(cluster: Sequence[Place], *, brief: bool) -> list[str]:
    many = len(cluster)
    if brief:
        return [f"{many} ×" if many > 1 else "1"]
    if many > 1:
        return [f"{many} × Failure"]
    failure = cluster[0].failure
    return ["Failure", f"rank {failure.rank}, step {failure.step}"]


def _label_width(label: Iterable[str]) -> float:
    return max(text_width(words_, SMALL_PX, bold=True) for words_ in label) + 8


def _told(place: Place) -> str:
    failure = place.failure
    where = f"{words.phase(failure.phase)} of step {failure.step}"
    return f"rank {failure.rank} in {where}: {one_line(failure.evidence)[:160]}"


def _below(
    run: Run,
    step: TypicalStep | None,
    scale: Scale,
    places: Sequence[Place],
    y: float,
    width: float,
    *,
    stretched: bool,
) -> Iterator[Markup]:
    """How long the phases take, and what is not in the picture."""
    if step is None:
        said = "Not to scale: no step was recorded whole."
    else:
        for phase, length_s in step.lengths.items():
            x, right = scale(step.start_s(phase)), scale(step.start_s(phase) + length_s)
            yield path(f"M{x + 1:.2f},{y + 2}v5H{right - 1:.2f}v-5", "bracket")
            label = fitting([words.duration(length_s)], right - x + 2, SMALL_PX)
            yield text(min((x + right) / 2, width - 22), y + 20, label, "small middle")
        said = f"A typical step, {words.duration(step.length_s)}: the median of {words.plural(step.samples, 'step')}."
        said += " Short phases are drawn wider than they are." if stretched else ""
    elsewhere = sum(len(recovery.failures) for recovery in run.recoveries) - len(places)
    if elsewhere:
        said += f" {words.plural(elsewhere, 'failure')} outside of a step."
    for index, row in enumerate(wrapped(said, width - 16, SMALL_PX)):
        yield text(8, y + 38 + 14 * index, row, "small soft")


def _scale(shape: TypicalStep, left: float, right: float) -> tuple[Scale, bool]:
    """To scale, but that each phase can be seen; and whether it had to be helped."""
    room = right - left
    least = {phase: room * (0.02 if phase == READY else LEAST_SHARE) for phase in shape.lengths}
    widths = {phase: room * length_s / shape.length_s for phase, length_s in shape.lengths.items()}
    short = {phase for phase, width in widths.items() if width < least[phase]}
    rest = sum(shape.lengths[phase] for phase in shape.lengths if phase not in short)
    free = room - sum(least[phase] for phase in short)
    places, at = [left], left
    for phase, length_s in shape.lengths.items():
        at += least[phase] if phase in short else free * length_s / rest
        places.append(at)
    times = [*(shape.start_s(phase) for phase in shape.lengths), shape.length_s]
    return Scale(tuple(times), tuple(places)), bool(short)
