"""Phases are counted when they have ended in the ordinary way, each visit once; cut off ones are not."""

from __future__ import annotations

import pytest

from everstep.observe.notes import Note
from everstep.observe.phases import JobPhases, PhaseTimes
from everstep.types import Mark, WorkerId

W = WorkerId(3)
IDLE, FORWARD, BACKWARD, READY, COMMITTED = Mark.IDLE, Mark.FORWARD, Mark.BACKWARD, Mark.READY, Mark.COMMITTED


def notes(*marks: tuple[Mark, float, int], attempt: int = 0) -> list[Note]:
    return [Note(int(at_s * 1e9), step, 1, attempt, mark) for mark, at_s, step in marks]


def step(index: int, at_s: float) -> list[Note]:
    """Forward 0.3 s, Backward 0.2 s, barrier 0.1 s, optimizer 0.05 s."""
    return notes(
        (FORWARD, at_s, index),
        (BACKWARD, at_s + 0.3, index),
        (READY, at_s + 0.5, index),
        (COMMITTED, at_s + 0.6, index),
        (IDLE, at_s + 0.65, index + 1),
    )


def sums(times: PhaseTimes) -> dict[str, tuple[int, float]]:
    return {name: (tally.count, round(tally.sum_s, 6)) for name, tally in times.tallies.items()}


def test_each_phase_of_a_step_is_counted() -> None:
    times = PhaseTimes()
    times.feed(W, step(0, 0.0) + step(1, 1.0)[:1])
    assert sums(times) == {
        "forward": (1, 0.3),
        "backward": (1, 0.2),
        "barrier": (1, 0.1),
        "optimizer": (1, 0.05),
        "idle": (1, 0.35),
        "step": (1, 1.0),
    }


def test_it_does_not_matter_how_the_notes_come_in() -> None:
    whole, pieces = PhaseTimes(), PhaseTimes()
    told = step(0, 0.0) + step(1, 1.0) + step(2, 2.0)
    whole.feed(W, told)
    for note in told:
        pieces.feed(W, [note])
    assert pieces.counts() == whole.counts()


def test_a_step_that_goes_back_to_forward_is_one_step() -> None:
    times = PhaseTimes()
    times.feed(
        W, notes((FORWARD, 0.0, 0), (BACKWARD, 0.1, 0), (FORWARD, 0.2, 0), (BACKWARD, 0.3, 0), (FORWARD, 1.0, 1))
    )
    assert (times.tallies["forward"].count, times.tallies["step"].count) == (2, 1)


def test_what_a_failure_cuts_off_is_not_counted() -> None:
    times = PhaseTimes()
    stop = notes((FORWARD, 0.0, 7), (BACKWARD, 0.1, 7), (Mark.STOP, 5.0, 7), (Mark.RESUME, 6.0, 7))
    times.feed(W, stop + notes((FORWARD, 6.1, 7), (BACKWARD, 6.2, 7), (FORWARD, 7.0, 8), attempt=1))
    assert times.tallies["backward"].sum_s == pytest.approx(0.8)
    assert times.tallies["step"].sum_s == pytest.approx(0.9)


def test_nothing_is_guessed_where_notes_were_lost() -> None:
    times = PhaseTimes()
    times.feed(W, notes((FORWARD, 0.0, 0), (Mark.END, 0.1, 0), (BACKWARD, 60.0, 9), (FORWARD, 60.5, 10)))
    assert sums(times) == {"backward": (1, 0.5)}


def test_workers_do_not_mix_and_one_that_is_gone_is_forgotten() -> None:
    times = PhaseTimes()
    times.feed(W, step(0, 0.0)[:1])
    times.feed(WorkerId(4), step(0, 9.0)[1:2])
    times.forget(W)
    times.feed(W, step(0, 20.0)[1:2])
    assert times.tallies == {}


def test_the_newest_sums_of_each_agent_are_those_of_the_job() -> None:
    times, phases = PhaseTimes(), JobPhases()
    times.feed(W, step(0, 0.0))
    for _ in range(2):
        phases.take("n0", 1, times.counts())
    phases.take("n1", 1, times.counts())
    phases.take("n1", 2, times.counts())
    assert phases.tallies()["forward"].count == 3
    assert phases.tallies()["forward"].sum_s == pytest.approx(0.9)
