"""The training loop, and what the board shows of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from tests.worker.conftest import StandIn

from everstep.errors import ConfigError, RuleError
from everstep.types import Rank, Step, WorkerPhase
from everstep.wire.messages import AskStack, Stack
from everstep.worker.environment import Place
from everstep.worker.job import Job
from everstep.worker.step import Step as UserStep
from everstep.worker.track import NoBoard, Track

IDLE, FORWARD, BACKWARD, READY, COMMITTED, ENDED = list(WorkerPhase)[4:]


@dataclass
class Notebook(NoBoard):
    """A board that keeps everything."""

    stamps: list[tuple[WorkerPhase, int | None, int | None]] = field(default_factory=list)
    marks: list[object] = field(default_factory=list)

    def stamp(
        self,
        phase: WorkerPhase,
        *,
        step: int | None = None,
        version: int | None = None,
        generation: int | None = None,
        attempt: int | None = None,
    ) -> None:
        self.stamps.append((phase, step, version))

    def waiting(self, inside: bool) -> None:
        self.marks.append(inside)

    def long(self, limit_s: float) -> None:
        self.marks.append(limit_s)


@pytest.fixture
def notebook() -> Notebook:
    return Notebook()


@pytest.fixture
def job(notebook: Notebook) -> Job:
    return Job(Place(Rank(0), 1, 0, "cpu"), Track(notebook), None)


def test_a_step_is_stamped_phase_by_phase(job: Job, notebook: Notebook) -> None:
    for step in job.steps(2):
        with step:
            for phase in ("backward", "barrier", "optimizer"):
                step.phase(phase)
    rounds = [[(phase, index, index) for phase in (IDLE, FORWARD, BACKWARD, READY, COMMITTED)] for index in range(2)]
    assert notebook.stamps == [*rounds[0], *rounds[1], (IDLE, 2, 2), (ENDED, 2, 2)]


def test_a_step_says_where_it_is(job: Job) -> None:
    seen = []
    for step in job.steps(2):
        seen.append((step.index, step.attempt, step.epoch, step.done))
        with step as same:
            assert same is step
            assert not step.done
        assert step.done
    assert seen == [(0, 0, 0, False), (1, 0, 0, False)]


def test_the_loop_goes_on_where_the_job_is(job: Job) -> None:
    done = []
    for count in (2, 2, 3):
        for step in job.steps(count):
            with step:
                done.append(step.index)
    assert done == [0, 1, 2]


def test_an_exception_leaves_the_board_where_it_was_raised(job: Job, notebook: Notebook) -> None:
    def fail(step: UserStep) -> None:
        with step:
            step.phase("backward")
            raise ZeroDivisionError

    step = next(job.steps(1))
    with pytest.raises(ZeroDivisionError):
        fail(step)
    assert notebook.stamps[-1] == (BACKWARD, 0, 0)
    assert not step.done


@pytest.mark.parametrize("count", [-1, 1.5, "3", None])
def test_a_number_of_steps_that_cannot_be_is_refused(job: Job, count: object) -> None:
    with pytest.raises(ConfigError, match="whole number"):
        job.steps(count)  # type: ignore[arg-type]


def test_a_turn_without_its_step_is_refused(job: Job) -> None:
    with pytest.raises(RuleError, match="<step 0> was left out"):
        for _ in job.steps(1):
            pass


def test_a_step_runs_once(job: Job) -> None:
    for step in job.steps(1):
        with step, pytest.raises(RuleError, match="cannot be begun"), step:
            pass
        with pytest.raises(RuleError, match="<step 0, done> cannot be begun: the next one is step 1"), step:
            pass


def test_what_belongs_inside_a_step_is_refused_outside(job: Job) -> None:
    for step in job.steps(1):
        with pytest.raises(RuleError, match=r"step.phase\(\) belongs inside"):
            step.phase("backward")
        with pytest.raises(RuleError, match=r"step.long\(\) belongs inside"):
            step.long("evaluate", limit_s=1)
        with step:
            pass


def test_a_word_that_is_no_phase_is_refused(job: Job) -> None:
    for step in job.steps(1):
        with step, pytest.raises(ConfigError, match=r"'idle'.*one of forward, backward, barrier, optimizer"):
            step.phase("idle")


def test_a_long_phase_is_declared_and_taken_back(job: Job, notebook: Notebook) -> None:
    for step in job.steps(1):
        with step, pytest.raises(ZeroDivisionError), step.long("evaluate", limit_s=600):
            raise ZeroDivisionError
    assert notebook.marks == [600, 0]


@pytest.mark.parametrize("limit_s", [0, -1, float("nan"), float("inf")])
def test_a_limit_that_cannot_be_is_refused(job: Job, limit_s: float) -> None:
    for step in job.steps(1):
        with step, pytest.raises(ConfigError, match="limit_s"):
            step.long("evaluate", limit_s=limit_s)


def test_waiting_for_others_is_told(job: Job, notebook: Notebook) -> None:
    with pytest.raises(ZeroDivisionError), job.waiting():
        raise ZeroDivisionError
    assert notebook.marks == [True, False]


def test_the_board_of_a_dead_worker_tells_all_of_it(agent: StandIn) -> None:
    worker = agent.run("""
        import os, everstep
        job = everstep.init()
        for step in job.steps(3):
            with step:
                if step.index == 2:
                    step.phase("barrier")
                    with step.long("evaluate", limit_s=600), job.waiting():
                        os.abort()
        """)
    assert worker.end()[0] == -6
    board = worker.board
    assert (board.phase, board.step, board.version) == (READY, Step(2), 2)
    assert (board.limit_s, board.waiting, board.pid) == (600, True, worker.process.pid)


def test_a_declared_phase_stands_above_the_stacks(agent: StandIn) -> None:
    worker = agent.run("""
        import threading, everstep
        def evaluate():
            print("in", flush=True)
            threading.Event().wait()
        for step in everstep.init().steps(1):
            with step, step.long("evaluate", limit_s=600):
                evaluate()
        """)
    assert worker.process.stdout is not None
    worker.process.stdout.readline()
    agent.send(worker, AskStack())
    text = worker.hears(Stack).text
    assert text.startswith("declared: evaluate (for at most 600 s)\n")
    assert "Thread MainThread:" in text
    assert "Thread everstep-control:" in text
    assert "in evaluate" in text
