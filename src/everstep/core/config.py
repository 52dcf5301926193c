"""The settings of a job that the protocol knows: sizes, limits and deadlines."""

from __future__ import annotations

from dataclasses import dataclass, fields

from everstep.core.events import Checkpoint
from everstep.errors import ConfigError


@dataclass(frozen=True, slots=True)
class JobConfig:
    """Every wait of the machine has a deadline here, and every loop a limit."""

    ranks: int
    standbys: int = 1
    nodes: int = 1
    """Nodes that have to join before the first worker starts."""
    max_failures: int = 100
    """Failures over the whole job before it gives up."""
    max_failures_per_step: int = 3
    """Recoveries in a row that do not lead to a committed step before it gives up."""
    start_s: float = 600.0
    """From the start until there is a device for every rank. What scripts do before protect() has no limit here."""
    stop_s: float = 60.0
    """Until every survivor is parked. A safe point must come within it."""
    settle_s: float = 600.0
    """Until survivors have settled and newcomers, or a free device for them, are there."""
    reset_s: float = 60.0
    restore_s: float = 1800.0
    grace_s: float = 2.0
    """How long a failed collective waits for the verdict that explains it."""
    return_s: float = 10.0
    """How long a restarted controller waits for its agents."""
    resume: tuple[Checkpoint, ...] = ()
    """What the job goes on from instead of step 0: the one to load, then those to fall back to."""

    def __post_init__(self) -> None:
        self._at_least(1, "ranks", "nodes")
        self._at_least(0, "standbys", "max_failures", "max_failures_per_step")
        for name in (field.name for field in fields(self) if field.name.endswith("_s")):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}: a deadline must be more than 0 seconds")

    def _at_least(self, least: int, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                rule = "there is nothing for a standby to replace" if self._lonely(name) else f"at least {least}"
                raise ConfigError(f"{name} is {value!r}: it must be a whole number, {rule}")

    def _lonely(self, name: str) -> bool:
        return name == "ranks" and self.ranks == 0 and self.standbys > 0
