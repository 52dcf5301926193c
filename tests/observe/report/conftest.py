"""Pictures as a test reads them: parsed, so that nothing that is not well-formed passes."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from everstep.observe.report.svg import Svg

SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Drawing:
    root: ET.Element

    @property
    def words(self) -> list[str]:
        """All that is written in it."""
        return ["".join(text.itertext()) for text in self.root.iter(f"{SVG}text")]

    def find(self, name: str, **data: str) -> list[ET.Element]:
        """Elements of this name with these data attributes."""
        return [
            element
            for element in self.root.iter(f"{SVG}{name}")
            if all(element.get(f"data-{key}") == value for key, value in data.items())
        ]

    def having(self, key: str) -> Iterator[ET.Element]:
        return (element for element in self.root.iter() if element.get(f"data-{key}") is not None)

    def device(self, worker: int) -> Drawing:
        """The lane of one worker."""
        [lane] = [group for group in self.find("g", worker=str(worker)) if group.get("class") == "device"]
        return Drawing(lane)

    def place(self, time_s: float) -> float:
        """x of a time since the failure, from the scale that the drawing tells of itself."""
        knots = [
            tuple(map(float, knot.split(":"))) for knot in next(self.having("scale")).get("data-scale", "").split()
        ]
        for (before, left), (after, right) in pairwise(knots):
            if before <= time_s <= after:
                return left + (right - left) * (time_s - before) / (after - before)
        raise AssertionError(f"{time_s} is not in {knots}")


def parsed(svg: Svg) -> Drawing:
    return Drawing(ET.fromstring(svg.standalone().partition("?>")[2]))
