"""What the main thread does is noted for the flight recorder, each phase with its step and generation."""

from __future__ import annotations

import pytest

from everstep.types import Generation, Mark, Step, WorkerPhase
from everstep.worker.phases import RecoveryPhase
from everstep.worker.track import NoBoard, NoRing, Track


class Notebook(NoRing):
    def __init__(self) -> None:
        self.notes: list[tuple[str, int, int, int]] = []

    def note(self, mark: int, step: int, attempt: int, generation: int) -> None:
        self.notes.append((Mark(mark).name, step, attempt, generation))


@pytest.fixture
def ring() -> Notebook:
    return Notebook()


@pytest.fixture
def track(ring: Notebook) -> Track:
    return Track(NoBoard(), ring)


def test_phases_and_marks_have_one_numbering() -> None:
    assert [(phase.name, phase.value) for phase in WorkerPhase] == [
        (mark.name, mark.value) for mark in list(Mark)[: len(WorkerPhase)]
    ]


def test_phases_are_noted_with_attempt_and_generation(track: Track, ring: Notebook) -> None:
    track.stand(WorkerPhase.BUILDING, Generation(3))
    track.enter(WorkerPhase.FORWARD, Step(7), 2)
    assert ring.notes == [("BUILDING", 0, 0, 3), ("FORWARD", 7, 2, 3)]


def test_every_phase_of_a_recovery_is_noted(track: Track, ring: Notebook) -> None:
    """At the end of the script a newcomer is hollow: that is what it is until it is filled."""
    for phase in RecoveryPhase:
        track.recovering(phase, Step(4))
    assert [note[0] for note in ring.notes] == ["STOP", "CLEAN", "HOLLOW", "RESET", "RESTORE", "RESUME"]


def test_after_a_checkpoint_the_phase_is_the_one_before(track: Track, ring: Notebook) -> None:
    track.enter(WorkerPhase.IDLE, Step(8))
    with pytest.raises(RuntimeError), track.checkpoint():
        raise RuntimeError("both slots are busy")
    assert ring.notes == [("IDLE", 8, 0, 0), ("CHECKPOINT", 8, 0, 0), ("IDLE", 8, 0, 0)]
