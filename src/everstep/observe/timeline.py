"""What a run looked like over time: who was where, when. The model that reports, traces and live pages draw from.

All times are seconds since 1970 by the clock of the controller, those of other nodes brought to it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A worker was in one phase."""

    phase: str
    """Name of a `WorkerPhase`, of a `RecoveryPhase`, or CHECKPOINT while it copied its state to memory (k0)."""
    step: int
    attempt: int
    generation: int
    start_s: float
    end_s: float | None
    """None while it lasts, and for the last one of a worker that did not end by itself: see `Lane.end_s`."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One worker, from its first recorded phase to its end. A replacement is a lane of its own with the same rank."""

    worker: int
    rank: int | None
    """None for a standby that was never needed."""
    node: str
    spans: tuple[Span, ...]
    """In order. Gaps are phases that were not kept: the recorder samples between failures."""
    end_s: float | None = None
    end: str = ""
    """How it ended, as the evidence says; empty while it lives."""
