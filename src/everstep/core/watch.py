"""What the boards have told about one worker: how long it stands still, and how long it usually does.

It judges nobody. All of it is counted in the clock of the worker's own node: between two looks with the same number
of moves, the age of the last move has grown by just the time that passed there. So neither clocks that disagree nor
a message that was long on its way can make a worker look still.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, fields
from statistics import median
from typing import NamedTuple

from everstep.core.events import Position
from everstep.errors import ConfigError
from everstep.types import Generation, NodeId, Rank, Step, WorkerId, WorkerPhase


@dataclass(frozen=True, slots=True)
class DetectorConfig:
    """When patience ends. Seconds of stillness are counted as `watch` describes."""

    heartbeat_s: float = 1.0
    missed: int = 3
    """So many heartbeats without a word from its agent, and a node is out of reach."""
    frozen_s: float = 2.0
    idle_cpu: float = 0.02
    """Share of a core that a frozen process may seem to use: threads that wait for the GIL wake up every 5 ms."""
    gap_s: float = 1.0
    """An agent that did not look for longer than this was not running itself: that time proves nothing."""
    hang_floor_s: float = 2.0
    hang_factor: float = 5.0
    first_steps: int = 3
    first_s: float = 120.0
    """Allowance in the first steps of an incarnation: it compiles, allocates, warms up."""
    stall_s: float = 10.0
    """Least time that all wait and nobody moves. More patience than for a hang: a second stall ends the job."""
    widen: float = 4.0
    """Every false alarm multiplies the patience with that rank by this."""
    memory: int = 9
    """How many visits of a phase the typical time is taken from."""

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.name.endswith("_s")):
            self._check(name, math.nextafter(0.0, 1.0), "more than 0 seconds")
        for name in ("missed", "memory"):
            self._check(name, 1, "a whole number, at least 1", whole=True)
        self._check("first_steps", 0, "a whole number, at least 0", whole=True)
        for name in ("hang_factor", "widen"):
            self._check(name, 1.0, "at least 1")
        self._check("idle_cpu", 0.0, "at least 0")
        if not self.gap_s < self.frozen_s:
            raise ConfigError(
                f"gap_s is {self.gap_s!r}: it must be less than frozen_s={self.frozen_s!r}, "
                "or one missed look would be enough to call a worker frozen"
            )

    def _check(self, name: str, least: float, rule: str, *, whole: bool = False) -> None:
        value = getattr(self, name)
        kind = int if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kind) or not math.isfinite(value) or value < least:
            raise ConfigError(f"{name} is {value!r}: it must be {rule}")


@dataclass(frozen=True, slots=True)
class Sighting:
    """What an agent read from one board, and from the system about the process behind it."""

    worker: WorkerId
    rank: Rank | None
    """None for a standby."""
    phase: WorkerPhase
    version: int
    """Updates that its state includes, so also the step that it runs or that is next; -1 while it has none."""
    generation: Generation
    pulse: int
    """Heartbeats of its control thread; 0 while it has none: before init(), and once it has said good-bye."""
    moves: int
    """Stamps on its board. They stand still while the main thread does."""
    moved_ago_s: float
    """Age of the last stamp when the agent looked, by that machine's monotonic clock."""
    cpu_s: float
    """CPU time of the process so far."""
    waiting: bool = False
    """It is inside a collective."""
    attempt: int = 0
    limit_s: float = 0.0
    """Of a declared long phase, else 0."""
    pid: int = 0

    @property
    def training(self) -> bool:
        return self.rank is not None and self.phase >= WorkerPhase.IDLE

    @property
    def left(self) -> bool:
        """It is done with the loop; nobody may need it."""
        return self.training and self.phase is WorkerPhase.ENDED

    @property
    def waits_at_the_end(self) -> bool:
        """It has left the loop, and all others have to before it may go on."""
        return self.left and self.waiting

    @property
    def waits(self) -> bool:
        """It waits for other ranks; in READY that is the barrier."""
        return self.training and not self.left and (self.waiting or self.phase is WorkerPhase.READY)

    @property
    def awaits(self) -> tuple[Generation, int] | None:
        """The step, of which generation, in which it waits for others."""
        return (self.generation, self.version) if self.waits else None

    @property
    def position(self) -> Position:
        return Position(self.phase, Step(self.version))

    @property
    def place(self) -> str:
        return f"{self.phase.name} of step {self.version}" if self.version >= 0 else self.phase.name


class Limit(NamedTuple):
    """How long somebody may stand still, and why so long. The longest wins."""

    seconds: float
    reason: str


class Watch:
    """One incarnation of a worker, from look to look."""

    __slots__ = (
        "_config",
        "_cpu_s",
        "_epoch",
        "_excused_in",
        "_history",
        "_longest",
        "_steps",
        "node",
        "quiet_s",
        "seen",
        "still_s",
    )

    def __init__(self, config: DetectorConfig, node: NodeId, first: Sighting, began: Step) -> None:
        self._config = config
        self.node = node
        self.seen = first
        self.still_s = 0.0
        """How long its main thread has not moved. What was before the first look does not count."""
        self.quiet_s = 0.0
        """How long it has shown no sign of life: no move, no heartbeat, no CPU time."""
        self._cpu_s = first.cpu_s
        self._epoch = self._excused_in = -1
        self._steps = max(0, first.version - began) if first.training else 0
        """Done by this incarnation, those too that nobody looked at."""
        # By phase, and by whether it waits: the longest stretch of each of the last visits.
        self._history: dict[tuple[WorkerPhase, bool], deque[float]] = {}
        self._longest: dict[bool, float] = {}

    def look(self, new: Sighting, epoch: int, began: Step, *, training: bool) -> bool:
        """Take a look at it in; whether it has moved. In a new epoch the main thread's stillness starts anew. Who held
        no state before has begun with the step ``began``."""
        old, self.seen = self.seen, new
        moved = new.moves != old.moves
        passed_s = new.moved_ago_s if moved else new.moved_ago_s - old.moved_ago_s
        seen_s = passed_s if passed_s <= self._config.gap_s else 0.0
        self.still_s = seen_s if moved else self.still_s + seen_s
        if epoch != self._epoch:
            self._epoch, self.still_s = epoch, 0.0
            self._longest.clear()  # what was no stretch of training, if only by the end, teaches nothing
        self._listen(old, new, seen_s, alive=moved or seen_s < passed_s)
        self._learn(old, new, training=training)
        if new.training:
            self._steps += max(0, new.version - (old.version if old.training else began))
        return moved

    def _listen(self, old: Sighting, new: Sighting, seen_s: float, *, alive: bool) -> None:
        """A gap between two looks counts as a sign of life: what kept the agent from running (a suspended machine,
        a saturated one) keeps the worker from beating as well, and it must have a full window to beat again."""
        busy_s = self._config.idle_cpu * self._config.frozen_s
        if alive or new.pulse != old.pulse or new.cpu_s - self._cpu_s > busy_s:
            self.quiet_s, self._cpu_s = 0.0, new.cpu_s
        else:
            self.quiet_s += seen_s

    def _learn(self, old: Sighting, new: Sighting, *, training: bool) -> None:
        """A stretch is measured by the last look at it: up to one look short, which the factor has room for. What
        counts of a visit is its longest stretch: a phase may be a hundred short ones and one of three seconds."""
        if (old.phase, old.version) != (new.phase, new.version):
            for waits, longest_s in self._longest.items() if training else ():  # a failure teaches no patience
                key = (old.phase, waits)
                if key not in self._history:
                    self._history[key] = deque(maxlen=self._config.memory)
                self._history[key].append(longest_s)
            self._longest.clear()
        if training and not new.limit_s:
            self._longest[new.waits] = max(self._longest.get(new.waits, 0.0), self.still_s)

    def excuse(self, epoch: int) -> None:
        """It stands still because it was told to, until the next epoch."""
        self._excused_in = epoch

    @property
    def excused(self) -> bool:
        return self._excused_in == self._epoch != -1

    def current(self, epoch: int) -> bool:
        """Whether it was looked at since the last resume."""
        return epoch == self._epoch

    def typical_s(self, *, waits: bool) -> float:
        """The median of its longest stretches in this phase, 0 if none is known."""
        return median(self._history.get((self.seen.phase, waits), (0.0,)))

    def limit(self, allowance: float) -> Limit:
        """How long it may stand still here."""
        config = self._config
        widened = f", ×{allowance:g} after a false alarm" if allowance > 1 else ""
        limits = [Limit(config.hang_floor_s, "the least")]
        if self.seen.limit_s:
            limits.append(Limit(self.seen.limit_s, "declared"))
        else:
            # A collective may take its time although everybody is in it, so in one that time counts too.
            kinds = (False, True) if self.seen.waits else (False,)
            typical_s = max(self.typical_s(waits=kind) for kind in kinds)
            reason = f"{config.hang_factor:g} × typical {typical_s:.2f} s"
            limits.append(Limit(config.hang_factor * typical_s, reason))
            if self._steps < config.first_steps:
                limits.append(Limit(config.first_s, f"first {config.first_steps} steps"))
        longest = max(limits)
        return Limit(longest.seconds * allowance, longest.reason + widened)
