"""What is kept of a worker's notes: all around failures, so many steps before and after, one in so many otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from everstep.agent.tape import AFTER, BEFORE, DENSER, SLOW_NS, Kept, Tape
from everstep.observe.notes import Note
from everstep.types import Mark

MS = 1_000_000
PHASES = (Mark.FORWARD, Mark.BACKWARD, Mark.READY, Mark.COMMITTED)


class Worker:
    """Its clock goes on by a millisecond with each note."""

    def __init__(self, stride: int = 1) -> None:
        self.tape = Tape()
        self.stride = stride
        self.now = 0
        self.pinned: list[Note] = []
        self.samples: list[Note] = []
        self.feed(Mark.SPAWNED, Mark.BUILDING, step=0)

    def feed(self, *marks: int, step: int, attempt: int = 0) -> None:
        notes = []
        for mark in marks:
            self.now += MS
            notes.append(Note(self.now, step, 1, attempt, mark))
        self.keep(self.tape.feed(notes, self.now, self.stride))

    def keep(self, kept: Kept) -> None:
        self.pinned += kept.pinned
        self.samples += kept.samples

    def steps(self, steps: Iterable[int]) -> None:
        for step in steps:
            self.feed(*PHASES, step=step)
            self.feed(Mark.IDLE, step=step + 1)


def whole(notes: Sequence[Note]) -> list[int]:
    """The steps that have all their phases and an end."""
    found = []
    for index, note in enumerate(notes):
        marks = [following.mark for following in notes[index : index + 6]]
        if marks == [*PHASES, Mark.IDLE, Mark.END]:
            found.append(note.step)
    return found


def test_the_start_and_the_first_steps_are_kept() -> None:
    worker = Worker(stride=1000)
    worker.steps(range(20))
    assert [note.mark for note in worker.pinned[:3]] == [Mark.SPAWNED, Mark.BUILDING, Mark.END]
    assert whole(worker.pinned) == list(range(AFTER))
    assert worker.samples == []


@pytest.mark.parametrize("stride", [1, 4])
def test_between_failures_one_step_in_so_many_is_a_sample(stride: int) -> None:
    worker = Worker(stride)
    worker.steps(range(100))
    assert whole(worker.samples) == [step for step in range(AFTER, 99) if step % stride == 0]


def test_what_comes_before_a_stop_is_kept_and_all_until_the_steps_after_the_recovery() -> None:
    worker = Worker(stride=1000)
    worker.steps(range(101, 150))
    before = len(worker.pinned)
    worker.feed(Mark.FORWARD, Mark.STOP, Mark.CLEAN, Mark.IDLE, Mark.RESET, Mark.RESUME, step=150)
    worker.feed(*PHASES, step=150, attempt=1)
    worker.feed(Mark.IDLE, step=151)
    worker.steps(range(151, 200))
    kept = worker.pinned[before:]
    assert whole(kept) == [*range(150 - BEFORE, 150), *range(150, 150 + AFTER)]
    recovery = [note.mark for note in kept if note.step == 150 and note.attempt == 0]
    assert recovery[1:] == [Mark.END, Mark.FORWARD, Mark.STOP, Mark.CLEAN, Mark.IDLE, Mark.RESET, Mark.RESUME]


def test_in_a_recovery_each_note_is_written_at_once() -> None:
    worker = Worker(stride=1000)
    worker.steps(range(101, 150))
    worker.feed(Mark.FORWARD, step=150)
    assert worker.pinned[-1].step < 150
    for mark in (Mark.STOP, Mark.CLEAN, Mark.IDLE, Mark.RESET):
        worker.feed(mark, step=150)
        assert worker.pinned[-1].mark == mark


def test_the_last_steps_of_a_worker_are_kept_with_the_one_it_died_in() -> None:
    worker = Worker(stride=1000)
    worker.steps(range(101, 150))
    worker.feed(Mark.FORWARD, Mark.BACKWARD, step=150)
    before = len(worker.pinned)
    worker.keep(worker.tape.end())
    kept = worker.pinned[before:]
    assert whole(kept) == list(range(150 - BEFORE, 150))
    assert [(note.step, note.mark) for note in kept[-2:]] == [(150, Mark.FORWARD), (150, Mark.BACKWARD)]


def test_samples_that_turn_out_to_be_before_a_failure_are_written_again_to_be_kept() -> None:
    worker = Worker(stride=1)
    worker.steps(range(101, 150))
    assert whole(worker.samples)[-1] == 148
    worker.feed(Mark.STOP, step=150)
    assert whole(worker.pinned)[-BEFORE:] == list(range(149 - BEFORE, 149))


def test_a_step_that_takes_long_is_written_while_it_runs() -> None:
    worker = Worker(stride=1000)
    worker.steps(range(101, 110))
    worker.feed(Mark.FORWARD, Mark.BACKWARD, step=110)
    assert worker.samples == []
    worker.now += SLOW_NS
    worker.keep(worker.tape.feed([], worker.now, 1000))
    assert [note.mark for note in worker.samples] == [Mark.FORWARD, Mark.BACKWARD]


def test_steps_with_a_checkpoint_are_sampled_more_often() -> None:
    worker = Worker(stride=2 * DENSER)
    worker.steps(range(1, 40))
    for step in (40, 41):
        worker.feed(*PHASES, step=step)
        worker.feed(Mark.IDLE, Mark.CHECKPOINT, Mark.IDLE, step=step + 1)
    worker.steps([42])
    assert [note.step for note in worker.samples if note.mark == Mark.CHECKPOINT] == [42]


def test_phases_that_come_again_within_a_step_do_not_end_it() -> None:
    worker = Worker(stride=2)
    worker.steps(range(101, 110))
    worker.feed(Mark.FORWARD, Mark.BACKWARD, Mark.FORWARD, Mark.BACKWARD, Mark.READY, Mark.COMMITTED, step=110)
    worker.feed(Mark.IDLE, step=111)
    worker.steps([111])
    assert [note.mark for note in worker.samples if note.step == 110 and note.mark == Mark.FORWARD] == [
        Mark.FORWARD
    ] * 2
