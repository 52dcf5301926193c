"""When checkpoints are taken: at multiples of t, every so many seconds, or as often as it pays best.

``auto`` takes the first one early, to measure k0 and k1, and from then on has `core.interval` choose t. Pure but for
its state: who calls it brings the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from everstep.core.interval import LEAST_S, Estimate, Measured, choose, prior_mtbf_s
from everstep.errors import ConfigError
from everstep.types import Step
from everstep.units import read_duration
from everstep.wire.messages import Schedule

AUTO, OFF = "auto", "off"

WARM_STEPS = 3
"""``auto`` looks at so many steps before it takes the first checkpoint."""
AGAIN_S = 30.0
"""If nothing could be measured by then, it is tried again."""
ENOUGH_STEPS = 3
"""On fewer steps φ is not believed."""
MOST_STEPS = 2**63 - 1
"""A message can carry no larger number."""


@dataclass(frozen=True, slots=True)
class Every:
    """``--checkpoint-every``, read."""

    steps: int = 0
    seconds: float = 0.0
    auto: bool = False

    @classmethod
    def read(cls, text: str) -> Every:
        """``auto``, ``off``, a number of steps, or a duration with its unit."""
        if text in (AUTO, OFF):
            return cls(auto=text == AUTO)
        if text.isdecimal():
            if int(text) < 1:
                raise ConfigError(f"--checkpoint-every {text!r}: give 1 step or more, or {OFF} to take none")
            if int(text) > MOST_STEPS:
                raise ConfigError(f"--checkpoint-every {text!r}: give {MOST_STEPS} steps at most, or {OFF}")
            return cls(steps=int(text))
        try:
            if text[-1:].isalpha():  # with its unit, or it might be meant as steps
                return cls(seconds=read_duration(text))
        except ConfigError:
            pass
        raise ConfigError(f"--checkpoint-every {text!r}: give {AUTO}, {OFF}, steps (50) or a duration (30s)")

    @property
    def off(self) -> bool:
        return self == Every()


@dataclass(slots=True)
class Pace:
    """How long steps take, while a checkpoint goes to storage and otherwise."""

    steps: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    seconds: dict[bool, float] = field(default_factory=lambda: {False: 0.0, True: 0.0})
    _last: tuple[float, int, bool] | None = None

    def look(self, now: float, version: int, *, training: bool, persisting: bool) -> None:
        last, self._last = self._last, (now, version, persisting) if training else None
        if last is None or not training or last[2] != persisting or version < last[1]:
            return
        self.steps[persisting] += version - last[1]
        self.seconds[persisting] += now - last[0]

    def step_s(self, *, persisting: bool = False) -> float | None:
        return self.seconds[persisting] / self.steps[persisting] if self.steps[persisting] else None

    @property
    def slowdown(self) -> float:
        """φ; 1 as long as it is not known."""
        plain, slowed = self.step_s(), self.step_s(persisting=True)
        enough = min(self.steps.values()) >= ENOUGH_STEPS
        return slowed / plain if enough and plain and slowed else 1.0


class Cadence:
    """One for a job. What it gives back is to be sent to all workers; None: nothing has changed."""

    def __init__(self, every: Every, ranks: int) -> None:
        self.every = every
        self.steps = every.steps
        """t; 0: not known yet, or not counted in steps."""
        self.why = _asked(every)
        self.estimate = Estimate(prior_mtbf_s(ranks))
        self._base = Step(0)
        self._pace = Pace()
        self._asked_at: float | None = None
        self._seen = 0
        """Steps of this controller's life."""
        self._version = -1
        self._trained_s = 0.0
        self._ticked_at: float | None = None
        self._failures = self._healed = 0

    @property
    def standing(self) -> Schedule:
        """For newcomers too."""
        return Schedule(self.steps, self._base)

    def stop(self, why: str) -> None:
        """No more of them."""
        self.every, self.steps, self.why = Every(), 0, why

    def ask(self, now: float) -> Schedule:
        """A checkpoint behind the next barrier."""
        self._asked_at = now
        return Schedule(self.steps, self._base, soon=True)

    def tick(self, now: float, version: int, *, training: bool, persisting: bool) -> Schedule | None:
        """Look at the clock and at how far the job is."""
        self._pace.look(now, version, training=training, persisting=persisting)
        if training and self._ticked_at is not None:
            self._trained_s += now - self._ticked_at
        self._ticked_at = now
        if not training:
            return None
        if self._version < 0:
            self._version = version
        self._seen = version - self._version
        return self.ask(now) if self._is_due(now) else None

    def _is_due(self, now: float) -> bool:
        if self.every.seconds:
            if self._asked_at is None:
                self._asked_at = now
            return now - self._asked_at >= self.every.seconds
        if not self.every.auto or self.steps or self._seen < WARM_STEPS:
            return False
        return self._asked_at is None or now - self._asked_at >= AGAIN_S

    def recovered(self, failures: int, *, healed: bool) -> None:
        """A recovery is over: whether replicas were enough."""
        self._failures += failures
        self._healed += failures if healed else 0

    def committed(self, step: Step, k0_s: float, k1_s: float) -> Schedule | None:
        """A checkpoint has come to its end, and cost that much."""
        step_s = self._pace.step_s()
        if not self.every.auto or step_s is None:
            return None
        measured = Measured(max(k0_s, LEAST_S), max(k1_s, LEAST_S), self._pace.slowdown, max(step_s, LEAST_S))
        estimate = self.estimate.seen(self._trained_s, self._failures, self._healed)
        choice = choose(measured, estimate, self.steps or None)
        self.why = choice.why
        if choice.steps == self.steps:
            return None
        self.steps, self._base = choice.steps, step
        return self.standing


def _asked(every: Every) -> str:
    if every.auto:
        return "auto: nothing is measured yet"
    if every.off:
        return "off"
    return f"asked for: every {every.steps} steps" if every.steps else f"asked for: every {every.seconds:g} s"
