"""One picture: a drawing with its size and its words, as a part of a page or as a file of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from everstep.observe.report.markup import Child, Markup, Value, join, tag

NAMESPACE = "http://www.w3.org/2000/svg"
"""A name, not an address: nobody asks for it."""

TEXT_PX = 12.5
SMALL_PX = 11.0

_NARROW, _WIDE = frozenset("iljtfrI.,:;'|()[] ·"), frozenset("mwMW@%—→")


@dataclass(frozen=True, slots=True)
class Svg:
    """A drawing. ``title`` says what it is, ``summary`` what it shows; both are read out in its place."""

    name: str
    """Of its file, and of its parts' ids; letters, digits and dashes."""
    width: float
    height: float
    title: str
    summary: str
    body: Markup

    def inline(self, extra_class: str = "") -> Markup:
        """As an element of a page that has the styles."""
        return self._element(join([self.body]), class_=f"picture {extra_class}".strip(), tabindex="0")

    def standalone(self) -> str:
        """As a file, with its own styles, light and dark."""
        style = tag("style", Markup(asset("picture.css")))
        paper = rect(0, 0, self.width, self.height, "paper")
        element = self._element(
            join([style, patterns(), paper, self.body]),
            xmlns=NAMESPACE,
            class_="picture",
            width=self.width,
            height=self.height,
        )
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{element}\n'

    def _element(self, content: Markup, **attributes: Value) -> Markup:
        return tag(
            "svg",
            content,
            viewBox=f"0 0 {self.width:g} {self.height:g}",
            role="group",
            aria_label=f"{self.title}. {self.summary}",
            data_name=self.name,
            **attributes,
        )


@cache
def asset(name: str) -> str:
    """A style or a script of the reports."""
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def patterns() -> Markup:
    """The second sign of each colour: once in a page, and in each file."""
    return Markup(
        "<defs>"
        '<pattern id="es-backward" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="7" height="7" class="backward-fill"/><rect width="1.4" height="7" class="pattern-ink"/></pattern>'
        '<pattern id="es-optimizer" width="6" height="6" patternUnits="userSpaceOnUse">'
        '<rect width="6" height="6" class="optimizer-fill"/><circle cx="3" cy="3" r="1" class="pattern-ink"/></pattern>'
        '<pattern id="es-ready" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)">'
        '<rect width="5" height="5" class="ready-fill"/><rect width="1.6" height="5" class="ready-ink"/></pattern>'
        '<pattern id="es-restore" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" class="restore-fill"/><rect width="2.4" height="6" class="restore-ink"/></pattern>'
        "</defs>"
    )


# ── shapes ───────────────────────────────────────────────────────────────────────────────────────────────


def rect(x: float, y: float, width: float, height: float, class_: str, *children: Child, **more: Value) -> Markup:
    return tag("rect", *children, class_=class_, x=x, y=y, width=max(width, 0), height=height, **more)


def line(x1: float, y1: float, x2: float, y2: float, class_: str, *children: Child, **more: Value) -> Markup:
    return tag("line", *children, class_=class_, x1=x1, y1=y1, x2=x2, y2=y2, **more)


def text(x: float, y: float, words: Child, class_: str = "", **more: Value) -> Markup:
    return tag("text", words, class_=class_ or None, x=x, y=y, **more)


def path(d: str, class_: str, *children: Child, **more: Value) -> Markup:
    return tag("path", *children, class_=class_, d=d, **more)


def group(*children: Child, **attributes: Value) -> Markup:
    return tag("g", *children, **attributes)


def hint(*lines: str) -> Markup:
    """What hovering, the arrow keys and screen readers tell of a shape; its first child."""
    return tag("title", "\n".join(line for line in lines if line))


def nothing(name: str, title: str, why: str, width: float) -> Svg:
    """In the place of a picture for which nothing was recorded."""
    rows = wrapped(why, width - 16)
    lines = [text(8, 22 + 18 * index, row, "soft") for index, row in enumerate(rows)]
    return Svg(name, width, 20.0 + 18 * len(rows), title, why, join(lines))


def text_width(words: str, size_px: float = TEXT_PX, *, bold: bool = False) -> float:
    """An estimate on the safe side: no font is at hand where pictures are drawn."""
    units = sum(_advance(char) for char in words)
    return units * size_px * (1.1 if bold else 1.0)


def _advance(char: str) -> float:
    """Of DejaVu Sans, the widest of the fonts that browsers fall back to; in units of the font's size."""
    if char in _NARROW:
        return 0.36
    if char in _WIDE:
        return 0.9
    return 0.7 if char.isupper() else 0.61


def fitting(choices: Sequence[str], room: float, size_px: float = TEXT_PX) -> str:
    """The longest of them that fits; empty if none does."""
    return next((words for words in choices if text_width(words, size_px) <= room), "")


def spread(centers: Sequence[float], widths: Sequence[float], left: float, right: float) -> list[float]:
    """Where labels go that want to stand at these places, in order, without touching each other."""
    placed: list[float] = []
    edge = left
    for center, width in zip(centers, widths, strict=True):
        placed.append(max(center, edge + width / 2))
        edge = placed[-1] + width / 2
    edge = right
    for index in range(len(placed) - 1, -1, -1):
        placed[index] = min(placed[index], edge - widths[index] / 2)
        edge = placed[index] - widths[index] / 2
    return placed


def wrapped(words: str, room: float, size_px: float = TEXT_PX) -> list[str]:
    """In lines that fit."""
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_width(longer, size_px) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
