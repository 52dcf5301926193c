"""All devices in one recovery, a thin row each: what thousands of them did at once.

One path for each kind of phase, however many devices there are: a browser has to open it at once.
"""

from __future__ import annotations

from collections import defaultdict

from everstep.observe.records import Recovery
from everstep.observe.report import words
from everstep.observe.report.markup import join
from everstep.observe.report.parts import CLASSES, Key, axis, bolt, legend, square
from everstep.observe.report.run import Run
from everstep.observe.report.scale import Scale
from everstep.observe.report.scene import Actor, Part, failed_at, set_scene
from everstep.observe.report.svg import Svg, group, hint, line, path, text
from everstep.observe.timeline import Lane

WIDE = 1120.0
HEIGHT = 2400.0
"""At most, so that rows become thin before the picture becomes long."""
ROW = 9.0
LEAST_PX = 0.25
"""Narrower spans are not seen."""


def all_devices(run: Run, recovery: Recovery, width: float = WIDE, most: int = 4096) -> Svg:
    """Each device that had a rank, by rank; of more than ``most`` a sample of that size."""
    scene = set_scene(run, recovery)
    lanes = [lane for lane in run.lanes if lane.rank is not None and _seen(lane, scene.start_s, scene.end_s)]
    lanes.sort(key=lambda lane: (lane.rank or 0, lane.worker))
    shown = _sample(lanes, most, {actor.lane.worker for actor in scene.actors})
    row = min(ROW, HEIGHT / max(len(shown), 1))
    left, right = (44.0, width - 8.0) if width < 600 else (158.0, width - 14.0)
    scale = Scale.fit(scene.events(), scene.start_s, scene.end_s, left, right)
    present = {span.phase for actor in scene.actors for span in actor.lane.spans}
    keys = {CLASSES[phase]: words.phase(phase) for phase in words.PHASES if phase in present and phase in CLASSES}
    keys |= {"halt": "Stop+Clean+Reset"} if "halt" in keys else {}
    head, top = legend([Key(name, square(class_)) for class_, name in keys.items()], 8, width - 8, 6)
    shapes: dict[str, list[str]] = defaultdict(list)
    for index, lane in enumerate(shown):
        y, height = top + index * row, row * 0.86
        for span in lane.spans:
            if span.phase not in CLASSES or span.start_s >= scene.end_s:
                continue
            end_s = span.end_s if span.end_s is not None else lane.end_s if lane.end_s is not None else scene.end_s
            x, wide = scale(span.start_s), scale(end_s) - scale(span.start_s)
            if wide >= LEAST_PX:
                shapes[CLASSES[span.phase]].append(f"M{x:.1f} {y:.1f}h{wide:.1f}v{height:.1f}h-{wide:.1f}z")
    bottom = top + len(shown) * row
    every = max(1, -(-len(shown) * 14 // max(1, int(bottom - top))))
    names = [
        text(
            left - 6,
            top + index * row + row / 2 + 4,
            f"rank {lane.rank}" if width >= 600 else str(lane.rank),
            "small soft end",
        )
        for index, lane in enumerate(shown)
        if index % every == 0
    ]
    paths = [path("".join(d), f"{class_} flat") for class_, d in shapes.items()]
    places = {lane.worker: top + index * row + row / 2 for index, lane in enumerate(shown)}
    bolts = [
        bolt(scale(actor.failed_s), places[actor.lane.worker], hint(*_told(actor)))
        for actor in _failed(run, recovery)
        if actor.failed_s is not None and actor.lane.worker in places
    ]
    x = scale(scene.failed_s)
    ruler = line(x, top, x, bottom, "boundary")
    said = (
        f"{len(shown)} of {words.plural(len(lanes), 'device')}"
        if len(shown) < len(lanes)
        else words.plural(len(lanes), "device")
    )
    foot = axis(scale, scene.failed_s, bottom + 6, "0: failure") + text(8, bottom + 42, said, "small soft")
    title = f"All devices in recovery {recovery.number}"
    body = join([head, *paths, ruler, *names, *bolts, foot])
    return Svg(f"recovery-{recovery.number}-devices", width, bottom + 52, title, f"{said}, by rank.", group(body))


def _seen(lane: Lane, start_s: float, end_s: float) -> bool:
    ended = lane.end_s is not None and lane.end_s < start_s
    return bool(lane.spans) and not ended and lane.spans[0].start_s < end_s


def _sample(lanes: list[Lane], most: int, wanted: set[int]) -> list[Lane]:
    """Evenly, and those that matter."""
    if len(lanes) <= most:
        return lanes
    stride = -(-len(lanes) // most)
    return [lane for index, lane in enumerate(lanes) if index % stride == 0 or lane.worker in wanted]


def _failed(run: Run, recovery: Recovery) -> list[Actor]:
    lanes = {lane.worker: lane for lane in run.lanes}
    return [
        Actor(lanes[failure.worker], Part.FAILED, failure, failed_at(failure, lanes, recovery, first=index == 0))
        for index, failure in enumerate(recovery.failures)
        if failure.worker is not None and failure.worker in lanes
    ]


def _told(actor: Actor) -> tuple[str, str]:
    assert actor.failure is not None
    return f"Failure of rank {actor.failure.rank}, worker {actor.lane.worker}", actor.failure.evidence[:400]
