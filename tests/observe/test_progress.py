"""Which time counts: steps that the job goes on with, from the end of one to the end of the next, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.test_machine import checkpoint
from tests.observe.conftest import START_S, RecordedJob

from everstep.core.effects import Effect
from everstep.core.events import Committed, Event, Exited, JobPhase, Persisted, Protected, Sealed
from everstep.core.watch import Sighting
from everstep.observe.progress import Progress
from everstep.types import Generation, NodeId, Rank, WorkerId, WorkerPhase

FORWARD, COMMITTED = WorkerPhase.FORWARD, WorkerPhase.COMMITTED


class WatchedJob(RecordedJob):
    """Its progress is kept as the controller does it. `step` lets time pass and all ranks come that far."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.progress = Progress(START_S)
        super().__init__(*args, **options)

    def tell(self, *events: Event) -> list[Effect]:
        effects: list[Effect] = []
        for event in events:
            effects = super().tell(event)
            self.progress.take(event, self.machine, self.now)
        return effects

    def step(self, version: int, seconds: float) -> None:
        self.now += seconds
        self.at(FORWARD, version)
        self.see(version, *range(self.config.ranks))

    def see(self, version: int, *ranks: int, generation: Generation | None = None) -> None:
        self.progress.see([self.sighting(rank, version, generation) for rank in ranks], self.now)

    def sighting(self, rank: int, version: int, generation: Generation | None = None) -> Sighting:
        return Sighting(
            worker=self.machine.members.seats.get(Rank(rank), WorkerId(99)),
            rank=Rank(rank),
            phase=FORWARD,
            version=version,
            generation=self.generation if generation is None else generation,
            pulse=1,
            moves=version,
            moved_ago_s=0.0,
            cpu_s=0.0,
        )

    def begun(self) -> WatchedJob:
        """Step 0 has committed in no time, after 5 seconds of starting."""
        self.now += 5.0
        self.training(0)
        return self


@pytest.fixture
def job() -> WatchedJob:
    return WatchedJob(ranks=2, standbys=0).begun()


def test_the_start_does_not_count(job: WatchedJob) -> None:
    assert job.progress.elapsed_s(job.now) == pytest.approx(5.0)
    assert (job.progress.productive_s, job.progress.goodput(job.now)) == (0.0, 0.0)


def test_a_rank_that_waits_for_the_others_at_the_start_has_not_begun() -> None:
    job = WatchedJob(ranks=2, standbys=0)
    while not job.machine.members.coordinates:
        job.tell(job.answers.popleft())
    job.see(0, 0)
    assert not job.progress.begun
    job.now += 3.0
    job.training(0)
    assert job.progress.training_s(job.now) == 0.0


def test_steps_count_from_end_to_end(job: WatchedJob) -> None:
    job.step(1, 2.0)
    job.step(3, 3.0)
    job.now += 4.0  # in step 3: nobody knows yet whether it will count
    assert job.progress.productive_s == pytest.approx(5.0)
    assert job.progress.completed == 3
    assert job.progress.goodput(job.now) == pytest.approx(5.0 / 9.0)


def sealed(rank: int, step: int, k0_s: float) -> Sealed:
    return Sealed(Rank(rank), NodeId("a"), checkpoint(step), k0_s=k0_s)


def test_a_copy_to_memory_does_not_count(job: WatchedJob) -> None:
    job.tell(sealed(0, 1, 0.5), sealed(1, 1, 0.75), sealed(0, 1, 0.5))
    job.step(2, 4.0)
    job.tell(sealed(0, 1, 0.5))  # an agent that is connected anew says it again
    job.step(3, 2.0)
    job.tell(sealed(0, 3, 1.0))  # nobody has completed a step since
    assert job.progress.productive_s == pytest.approx(4.0 - 0.75 + 2.0)


def test_a_copy_in_the_step_that_a_failure_cuts_off_is_lost_once(job: WatchedJob) -> None:
    job.tell(sealed(0, 1, 0.5))
    job.crash(1)
    job.recovered()
    job.step(2, 2.0)
    assert job.progress.productive_s == pytest.approx(2.0)


def test_the_rank_that_is_ahead_tells(job: WatchedJob) -> None:
    job.now += 2.0
    job.see(1, 0)
    job.now += 1.0
    job.see(1, 1)
    assert job.progress.productive_s == pytest.approx(2.0)


def test_a_step_that_a_failure_cuts_off_does_not_count(job: WatchedJob) -> None:
    job.step(2, 4.0)
    job.now += 3.0
    job.crash(1)
    job.pace[Committed] = 1.0
    job.recovered()
    job.step(3, 2.0)  # step 2 again, all of it after the recovery but its first second, which commits it
    assert job.progress.productive_s == pytest.approx(4.0 + 3.0)
    assert job.progress.completed == 3


def test_a_step_that_is_finished_in_a_recovery_counts_up_to_the_failure(job: WatchedJob) -> None:
    job.step(2, 4.0)
    job.at(COMMITTED, 2)
    job.now += 3.0
    job.crash(1)
    job.now += 1.0  # the recovery takes its time
    job.see(3, 0, generation=Generation(1))
    job.recovered()
    assert job.machine.target == 3
    assert job.progress.productive_s == pytest.approx(7.0)


def test_so_it_does_when_nobody_saw_it(job: WatchedJob) -> None:
    """As when the controller is started again and knows the journal alone."""
    job.at(COMMITTED, 2)
    job.now += 7.0
    job.crash(1)
    job.recovered()
    assert job.progress.productive_s == pytest.approx(7.0)
    assert job.progress.completed == 3


def test_time_in_which_the_failure_was_not_known_does_not_count(job: WatchedJob) -> None:
    job.at(COMMITTED, 0)
    job.now += 7.0
    job.tell(Exited(job.worker(1), -9, quiet_s=2.0))
    job.recovered()
    assert job.progress.productive_s == pytest.approx(5.0)


def test_what_a_rollback_takes_away_counts_once(job: WatchedJob) -> None:
    job.tell(Persisted(checkpoint(4)))
    job.step(10, 10.0)
    job.crash(0, 1)
    job.recovered()
    assert job.machine.target == 4
    job.step(10, 6.0)
    assert job.progress.productive_s == pytest.approx(10.0)
    job.step(12, 2.0)
    assert job.progress.productive_s == pytest.approx(12.0)
    assert job.progress.completed == 12


def test_a_step_that_reaches_beyond_what_was_lost_counts_in_part(job: WatchedJob) -> None:
    job.tell(Persisted(checkpoint(4)))
    job.step(10, 10.0)
    job.crash(0, 1)
    job.recovered()
    job.step(12, 8.0)  # steps 4 … 11, and 10 and 11 are new
    assert job.progress.productive_s == pytest.approx(12.0)


def test_a_board_of_before_the_recovery_tells_nothing(job: WatchedJob) -> None:
    job.tell(Persisted(checkpoint(4)))
    job.step(10, 10.0)
    job.crash(0, 1)
    job.recovered()
    job.see(10, 0, generation=Generation(1))
    assert job.progress.version == 4


def test_a_script_that_protects_nothing_trains_while_it_starts() -> None:
    job = WatchedJob(ranks=2, standbys=0)
    job.answers = type(job.answers)(event for event in job.answers if not isinstance(event, Protected))
    job.now += 5.0
    job.see(0, 0, 1)
    job.step(2, 4.0)
    assert job.phase is JobPhase.STARTING
    assert job.progress.productive_s == pytest.approx(4.0)
    old = job.generation
    job.crash(1)
    job.see(2, 0, generation=old)
    assert job.progress.version == 0
    job.run()
    job.see(0, 0, 1)
    job.step(2, 4.0)
    assert job.progress.productive_s == pytest.approx(4.0)
    job.step(3, 1.0)
    assert job.progress.productive_s == pytest.approx(5.0)


def test_the_speed_is_that_of_the_last_steps(job: WatchedJob) -> None:
    for version in range(1, 21):
        job.step(version, 2.0)
    assert job.progress.steps_per_s() == pytest.approx(0.5)
    for version in range(21, 41):
        job.step(version, 1.0)
    assert job.progress.steps_per_s() == pytest.approx(1.0)
    job.crash(1)
    assert job.progress.steps_per_s() == 0.0


def test_a_job_that_is_over_stands_still() -> None:
    job = WatchedJob(ranks=1, standbys=0, max_failures=0).begun()
    job.step(5, 5.0)
    job.crash(0)
    assert job.phase is JobPhase.FAILED
    assert job.progress.elapsed_s(job.now + 100.0) == pytest.approx(10.0)
    assert job.progress.goodput(job.now + 100.0) == pytest.approx(1.0)


def test_failures_are_counted_by_cause(job: WatchedJob) -> None:
    job.crash(1)
    job.recovered()
    job.crash(0)
    job.recovered()
    assert job.progress.failures == {"EXIT": 2}
