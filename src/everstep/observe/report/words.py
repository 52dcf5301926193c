"""How numbers and phases are said to people: durations, sizes, names. Pure."""

from __future__ import annotations

from everstep.types import WorkerPhase

FORWARD, BACKWARD = WorkerPhase.FORWARD.name, WorkerPhase.BACKWARD.name
READY, COMMITTED = WorkerPhase.READY.name, WorkerPhase.COMMITTED.name
STOP, CLEAN, SCRIPT, RESET, RESTORE, RESUME = "STOP", "CLEAN", "SCRIPT", "RESET", "RESTORE", "RESUME"
CHECKPOINT = "CHECKPOINT"

STEP_PHASES = (FORWARD, BACKWARD, READY, COMMITTED)
STOPPED_PHASES = (STOP, CLEAN, RESET)
"""What a survivor does before state moves: Stop + Clean + Reset."""

PHASES = {
    "SPAWNED": "starting",
    "STANDBY": "standing by",
    "BUILDING": "runs the script",
    "HOLLOW": "waits for its state",
    "IDLE": "between two steps",
    FORWARD: "Forward",
    BACKWARD: "Backward",
    READY: "Gradient Synchronization Barrier",
    COMMITTED: "Optimizer Step",
    "ENDED": "has completed the last step",
    STOP: "Stop",
    CLEAN: "Clean",
    SCRIPT: "runs the script",
    RESET: "Reset",
    RESTORE: "Restoration",
    RESUME: "Rollback",
    CHECKPOINT: "checkpoint → memory (k₀)",
}

CAUSES = {
    "EXIT": "process died",
    "EXCEPTION": "exception",
    "FROZEN": "frozen",
    "HANG": "hang",
    "OVERDUE": "no answer",
    "DEVICE": "sick device",
    "NODE": "node lost",
    "STALLED": "nobody moved",
    "COLLECTIVE": "a collective failed",
    "UNREACHABLE": "cannot reach the target",
    "LAYOUT": "another model",
    "RULE": "broke a rule",
    "LOST": "lost private state",
    "RESOURCE": "short of a resource",
}


def phase(name: str | None) -> str:
    return "unknown" if name is None else PHASES.get(name, name)


def cause(name: str) -> str:
    return CAUSES.get(name, name)


def duration(seconds: float) -> str:
    """``3.2 ms``, ``47 ms``, ``1.25 s``, ``2 min 5 s``: three digits say enough."""
    if seconds < 0:
        return "−" + duration(-seconds)
    if seconds < 0.9995:
        milliseconds = seconds * 1000
        return f"{milliseconds:.1f} ms" if milliseconds < 9.95 else f"{milliseconds:.0f} ms"
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 119.5:
        return f"{seconds:.1f} s" if seconds < 99.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def exact(seconds: float) -> str:
    """To the microsecond, for tables and hovering."""
    return f"{seconds * 1000:,.3f} ms" if abs(seconds) < 10 else f"{seconds:,.3f} s"


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def plural(count: int, noun: str, many: str | None = None) -> str:
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def share(fraction: float) -> str:
    """Never 100 % unless it is."""
    return f"{min(fraction * 100, 99.99 if fraction < 1 else 100.0):.4g} %"
