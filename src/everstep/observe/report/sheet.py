"""How the failure timeline is laid out: which lane is where, and where a time is."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.observe.report import words
from everstep.observe.report.markup import Markup
from everstep.observe.report.scale import Scale
from everstep.observe.report.scene import Scene
from everstep.observe.report.svg import (
    SMALL_PX,
    text,
    text_width,
)

BLOCK, STRIP, GAP = 30.0, 6.0, 20.0
"""Heights: of a lane's blocks, of the parameters below it, and of the room for words below that."""
LEAST_ROOM = 64.0
"""For the words of a failure."""
SQUARE, ROWS = 8.0, 3
"""Of the parameters above all lanes."""


@dataclass(frozen=True, slots=True)
class Sheet:
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


def lay_out(scene: Scene, width: float, top: float) -> Sheet:
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
    return Sheet(scene, scale, narrow, width, barriers, strip, controller, lanes, y - GAP + 4)


def label_at(sheet: Sheet, x: float, y: float, label: str, class_: str) -> Markup:
    """It begins there, or ends at the edge of the picture."""
    width = text_width(label, SMALL_PX, bold=True)
    return text(min(x, sheet.scale.right - width), y, label, class_)
