"""The words that a user has for where a step is: in scripts, and when a fault is ordered."""

from __future__ import annotations

from everstep.types import WorkerPhase

PHASES = {
    "idle": WorkerPhase.IDLE,
    "forward": WorkerPhase.FORWARD,
    "backward": WorkerPhase.BACKWARD,
    "barrier": WorkerPhase.READY,
    "optimizer": WorkerPhase.COMMITTED,
}

IN_STEP = {name: phase for name, phase in PHASES.items() if phase is not WorkerPhase.IDLE}
"""Those that a script can enter by name, inside ``with step:``."""
