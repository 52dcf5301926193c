"""When checkpoints are taken, by the clock that the test brings."""

from __future__ import annotations

import pytest

from everstep.controller.cadence import AGAIN_S, WARM_STEPS, Cadence, Every, Pace
from everstep.errors import ConfigError
from everstep.types import Step
from everstep.wire.messages import Schedule

STEP_S = 0.1


def train(
    cadence: Cadence, steps: int, start_s: float = 0.0, first: int = 0, *, persisting: bool = False
) -> list[Schedule]:
    """Look once a step; what was to be sent."""
    looks = [
        cadence.tick(start_s + index * STEP_S, first + index, training=True, persisting=persisting)
        for index in range(steps + 1)
    ]
    return [schedule for schedule in looks if schedule is not None]


@pytest.mark.parametrize(
    ("text", "every"),
    [
        ("auto", Every(auto=True)),
        ("off", Every()),
        ("50", Every(steps=50)),
        ("30s", Every(seconds=30.0)),
        ("2m", Every(seconds=120.0)),
    ],
)
def test_what_can_be_asked_for(text: str, every: Every) -> None:
    assert Every.read(text) == every


@pytest.mark.parametrize("text", ["", "0", "-3", "often", "0s", "1.5", "99999999999999999999"])
def test_what_cannot_be_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=repr(text)):
        Every.read(text)


def test_steps_stand_from_the_beginning() -> None:
    cadence = Cadence(Every.read("50"), ranks=4)
    assert cadence.standing == Schedule(50, Step(0))
    assert train(cadence, 200) == []
    assert cadence.committed(Step(50), 0.1, 5.0) is None
    assert cadence.why == "asked for: every 50 steps"


def test_seconds_are_counted_while_the_job_trains() -> None:
    cadence = Cadence(Every.read("2s"), ranks=4)
    assert train(cadence, 10) == []
    assert cadence.tick(1.5, 10, training=False, persisting=False) is None
    assert cadence.tick(2.5, 10, training=True, persisting=False) == Schedule(0, Step(0), soon=True)
    assert cadence.tick(2.6, 11, training=True, persisting=False) is None


def test_auto_measures_the_first_one_early_and_then_chooses_t() -> None:
    cadence = Cadence(Every.read("auto"), ranks=4)
    assert train(cadence, WARM_STEPS) == [Schedule(0, Step(0), soon=True)]
    chosen = cadence.committed(Step(4), 0.05, 0.3)
    assert chosen == cadence.standing
    assert chosen is not None
    assert (chosen.every, chosen.base) == (cadence.steps, Step(4))
    assert chosen.every > 100
    assert "k0 0.05 s, k1 0.3 s" in cadence.why


def test_auto_tries_again_where_nothing_could_be_measured() -> None:
    cadence = Cadence(Every.read("auto"), ranks=4)
    assert len(train(cadence, WARM_STEPS)) == 1
    assert cadence.tick(AGAIN_S / 2, 100, training=True, persisting=False) is None
    assert cadence.tick(WARM_STEPS * STEP_S + AGAIN_S, 200, training=True, persisting=False) is not None


def test_failures_that_fall_back_make_t_shorter() -> None:
    calm, stormy = Cadence(Every.read("auto"), ranks=4), Cadence(Every.read("auto"), ranks=4)
    for _ in range(20):
        stormy.recovered(1, healed=False)
    for cadence in (calm, stormy):
        train(cadence, 20)
        cadence.committed(Step(20), 0.05, 0.3)
    assert stormy.steps < calm.steps
    healed = Cadence(Every.read("auto"), ranks=4)
    for _ in range(20):
        healed.recovered(1, healed=True)
    train(healed, 20)
    healed.committed(Step(20), 0.05, 0.3)
    assert stormy.steps < healed.steps


def test_a_newcomer_is_told_what_stands_and_not_what_was_asked_once() -> None:
    cadence = Cadence(Every.read("50"), ranks=4)
    assert cadence.ask(1.0).soon
    assert not cadence.standing.soon


def test_the_pace_tells_steps_beside_a_persister_from_others() -> None:
    pace = Pace()
    for second in range(11):
        pace.look(second, 10 * second, training=True, persisting=False)
    for second in range(11, 22):
        pace.look(second, 110 + 8 * (second - 11), training=True, persisting=True)
    assert pace.step_s() == pytest.approx(0.1)
    assert pace.slowdown == pytest.approx(1.25)


def test_what_is_done_again_after_a_rollback_counts_for_no_pace() -> None:
    pace = Pace()
    pace.look(0.0, 100, training=True, persisting=False)
    pace.look(1.0, 110, training=True, persisting=False)
    pace.look(2.0, 50, training=True, persisting=False)
    pace.look(3.0, 60, training=False, persisting=False)
    pace.look(4.0, 60, training=True, persisting=False)
    assert pace.step_s() == pytest.approx(0.1)
