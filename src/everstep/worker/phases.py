"""The words that a user has for where a step, or a recovery, is: in scripts, and when a fault is ordered."""

from __future__ import annotations

import enum

from everstep.types import WorkerPhase


class RecoveryPhase(enum.Enum):
    """What a worker does in a recovery. No board shows it: the agent sees the phase of the step."""

    STOP = "stop"  # its collectives were cut
    CLEAN = "clean"  # it drops its step
    SCRIPT = "script"  # a newcomer has come to protect()
    RESET = "reset"  # groups are made anew
    RESTORE = "restore"  # it gives or takes state
    RESUME = "resume"  # state is complete, the first words in the new groups


class SavePhase(enum.Enum):
    """What a worker does between two steps. The agent sees that it has declared a long phase."""

    CHECKPOINT = "checkpoint"  # it copies its state to memory (k0)


Phase = WorkerPhase | RecoveryPhase | SavePhase

PHASES: dict[str, Phase] = {
    "idle": WorkerPhase.IDLE,
    "forward": WorkerPhase.FORWARD,
    "backward": WorkerPhase.BACKWARD,
    "barrier": WorkerPhase.READY,
    "optimizer": WorkerPhase.COMMITTED,
    **{phase.value: phase for phase in (*RecoveryPhase, *SavePhase)},
}

IN_STEP = {name: phase for name, phase in PHASES.items() if isinstance(phase, WorkerPhase) and name != "idle"}
"""Those that a script can enter by name, inside ``with step:``."""
