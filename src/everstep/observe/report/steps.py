"""What a step of the run was like, as its timeline has it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median

from everstep.observe.report.words import BACKWARD, COMMITTED, FORWARD, READY, STEP_PHASES
from everstep.observe.timeline import Lane, Span

SAMPLES = 4000
"""Steps that are looked at: a median needs no more."""


@dataclass(frozen=True, slots=True)
class TypicalStep:
    """Medians over the steps that were recorded whole."""

    lengths: dict[str, float]
    """Of each phase, in their order; nothing between them is left out."""
    samples: int

    @property
    def length_s(self) -> float:
        return sum(self.lengths.values())

    def start_s(self, phase: str) -> float:
        names = list(self.lengths)
        return sum(self.lengths[name] for name in names[: names.index(phase)])


def typical_step(lanes: Sequence[Lane]) -> TypicalStep | None:
    """None if no step was recorded whole."""
    found: dict[str, list[float]] = defaultdict(list)
    count = 0
    for begins in islice(_whole(lanes), SAMPLES):
        count += 1
        for phase, start_s, end_s in zip(STEP_PHASES, begins, begins[1:], strict=False):
            found[phase].append(end_s - start_s)
    return TypicalStep({phase: median(found[phase]) for phase in STEP_PHASES}, count) if count else None


def _whole(lanes: Sequence[Lane]) -> Iterator[tuple[float, ...]]:
    """Where the phases of a step begin, and its end. Phases touch: what lies between belongs to the one before."""
    for lane in lanes:
        spans = lane.spans
        for index, first in enumerate(spans):
            if first.phase != FORWARD:
                continue
            phases = _follow(spans[index : index + 6], first)
            last = phases.get(COMMITTED)
            if last is not None and last.end_s is not None and READY in phases:
                backward = phases.get(BACKWARD, phases[READY])
                yield first.start_s, backward.start_s, phases[READY].start_s, last.start_s, last.end_s


def _follow(spans: Sequence[Span], first: Span) -> dict[str, Span]:
    """The phases of the same attempt."""
    same = (first.step, first.attempt, first.generation)
    return {span.phase: span for span in spans if (span.step, span.attempt, span.generation) == same}
