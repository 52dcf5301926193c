"""The plan: what it says of given numbers, what it takes from the records of a run, and what it assumes."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from tests.observe.conftest import RecordedJob

from everstep.core.interval import PRIOR_HEALED, optimum_s, prior_mtbf_s
from everstep.errors import ConfigError
from everstep.observe.checkpoints import CheckpointRecord, Fate
from everstep.observe.plan import Inputs, fell_back, healed, plan, seen
from everstep.observe.records import Decision, Outcome, Recovery

GIVEN = {"mtbf_s": 10_000.0, "healed_share": 0.75, "k0_s": 2.0, "k1_s": 90.0, "slowdown": 1.0, "step_s": 0.5}


@pytest.fixture(scope="module")
def recovery() -> Recovery:
    """One that replicas healed, in 1 s."""
    job = RecordedJob(2, standbys=1)
    job.training()
    job.crash(1)
    job.recovered()
    return replace(job.record, t_total_s=1.0)


@pytest.fixture
def rollback(recovery: Recovery) -> Recovery:
    return replace(recovery, decision=Decision.ROLLBACK, t_total_s=8.0)


def checkpoint(step: int, time_s: float, **values: object) -> CheckpointRecord:
    record = CheckpointRecord(
        step=step,
        generation=1,
        attempt=0,
        fate=Fate.COMMITTED,
        reason="",
        time_s=time_s,
        k0_s=1.0,
        sealed_s=time_s + 1,
        k1_s=20.0,
        committed_s=time_s + 21,
        bytes=4096,
        every=100,
        why="asked for",
    )
    return replace(record, **values)  # type: ignore[arg-type]


# ── what it says ─────────────────────────────────────────────────────────────────────────────────────────


def test_given_numbers_give_t_and_its_neighbours() -> None:
    made = plan(GIVEN, {})
    assert made.optimum_s == made.t_s == optimum_s(2.0, 10_000.0, 0.75) == 400.0
    assert made.steps == 800
    assert [(row.name, row.t_s) for row in made.intervals] == [("t*/2", 200.0), ("t*", 400.0), ("2 t*", 800.0)]
    half, best, double = (row.waste_s for row in made.intervals)
    assert best < half
    assert best < double


def test_replicas_waste_less_than_checkpoints_and_those_less_than_restarts() -> None:
    replicas, alone, restart = plan(GIVEN, {}).policies
    assert replicas.waste_s < alone.waste_s < restart.waste_s
    assert alone.t_s == restart.t_s == optimum_s(2.0, 10_000.0, 0.0)
    assert replicas.share == replicas.waste_s / (7 * 86_400)


def test_what_storage_cannot_follow_is_raised_to_k1_and_shown() -> None:
    made = plan(GIVEN | {"k1_s": 600.0}, {})
    assert (made.optimum_s, made.t_s, made.steps) == (400.0, 600.0, 1200)
    assert [row.name for row in made.intervals] == ["t*/2", "t*", "2 t*", "k1"]
    assert any("t* is less than k1" in note for note in made.notes)


def test_without_a_step_time_t_is_not_given_in_steps() -> None:
    made = plan({name: value for name, value in GIVEN.items() if name != "step_s"}, {})
    assert made.steps is None
    assert made.t_s == 400.0
    assert any("how long a step takes is not known" in note for note in made.notes)


def test_failures_that_come_too_often_for_the_formula_are_told() -> None:
    assert any("is not small against M" in note for note in plan(GIVEN | {"mtbf_s": 60.0}, {}).notes)
    assert not plan(GIVEN, {}).notes


def test_each_input_says_whether_it_was_given_seen_or_assumed(recovery: Recovery) -> None:
    inputs = plan({"k1_s": 90.0}, seen([recovery], [checkpoint(100, 0.0)], 3600.0, 2)).inputs
    assert inputs.k1_s.source == "given"
    assert inputs.k0_s.source == "checkpoints: median of 1; too few to say much"
    assert inputs.restart_s.source.startswith("assumed")
    assert {field.name for field in fields(Inputs)} >= set(GIVEN)


def test_replicas_that_heal_everything_are_not_believed() -> None:
    with pytest.raises(ConfigError, match="q is 1: replicas never heal everything"):
        plan(GIVEN | {"healed_share": 1.0}, {})


# ── what it takes from a run ─────────────────────────────────────────────────────────────────────────────


def test_costs_are_those_of_the_checkpoints() -> None:
    records = [
        checkpoint(100, 0.0),
        checkpoint(200, 51.0, k0_s=2.0, k1_s=None, fate=Fate.SEALED),
        checkpoint(300, 103.0, k0_s=3.0, k1_s=40.0),
    ]
    found = seen([], records, None, None)
    assert (found["k0_s"].value, found["k1_s"].value) == (2.0, 30.0)
    assert found["step_s"].value == 0.5
    assert "mtbf_s" not in found


def test_a_step_time_is_not_taken_over_a_recovery() -> None:
    records = [checkpoint(100, 0.0), checkpoint(200, 900.0, generation=2), checkpoint(300, 951.0, generation=2)]
    assert seen([], records, None, None)["step_s"].value == 0.5


def test_a_step_time_is_that_between_copies_in_whatever_order_they_came_to_storage() -> None:
    left_out = checkpoint(300, 150.4, fate=Fate.SKIPPED, k0_s=0.0, sealed_s=None, k1_s=None, committed_s=None)
    records = [checkpoint(200, 51.0), left_out, checkpoint(100, 0.0), checkpoint(400, 152.0)]
    assert seen([], records, None, None)["step_s"].value == 0.5


def test_a_skipped_checkpoint_says_nothing_about_the_cost() -> None:
    assert not seen([], [checkpoint(100, 0.0, fate=Fate.SKIPPED, k0_s=0.0, k1_s=None)], None, None)


def test_failures_correct_the_prior(recovery: Recovery, rollback: Recovery) -> None:
    found = seen([recovery, recovery, rollback], [], 3600.0, 4)
    assert found["mtbf_s"].value == (prior_mtbf_s(4) + 3600) / 4
    assert found["healed_share"].value == (PRIOR_HEALED + 2) / 4
    assert (found["heal_s"].value, found["fallback_s"].value) == (1.0, 8.0)
    assert found["run_s"].value == 3600.0


def test_a_run_without_failures_says_that_it_says_little() -> None:
    found = seen([], [], 3600.0, None)
    assert found["mtbf_s"].source == "failures in this run: 0; prior 24 h; too few to say much"


@pytest.mark.parametrize(
    ("change", "is_healed", "falls_back"),
    [
        ({"decision": Decision.REDO}, True, False),
        ({"decision": Decision.FINISH}, True, False),
        ({"decision": Decision.ROLLBACK}, False, True),
        ({"decision": Decision.RESTART, "target": 40}, False, True),
        ({"decision": Decision.RESTART, "target": 0}, False, False),
        ({"decision": None, "outcome": Outcome.FAILED}, False, True),
        ({"decision": Decision.REDO, "outcome": Outcome.FAILED}, False, True),
        ({"decision": None, "outcome": Outcome.INTERRUPTED}, False, False),
        ({"decision": Decision.REDO, "false_alarm": True}, False, False),
    ],
)
def test_who_made_the_failure_good(
    recovery: Recovery, change: dict[str, object], is_healed: bool, falls_back: bool
) -> None:
    changed = replace(recovery, **change)  # type: ignore[arg-type]
    assert (healed(changed), fell_back(changed)) == (is_healed, falls_back)
