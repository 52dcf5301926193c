"""How often to take a checkpoint: t, from what checkpoints cost and how often the job falls back to one.

    symbol  unit     meaning
    d       s        length of the run: the training that is wanted, without what is wasted
    M       s        mean time between failures of the job, of whatever kind
    q       0 … 1    share of the failures that replicas heal; the others fall back to a checkpoint
    m       –        fallbacks in the run: m = d (1 − q) / M
    t       s        training between the beginnings of two checkpoints
    s0      s        fixed cost of a fallback: detect + restart + load
    k0      s        copy to memory; training stands still
    k1      s        from memory to storage; training goes on, φ times as slow
    φ       ratio    step time while a checkpoint goes to storage, over step time otherwise
    k0eff   s        what one checkpoint costs: k0 + (φ − 1) k1
    r       s        cost of a failure that replicas heal
    F(t)    s        waste of the run by checkpoints and fallbacks

A failure strikes at any moment of an interval with the same likelihood, so a fallback loses t/2 of training on
average besides s0; and d/t checkpoints are taken:

    F(t)  = m (s0 + t/2) + (d/t) k0eff
    F'(t) = m/2 − d k0eff / t² = 0   gives   t* = √(2 d k0eff / m) = √(2 k0eff M / (1 − q))

d and s0 drop out. F is convex, so where t* is less than k1 the best t that storage can follow is k1 itself: two
checkpoints on their way to storage at once would fill both slots. What fails while a failure is being made good is not
counted: the formula is good as long as t + s0 is small against M / (1 − q).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from everstep.errors import ConfigError

LEAST_S, MOST_S = 1e-9, 1e12
"""Durations outside are mistakes, and their products might be no numbers."""

PRIOR_DEVICE_MTBF_S = 50_000 * 3600.0
"""Of one accelerator with its share of node and network, as large training runs have reported it."""
PRIOR_SITE_MTBF_S = 24 * 3600.0
"""Of what does not grow with the devices: people, power, the script."""
PRIOR_HEALED = 0.5
"""Nothing is known: a job with replicas will soon show better, one without them worse."""

KEEP = 1.5
"""t stays while t* is within this factor of it: F is flat there, what t moves of it is at most 8 % above its least."""
STRIDE = 2
"""One change multiplies or divides t by this at most: a single odd measurement does little."""


def prior_mtbf_s(devices: int) -> float:
    """M before anything was seen: the rates of all that can fail add up."""
    if devices < 1:
        raise ConfigError(f"devices is {devices!r}: a job has at least 1")
    return 1 / (1 / PRIOR_SITE_MTBF_S + devices / PRIOR_DEVICE_MTBF_S)


@dataclass(frozen=True, slots=True)
class Measured:
    """What checkpoints of this job cost, and how long its steps are."""

    k0_s: float
    k1_s: float
    slowdown: float
    """φ. Noise may measure it below 1, which counts as 1."""
    step_s: float

    def __post_init__(self) -> None:
        for name in ("k0_s", "k1_s", "step_s"):
            _check_duration(name, getattr(self, name))
        if not LEAST_S <= self.slowdown <= MOST_S:
            raise ConfigError(f"slowdown is {self.slowdown!r}: it must be a ratio, 1 for none at all")

    @property
    def cost_s(self) -> float:
        """k0eff."""
        return self.k0_s + max(0.0, self.slowdown - 1) * self.k1_s


@dataclass(frozen=True, slots=True)
class Estimate:
    """M and q: what was believed before, corrected by what was seen.

    The rate of failures has a gamma distribution whose prior weighs as much as one failure in ``prior_mtbf_s``; the
    share that replicas heal has a beta distribution whose prior weighs as much as one failure too. Both means then
    are (prior + seen) / (weight + seen). So q never reaches 1 after a finite number of failures, unless the prior
    says so.
    """

    prior_mtbf_s: float
    prior_healed: float = PRIOR_HEALED
    run_s: float = 0.0
    failures: int = 0
    healed: int = 0

    def __post_init__(self) -> None:
        _check_duration("prior_mtbf_s", self.prior_mtbf_s)
        _check_share("prior_healed", self.prior_healed)
        if not 0 <= self.run_s <= MOST_S:
            raise ConfigError(f"run_s is {self.run_s!r}: a job has run for 0 seconds or more")
        if not 0 <= self.healed <= self.failures:
            raise ConfigError(f"healed is {self.healed!r} of {self.failures!r} failures: give 0 up to all of them")

    def seen(self, run_s: float, failures: int, healed: int) -> Estimate:
        """After so much of the run, with so many failures in all: totals, so that to tell them twice is harmless."""
        return replace(self, run_s=run_s, failures=failures, healed=healed)

    @property
    def mtbf_s(self) -> float:
        """M."""
        return (self.prior_mtbf_s + self.run_s) / (1 + self.failures)

    @property
    def healed_share(self) -> float:
        """q."""
        return (self.prior_healed + self.healed) / (1 + self.failures)


@dataclass(frozen=True, slots=True)
class Choice:
    """t, and the sentence for the log that has all it was made of."""

    steps: int
    why: str


def optimum_s(cost_s: float, mtbf_s: float, healed_share: float) -> float:
    """t*, from k0eff, M and q, without regard to k1. It has no end where nothing falls back."""
    _check_duration("cost_s", cost_s)
    _check_duration("mtbf_s", mtbf_s)
    _check_share("healed_share", healed_share)
    return math.inf if healed_share == 1 else math.sqrt(2 * cost_s * mtbf_s / (1 - healed_share))


def in_steps(t_s: float, k1_s: float, step_s: float) -> int:
    """t as whole steps, as many as k1 takes at least."""
    return max(least_steps(k1_s, step_s), round(min(t_s, MOST_S) / step_s))


def least_steps(k1_s: float, step_s: float) -> int:
    """The bound that storage sets."""
    return max(1, math.ceil(k1_s / step_s))


def choose(measured: Measured, estimate: Estimate, current_steps: int | None = None) -> Choice:
    """t in steps. With a current t it changes only when that pays, and step by step; but never is it less than k1."""
    if current_steps is not None and current_steps < 1:
        raise ConfigError(f"current_steps is {current_steps!r}: a checkpoint is taken every 1 step or more")
    wanted_s = optimum_s(measured.cost_s, estimate.mtbf_s, estimate.healed_share)
    least = least_steps(measured.k1_s, measured.step_s)
    wanted = in_steps(wanted_s, measured.k1_s, measured.step_s)
    steps = wanted if current_steps is None else max(least, _damped(current_steps, wanted))
    return Choice(steps, _why(measured, estimate, wanted_s, wanted, steps, current_steps))


def _damped(current: int, wanted: int) -> int:
    if current / KEEP <= wanted <= current * KEEP:
        return current
    return min(max(wanted, -(-current // STRIDE)), current * STRIDE)


def _why(measured: Measured, estimate: Estimate, wanted_s: float, wanted: int, steps: int, current: int | None) -> str:
    bound = f", raised to k1 {measured.k1_s:.3g} s" if wanted_s < measured.k1_s else ""
    if current is None:
        before = ""
    elif steps == current:
        before = f"; it stays, {wanted} steps would be best"
    elif steps == wanted:
        before = f"; it was {current}"
    else:
        before = f"; it was {current}, on the way to {wanted}"
    return (
        f"t = {steps} steps of {measured.step_s:.3g} s: t* = √(2 · {measured.cost_s:.3g} s · {estimate.mtbf_s:.4g} s / "
        f"(1 − {estimate.healed_share:.6g})) = {wanted_s:.4g} s{bound}{before} (k0 {measured.k0_s:.3g} s, "
        f"k1 {measured.k1_s:.3g} s, φ {measured.slowdown:.3f}; M from {estimate.failures} failures in "
        f"{estimate.run_s:.4g} s and a prior of {estimate.prior_mtbf_s:.4g} s; q from {estimate.healed} healed by "
        f"replicas and a prior of {estimate.prior_healed:.3g})"
    )


# ── the expected waste of a run, by what stands behind it ────────────────────────────────────────────────


def waste_s(run_s: float, t_s: float, cost_s: float, mtbf_s: float, healed_share: float, fallback_s: float) -> float:
    """F(t): of d, t, k0eff, M, q and s0. What replicas heal is free here."""
    for name, value in (("run_s", run_s), ("t_s", t_s), ("cost_s", cost_s), ("mtbf_s", mtbf_s)):
        _check_duration(name, value)
    _check_duration("fallback_s", fallback_s)
    _check_share("healed_share", healed_share)
    fallbacks = run_s * (1 - healed_share) / mtbf_s
    return fallbacks * (fallback_s + t_s / 2) + run_s / t_s * cost_s


def waste_of_checkpoints_s(run_s: float, t_s: float, cost_s: float, mtbf_s: float, fallback_s: float) -> float:
    """Every failure falls back: F(t) with q = 0."""
    return waste_s(run_s, t_s, cost_s, mtbf_s, 0.0, fallback_s)


def waste_with_replicas_s(
    run_s: float, t_s: float, cost_s: float, mtbf_s: float, healed_share: float, fallback_s: float, heal_s: float
) -> float:
    """F(t), and r for each failure that replicas heal."""
    _check_duration("heal_s", heal_s)
    healed = run_s * healed_share / mtbf_s
    return waste_s(run_s, t_s, cost_s, mtbf_s, healed_share, fallback_s) + healed * heal_s


def waste_of_restarts_s(run_s: float, t_s: float, cost_s: float, mtbf_s: float, restart_s: float, k1_s: float) -> float:
    """Every failure takes the launcher ``restart_s`` and goes back to storage.

    What is in memory is gone, and a checkpoint counts only k1 after it was taken: t/2 + k1 is lost on average.
    """
    _check_duration("k1_s", k1_s)
    return waste_s(run_s, t_s, cost_s, mtbf_s, 0.0, restart_s + k1_s)


def _check_duration(name: str, value: float) -> None:
    if not LEAST_S <= value <= MOST_S:  # NaN is not either
        raise ConfigError(f"{name} is {value!r}: it must be a number of seconds, {LEAST_S:g} to {MOST_S:g}")


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} is {value!r}: it must be a share, 0 to 1")
