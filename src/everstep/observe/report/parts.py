"""Pieces that several pictures have: the lightning bolt of a failure, arrows, cuts in time, the time axis, legends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from everstep.observe.report.markup import Markup, join
from everstep.observe.report.scale import Scale
from everstep.observe.report.svg import SMALL_PX, group, line, path, rect, spread, text, text_width
from everstep.observe.report.words import BACKWARD, COMMITTED, FORWARD, READY, duration

LABELS = {
    FORWARD: ("Forward", "Fwd", "F"),
    BACKWARD: ("Backward", "Bwd", "B"),
    COMMITTED: ("Optimizer Step", "Optimizer", "Opt.", "O"),
    READY: (),
    "BUILDING": ("runs the script", "script"),
    "RESTORE": ("Restoration",),
    "RESUME": ("Rollback",),
    "STANDBY": ("standing by", "standby"),
}
CLASSES = {
    FORWARD: "forward",
    BACKWARD: "backward",
    READY: "ready",
    COMMITTED: "optimizer",
    "STOP": "halt",
    "CLEAN": "halt",
    "RESET": "halt",
    "RESTORE": "restore",
    "RESUME": "rollback",
    "BUILDING": "script",
    "SCRIPT": "script",
    "HOLLOW": "script",
    "SPAWNED": "script",
    "STANDBY": "standby",
    "CHECKPOINT": "memory",
}
"""A phase that is missing here is a pause, and not drawn."""

_BOLT = ((2, -13), (-7, 2), (-1, 2), (-4, 13), (7, -4), (1, -4), (6, -13))


def bolt(x: float, y: float, *children: Markup, size: float = 1.0) -> Markup:
    """A failure, with its middle here."""
    points = " ".join(f"{x + dx * size:.1f},{y + dy * size:.1f}" for dx, dy in _BOLT)
    return path(f"M{points}Z", "bolt", *children)


def arrow(points: Sequence[tuple[float, float]], class_: str, *children: Markup) -> Markup:
    """Along these points, or along a curve if there are three; with a head at the last one."""
    (x1, y1), *middle, (x2, y2) = points
    bend = f"Q{middle[0][0]:.2f},{middle[0][1]:.2f} " if middle else "L"
    from_x, from_y = middle[0] if middle else (x1, y1)
    dx, dy = x2 - from_x, y2 - from_y
    length = (dx * dx + dy * dy) ** 0.5 or 1.0
    ux, uy = dx / length, dy / length
    left, right = (x2 - 8 * ux + 4 * uy, y2 - 8 * uy - 4 * ux), (x2 - 8 * ux - 4 * uy, y2 - 8 * uy + 4 * ux)
    head = f"M{x2:.2f},{y2:.2f}L{left[0]:.2f},{left[1]:.2f}L{right[0]:.2f},{right[1]:.2f}Z"
    shaft = f"M{x1:.2f},{y1:.2f}{bend}{x2 - 5 * ux:.2f},{y2 - 5 * uy:.2f}"
    return group(*children, path(shaft, "halo"), path(shaft, "shaft"), path(head, "head"), class_=f"arrow {class_}")


def cuts(scale: Scale, top: float, bottom: float) -> Markup:
    """A torn stripe where time is drawn shorter than it was, with how much is missing."""
    shapes = []
    for cut in scale.cuts:
        x = (scale(cut.start_s) + scale(cut.end_s)) / 2
        steps = int((bottom - top) // 7)
        edge = [(x - 5 + 3 * (-1) ** step, top + 7 * step) for step in range(steps + 1)]
        there = "L".join(f"{px:.1f},{py:.1f}" for px, py in edge)
        back = "L".join(f"{px + 8:.1f},{py:.1f}" for px, py in reversed(edge))
        shapes.append(path(f"M{there}L{back}Z", "tear-paper"))
        shapes.append(path(f"M{there}", "tear") + path(f"M{back}", "tear"))
    return join(shapes)


def grid(scale: Scale, zero_s: float, top: float, bottom: float) -> Markup:
    ticks = (scale(tick) for tick in scale.ticks(zero_s, _about(scale)))
    return join(line(x, top, x, bottom, "grid") for x in ticks)


def _about(scale: Scale) -> int:
    return max(2, round((scale.right - scale.left) / 95))


def axis(scale: Scale, zero_s: float, y: float, zero: str) -> Markup:
    """Times from ``zero_s``, whose tick says what happened then; and how much the cuts leave out."""
    shapes = [line(scale.left, y, scale.right, y, "axis")]
    fixed = [(scale(zero_s), zero, "small bold middle")]
    for cut in scale.cuts:
        middle = (scale(cut.start_s) + scale(cut.end_s)) / 2
        fixed.append((middle, f"{duration(cut.length_s)} cut", "small soft middle"))
    fixed.sort()
    widths = [text_width(words, SMALL_PX, bold=True) + 8 for _, words, _ in fixed]
    places = spread([middle for middle, _, _ in fixed], widths, scale.left - 4, scale.right + 4)
    taken = []
    for (_, words, class_), width, place in zip(fixed, widths, places, strict=True):
        shapes.append(text(place, y + 16, words, class_))
        taken.append((place - width / 2, place + width / 2))
    for tick in scale.ticks(zero_s, _about(scale)):
        x, words = scale(tick), _signed(tick - zero_s)
        half = text_width(words, SMALL_PX) / 2 + 2
        middle = min(max(x, scale.left + half), scale.right - half)
        shapes.append(line(x, y, x, y + 4, "axis"))
        if abs(tick - zero_s) > 1e-9 and all(middle + half < start or middle - half > end for start, end in taken):
            shapes.append(text(middle, y + 16, words, "small soft middle"))
            taken.append((middle - half, middle + half))
    x = scale(zero_s)
    return join([*shapes, line(x, y - 4, x, y + 5, "axis zero")])


def roomiest(scale: Scale, x: float, right: float) -> tuple[float, float]:
    """Of a block the longest piece that no cut tears."""
    edges = [x]
    for cut in scale.cuts:
        middle = (scale(cut.start_s) + scale(cut.end_s)) / 2
        if x < middle < right:
            edges += [middle - 9, middle + 9]
    edges.append(right)
    return max(zip(edges[::2], edges[1::2], strict=True), key=lambda piece: piece[1] - piece[0])


def _signed(seconds: float) -> str:
    return ("+" if seconds > 0 else "") + duration(seconds)


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend."""

    words: str
    swatch: Callable[[float, float], Markup]
    """Drawn around this place, 14 wide and 12 high."""


def square(class_: str) -> Callable[[float, float], Markup]:
    return lambda x, y: rect(x - 7, y - 6, 14, 12, class_)


def legend(keys: Iterable[Key], left: float, right: float, y: float) -> tuple[Markup, float]:
    """In as many rows as it needs, and where the next thing may begin."""
    shapes, x = [], left
    for key in keys:
        width = 20 + text_width(key.words, SMALL_PX) + 16
        if x > left and x + width - 16 > right:
            x, y = left, y + 19
        shapes.append(key.swatch(x + 7, y + 6) + text(x + 20, y + 10, key.words, "small"))
        x += width
    return join(shapes), y + 24
