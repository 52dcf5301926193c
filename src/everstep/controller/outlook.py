"""What the controller shows of its job, in one place: metrics and the live page read it and change nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from everstep.core.machine import Machine
from everstep.observe.ledger import Ledger
from everstep.observe.phases import JobPhases
from everstep.observe.progress import Progress


@dataclass(frozen=True, slots=True)
class Outlook:
    name: str
    machine: Machine
    progress: Progress
    ledger: Ledger
    status: Callable[[], dict[str, object]]
    """As `everstep status --json` shows it."""
    phases: JobPhases = field(default_factory=JobPhases)
    now_s: Callable[[], float] = time.time
