"""What checkpoints, failures and recoveries cost a job, and what t would waste least: the numbers of `everstep plan`.

Each input is given by a person, or seen in the records of a run, or assumed; which of them is kept with it. The
formulas and their symbols are those of `core.interval`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from everstep.core import interval
from everstep.core.interval import PRIOR_SITE_MTBF_S, Estimate, Measured, prior_mtbf_s
from everstep.errors import ConfigError
from everstep.observe.checkpoints import CheckpointRecord, Fate
from everstep.observe.records import Decision, Outcome, Recovery

MANY = 3
"""Fewer samples or failures than this say little."""
LARGE = 0.2
"""Of M / (1 − q): beyond it, failures while a failure is made good are no longer rare."""


@dataclass(frozen=True, slots=True)
class Value:
    """One input, and where it comes from."""

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that a plan is made of."""

    mtbf_s: Value
    healed_share: Value
    k0_s: Value
    k1_s: Value
    slowdown: Value
    fallback_s: Value
    heal_s: Value
    restart_s: Value
    run_s: Value
    step_s: Value | None


ASSUMED = {
    "healed_share": (interval.PRIOR_HEALED, "assumed: nothing is known"),
    "k0_s": (1.0, "assumed"),
    "k1_s": (60.0, "assumed"),
    "slowdown": (1.05, "assumed: the most that a persister with a spare core may cost"),
    "fallback_s": (10.0, "assumed"),
    "heal_s": (1.0, "assumed"),
    "restart_s": (300.0, "assumed: processes, imports, groups, load"),
    "run_s": (7 * 86_400.0, "assumed: a week"),
}


@dataclass(frozen=True, slots=True)
class Waste:
    """What a policy, or an interval, costs the run."""

    name: str
    t_s: float
    waste_s: float
    share: float
    """Of the run."""


@dataclass(frozen=True, slots=True)
class Plan:
    inputs: Inputs
    optimum_s: float
    """t*."""
    t_s: float
    """t*, but not less than k1."""
    steps: int | None
    """None if nobody knows how long a step is."""
    intervals: tuple[Waste, ...]
    """F around t*."""
    policies: tuple[Waste, ...]
    notes: tuple[str, ...]


def plan(given: Mapping[str, float], seen: Mapping[str, Value]) -> Plan:
    """What is given goes before what was seen, and that before what is assumed. Keys are the fields of `Inputs`."""
    inputs = _inputs(given, seen)
    d, mtbf, q = inputs.run_s.value, inputs.mtbf_s.value, inputs.healed_share.value
    k1, s0, r = inputs.k1_s.value, inputs.fallback_s.value, inputs.heal_s.value
    if q == 1:
        raise ConfigError("q is 1: replicas never heal everything, and without a fallback no checkpoint is worth it")
    # The step has no part in the cost: any will do where nobody knows it.
    cost = Measured(inputs.k0_s.value, k1, inputs.slowdown.value, inputs.step_s.value if inputs.step_s else 1.0).cost_s
    best = interval.optimum_s(cost, mtbf, q)
    t, alone = max(best, k1), max(interval.optimum_s(cost, mtbf, 0.0), k1)

    def row(name: str, t_s: float, waste_s: float) -> Waste:
        return Waste(name, t_s, waste_s, waste_s / d)

    tried = {"t*/2": best / 2, "t*": best, "2 t*": 2 * best} | ({"k1": k1} if best < k1 else {})
    intervals = [row(name, t_s, interval.waste_s(d, t_s, cost, mtbf, q, s0)) for name, t_s in tried.items()]
    policies = (
        row("replicas + checkpoints", t, interval.waste_with_replicas_s(d, t, cost, mtbf, q, s0, r)),
        row("checkpoints alone", alone, interval.waste_of_checkpoints_s(d, alone, cost, mtbf, s0)),
        row("restart from disk", alone, interval.waste_of_restarts_s(d, alone, cost, mtbf, inputs.restart_s.value, k1)),
    )
    steps = interval.in_steps(t, k1, inputs.step_s.value) if inputs.step_s else None
    return Plan(inputs, best, t, steps, tuple(intervals), policies, tuple(_notes(inputs, best, t)))


def _inputs(given: Mapping[str, float], seen: Mapping[str, Value]) -> Inputs:
    values = {name: Value(*assumed) for name, assumed in ASSUMED.items()}
    values["mtbf_s"] = Value(PRIOR_SITE_MTBF_S, "assumed: a failure a day")
    values |= seen
    values |= {name: Value(value, "given") for name, value in given.items()}
    return Inputs(**{"step_s": None, **values})  # type: ignore[arg-type]


def _notes(inputs: Inputs, best: float, t_s: float) -> Iterable[str]:
    q, mtbf = inputs.healed_share.value, inputs.mtbf_s.value
    if best < t_s:
        yield "t* is less than k1, and storage cannot follow: t is k1"
    if t_s + inputs.fallback_s.value > LARGE * mtbf / (1 - q):
        yield "t + s0 is not small against M / (1 − q): what fails while a failure is made good comes on top"
    if inputs.step_s is None:
        yield "how long a step takes is not known: t is not given in steps"


# ── what the records of a run say ────────────────────────────────────────────────────────────────────────


def seen(
    recoveries: Sequence[Recovery], checkpoints: Sequence[CheckpointRecord], run_s: float | None, ranks: int | None
) -> dict[str, Value]:
    """The inputs that can be told from them, under the names of `Inputs`."""
    found: dict[str, Value | None] = {
        "k0_s": _median([record.k0_s for record in checkpoints if record.k0_s > 0], "checkpoints"),
        "k1_s": _median([record.k1_s for record in checkpoints if record.k1_s], "checkpoints that came to storage"),
        "step_s": _median(list(_step_times(checkpoints)), "intervals between checkpoints"),
        "fallback_s": _mean([one.t_total_s for one in recoveries if fell_back(one) and _recovered(one)], "fallbacks"),
        "heal_s": _mean([one.t_total_s for one in recoveries if healed(one)], "recoveries from replicas"),
    }
    if run_s:
        found |= _rates(recoveries, run_s, ranks)
    return {name: value for name, value in found.items() if value is not None}


def healed(recovery: Recovery) -> bool:
    """Replicas did it."""
    return recovery.decision in (Decision.REDO, Decision.FINISH) and _recovered(recovery) and not recovery.false_alarm


def fell_back(recovery: Recovery) -> bool:
    """It took a checkpoint, or would have taken one had there been any.

    Not that of a job which had no state yet: it loses nothing. Nor one that a person broke off.
    """
    began = recovery.decision is Decision.RESTART and recovery.target == 0 and recovery.outcome is not Outcome.FAILED
    return not (began or healed(recovery) or recovery.false_alarm or recovery.outcome is Outcome.INTERRUPTED)


def _recovered(recovery: Recovery) -> bool:
    return recovery.outcome in (Outcome.RECOVERED, Outcome.DONE)


def _rates(recoveries: Sequence[Recovery], run_s: float, ranks: int | None) -> dict[str, Value | None]:
    by_replicas = sum(map(healed, recoveries))
    failures = by_replicas + sum(map(fell_back, recoveries))
    prior_s = PRIOR_SITE_MTBF_S if ranks is None else prior_mtbf_s(ranks)
    estimate = Estimate(prior_s).seen(run_s, failures, by_replicas)
    few = "; too few to say much" if failures < MANY else ""
    prior = f"prior {prior_s / 3600:.3g} h" + (f" for a job of {ranks}" if ranks else "")
    return {
        "run_s": Value(run_s, "the length of this run"),
        "mtbf_s": Value(estimate.mtbf_s, f"failures in this run: {failures}; {prior}{few}"),
        "healed_share": Value(
            estimate.healed_share,
            f"healed by replicas: {by_replicas} of {failures}; prior {estimate.prior_healed:g}{few}",
        ),
    }


def _step_times(checkpoints: Sequence[CheckpointRecord]) -> Iterable[float]:
    """Between two copies that no recovery lies between. Records come in the order in which fates were known."""
    copies = [each for each in checkpoints if each.fate is not Fate.SKIPPED]
    for before, after in pairwise(sorted(copies, key=lambda each: each.step)):
        steps, seconds = after.step - before.step, after.time_s - before.time_s - before.k0_s
        same = (before.generation, before.attempt) == (after.generation, after.attempt)
        if same and steps > 0 and seconds > 0:
            yield seconds / steps


def _median(samples: Sequence[float], what: str) -> Value | None:
    return Value(median(samples), _of(samples, "median", what)) if samples else None


def _mean(samples: Sequence[float], what: str) -> Value | None:
    return Value(fmean(samples), _of(samples, "mean", what)) if samples else None


def _of(samples: Sequence[float], how: str, what: str) -> str:
    return f"{what}: {how} of {len(samples)}" + ("; too few to say much" if len(samples) < MANY else "")
