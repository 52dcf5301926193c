"""t: what it is least for, what moves it, how it is bounded and damped, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.core import interval
from everstep.core.interval import KEEP, STRIDE, Choice, Estimate, Measured, choose, optimum_s, prior_mtbf_s, waste_s
from everstep.errors import ConfigError

COSTS = st.floats(1e-3, 1e3)
MTBFS = st.floats(10, 1e8)
SHARES = st.floats(0, 0.999)
RUNS = st.floats(1, 1e8)
SLOWDOWNS = st.floats(0.9, 3)
MEASURED = st.builds(Measured, k0_s=COSTS, k1_s=COSTS, slowdown=SLOWDOWNS, step_s=st.floats(1e-3, 100))
ESTIMATES = st.builds(Estimate, prior_mtbf_s=MTBFS, prior_healed=SHARES)
STEPS = st.integers(1, 10**9)

HOUR_S = 3600.0
PLAIN = Measured(k0_s=2.0, k1_s=90.0, slowdown=1.0, step_s=0.5)
BELIEF = Estimate(3 * HOUR_S, prior_healed=0.0)


# ── the optimum ──────────────────────────────────────────────────────────────────────────────────────────


def test_it_is_the_square_root_that_the_derivation_gives() -> None:
    assert optimum_s(2.0, 10_000.0, 0.0) == 200.0
    assert optimum_s(2.0, 10_000.0, 0.75) == 400.0


@given(run=RUNS, cost=COSTS, mtbf=MTBFS, share=SHARES, fallback=COSTS, factor=st.floats(1.001, 100))
def test_no_other_interval_wastes_less(
    run: float, cost: float, mtbf: float, share: float, fallback: float, factor: float
) -> None:
    best = optimum_s(cost, mtbf, share)

    def waste(t_s: float) -> float:
        return waste_s(run, t_s, cost, mtbf, share, fallback)

    for other in (best * factor, best / factor):
        assert waste(best) <= waste(other) * (1 + 1e-12)


@given(cost=COSTS, mtbf=MTBFS, share=SHARES, factor=st.floats(1.01, 100))
def test_rarer_failures_and_dearer_checkpoints_lengthen_it(
    cost: float, mtbf: float, share: float, factor: float
) -> None:
    best = optimum_s(cost, mtbf, share)
    assert optimum_s(cost * factor, mtbf, share) > best
    assert optimum_s(cost, mtbf * factor, share) > best
    assert optimum_s(cost, mtbf, 1 - (1 - share) / factor) > best


def test_interference_is_a_part_of_what_a_checkpoint_costs() -> None:
    assert Measured(2.0, 90.0, 1.1, 0.5).cost_s == pytest.approx(2.0 + 0.1 * 90.0)


def test_a_slowdown_that_noise_measured_below_1_is_none() -> None:
    assert Measured(2.0, 90.0, 0.97, 0.5).cost_s == 2.0


def test_where_nothing_falls_back_it_has_no_end() -> None:
    assert optimum_s(2.0, 100.0, 1.0) == math.inf
    assert choose(PLAIN, Estimate(100.0, prior_healed=1.0)).steps > 10**9


# ── the choice ───────────────────────────────────────────────────────────────────────────────────────────


def test_it_is_counted_in_whole_steps() -> None:
    best_s = optimum_s(2.0, 3 * HOUR_S, 0.0)
    assert choose(PLAIN, BELIEF).steps == round(best_s / 0.5) == 416


@given(measured=MEASURED, estimate=ESTIMATES, current=st.none() | STEPS)
def test_storage_can_always_follow(measured: Measured, estimate: Estimate, current: int | None) -> None:
    steps = choose(measured, estimate, current).steps
    assert steps >= 1
    assert steps * measured.step_s >= measured.k1_s * (1 - 1e-12)


@given(measured=MEASURED, estimate=ESTIMATES, current=STEPS)
def test_one_change_is_no_more_than_a_factor_of_two(measured: Measured, estimate: Estimate, current: int) -> None:
    steps = choose(measured, estimate, current).steps
    assert steps >= current / STRIDE
    assert steps <= max(current * STRIDE, math.ceil(measured.k1_s / measured.step_s))


@given(measured=MEASURED, estimate=ESTIMATES, current=STEPS)
def test_it_settles_near_the_optimum_and_stays(measured: Measured, estimate: Estimate, current: int) -> None:
    wanted = choose(measured, estimate).steps
    for _ in range(64):
        current = choose(measured, estimate, current).steps
    assert wanted / KEEP <= current <= wanted * KEEP
    assert choose(measured, estimate, current).steps == current


@pytest.mark.parametrize("current", [416, 300, 600])
def test_a_small_gain_moves_nothing(current: int) -> None:
    assert choose(PLAIN, BELIEF, current).steps == current


@pytest.mark.parametrize(("current", "after"), [(100, 200), (1000, 500), (270, 416), (700, 416)])
def test_a_large_one_moves_it_by_at_most_a_factor_of_two(current: int, after: int) -> None:
    assert choose(PLAIN, BELIEF, current).steps == after


def test_the_bound_of_storage_is_not_damped() -> None:
    slow = Measured(k0_s=2.0, k1_s=5000.0, slowdown=1.0, step_s=0.5)
    assert choose(slow, BELIEF, 100).steps == 10_000


@pytest.mark.parametrize(
    ("measured", "current", "words"),
    [
        (PLAIN, None, ["t = 416 steps of 0.5 s", "t* = √(2 · 2 s · 1.08e+04 s / (1 − 0)) = 207.8 s (k0 2 s, k1 90 s"]),
        (PLAIN, 300, ["t = 300 steps", "; it stays, 416 steps would be best"]),
        (PLAIN, 100, ["t = 200 steps", "; it was 100, on the way to 416"]),
        (PLAIN, 700, ["t = 416 steps", "; it was 700 ("]),
        (Measured(2.0, 300.0, 1.0, 0.5), None, ["t = 600 steps", "= 207.8 s, raised to k1 300 s"]),
        (PLAIN, None, ["φ 1.000", "M from 0 failures in 0 s and a prior of 1.08e+04 s", "q from 0 healed"]),
    ],
)
def test_the_choice_says_why(measured: Measured, current: int | None, words: list[str]) -> None:
    why = choose(measured, BELIEF, current).why
    for word in words:
        assert word in why
    assert "\n" not in why


# ── the estimate ─────────────────────────────────────────────────────────────────────────────────────────


def test_before_anything_was_seen_the_prior_holds() -> None:
    assert (BELIEF.mtbf_s, BELIEF.healed_share) == (3 * HOUR_S, 0.0)


def test_the_prior_weighs_as_much_as_one_failure() -> None:
    seen = Estimate(3 * HOUR_S, prior_healed=0.5).seen(run_s=HOUR_S, failures=3, healed=2)
    assert seen.mtbf_s == HOUR_S
    assert seen.healed_share == 2.5 / 4


def test_totals_that_are_told_twice_change_nothing() -> None:
    once = BELIEF.seen(1000.0, 3, 2)
    assert once.seen(1000.0, 3, 2) == once


@given(prior=st.floats(60, 1e7), true=st.floats(60, 1e5))
def test_much_evidence_outweighs_the_prior(prior: float, true: float) -> None:
    failures = 1_000_000
    seen = Estimate(prior).seen(true * failures, failures, failures // 4)
    assert seen.mtbf_s == pytest.approx(true, rel=0.5)
    assert seen.healed_share == pytest.approx(0.25, abs=1e-5)


@given(estimate=ESTIMATES, run=RUNS, failures=st.integers(0, 1000))
def test_replicas_that_healed_everything_still_leave_a_finite_interval(
    estimate: Estimate, run: float, failures: int
) -> None:
    seen = estimate.seen(run, failures, failures)
    assert seen.healed_share < 1
    assert math.isfinite(optimum_s(1.0, seen.mtbf_s, seen.healed_share))


def test_more_devices_fail_more_often() -> None:
    hours = [prior_mtbf_s(devices) / HOUR_S for devices in (1, 1024, 16_384)]
    assert hours == sorted(hours, reverse=True)
    assert hours[0] == pytest.approx(24, rel=0.01)
    assert hours[2] == pytest.approx(2.7, rel=0.01)  # a published run with so many lost one every 3.1 hours


# ── the three policies ───────────────────────────────────────────────────────────────────────────────────


def test_the_waste_is_what_the_derivation_says() -> None:
    week = 7 * 24 * HOUR_S
    fallbacks, checkpoints = week * 0.5 / HOUR_S, week / 300
    assert waste_s(week, 300.0, 2.0, HOUR_S, 0.5, 30.0) == pytest.approx(fallbacks * (30 + 150) + checkpoints * 2)


def test_with_checkpoints_alone_every_failure_falls_back() -> None:
    assert interval.waste_of_checkpoints_s(1e6, 300.0, 2.0, HOUR_S, 30.0) == waste_s(1e6, 300.0, 2.0, HOUR_S, 0, 30.0)


def test_with_replicas_those_that_are_healed_cost_their_recovery() -> None:
    fallen = waste_s(1e6, 300.0, 2.0, HOUR_S, 0.9, 30.0)
    assert interval.waste_with_replicas_s(1e6, 300.0, 2.0, HOUR_S, 0.9, 30.0, 1.5) == pytest.approx(
        fallen + 1e6 * 0.9 / HOUR_S * 1.5
    )


def test_a_restart_from_disk_loses_what_was_on_its_way_there_too() -> None:
    restarts = 1e6 / HOUR_S
    assert interval.waste_of_restarts_s(1e6, 300.0, 2.0, HOUR_S, 120.0, 90.0) == pytest.approx(
        restarts * (120 + 150 + 90) + 1e6 / 300 * 2
    )


# ── what cannot be ───────────────────────────────────────────────────────────────────────────────────────

ODD = [0.0, -1.0, math.nan, math.inf]


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("name", ["k0_s", "k1_s", "step_s", "slowdown"])
def test_a_measurement_that_cannot_be_is_refused(name: str, value: float) -> None:
    values: dict[str, Any] = {"k0_s": 2.0, "k1_s": 90.0, "slowdown": 1.0, "step_s": 0.5, name: value}
    with pytest.raises(ConfigError, match=f"{name} is {value!r}: it must be a"):
        Measured(**values)


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: Estimate(0.0), r"prior_mtbf_s is 0\.0: it must be a number of seconds"),
    (lambda: Estimate(math.nan), "prior_mtbf_s is nan"),
    (lambda: Estimate(1.0, prior_healed=1.5), r"prior_healed is 1\.5: it must be a share"),
    (lambda: Estimate(1.0, prior_healed=math.nan), "prior_healed is nan"),
    (lambda: BELIEF.seen(-1.0, 0, 0), r"run_s is -1\.0"),
    (lambda: BELIEF.seen(math.nan, 0, 0), "run_s is nan"),
    (lambda: BELIEF.seen(1.0, 1, 2), "healed is 2 of 1 failures"),
    (lambda: BELIEF.seen(1.0, -1, 0), "healed is 0 of -1 failures"),
    (lambda: choose(PLAIN, BELIEF, 0), "current_steps is 0"),
    (lambda: prior_mtbf_s(0), "devices is 0"),
    (lambda: optimum_s(1.0, 1.0, -0.1), r"healed_share is -0\.1"),
    (lambda: waste_s(1.0, 0.0, 1.0, 1.0, 0.0, 1.0), r"t_s is 0\.0"),
    (lambda: waste_s(1.0, 1.0, 1.0, 1.0, 0.0, math.nan), "fallback_s is nan"),
    (lambda: interval.waste_with_replicas_s(1.0, 1.0, 1.0, 1.0, 0.0, 1.0, -1.0), r"heal_s is -1\.0"),
    (lambda: interval.waste_of_restarts_s(1.0, 1.0, 1.0, 1.0, 1.0, math.inf), "k1_s is inf"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_cannot_be_is_refused_with_its_value(call: Callable[[], Choice], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        call()
