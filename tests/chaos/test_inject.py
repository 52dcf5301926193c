"""Faults strike real processes, exactly where they should: the board and the output say where that was."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest
from tests.worker.conftest import StandIn, Worker, until

from everstep.chaos.inject import Injector
from everstep.chaos.spec import parse
from everstep.types import NodeId, Rank, Step, WorkerPhase
from everstep.wire.messages import AskStack, Inject, Raised, Stack

IDLE, FORWARD, BACKWARD, READY, COMMITTED = list(WorkerPhase)[4:9]
LOOP = """
    import everstep
    job = everstep.init()
    for step in job.steps(4):
        with step:
            print(f"{step.index}f", end=" ", flush=True)
            for phase in ("backward", "barrier", "optimizer"):
                step.phase(phase)
                print(f"{step.index}{phase[:2]}", end=" ", flush=True)
    print("end")
    """
ENDLESS = """
    import everstep
    job = everstep.init()
    print("in", flush=True)
    for step in job.steps(10**9):
        with step:
            step.phase("backward")
    """
DEATHS = {
    "kill": -signal.SIGKILL,
    "segv": -signal.SIGSEGV,
    "exit": 3,
    "raise": 1,
}


def struck(worker: Worker) -> tuple[WorkerPhase, int, str]:
    """Where the board says that it died, and what it had printed last."""
    stdout = worker.end()[1]
    return worker.board.phase, worker.board.step, stdout.split()[-1]


def record(agent: StandIn) -> list[str]:
    return sorted(path.name for path in (agent.folder / "chaos").iterdir())


def stands_still(worker: Worker, looks: int) -> bool:
    """Whether the heart beats in none of so many looks, which `until` spaces by milliseconds."""
    beats = worker.board.heartbeat
    seen = iter(range(looks))

    def beats_again_or_seen() -> bool:
        return worker.board.heartbeat != beats or next(seen, None) is None

    until(beats_again_or_seen)
    return worker.board.heartbeat == beats


@pytest.mark.parametrize("action", DEATHS)
@pytest.mark.parametrize(
    ("when", "phase", "last"), [("before", FORWARD, "2f"), ("mid", BACKWARD, "2f"), ("after", BACKWARD, "2ba")]
)
def test_a_death_is_where_it_was_ordered(agent: StandIn, action: str, when: str, phase: WorkerPhase, last: str) -> None:
    worker = agent.run(LOOP, chaos=(f"{action} rank=0 step=2 phase=backward when={when}",))
    assert struck(worker) == (phase, 2, last)
    assert worker.process.returncode == DEATHS[action]


@pytest.mark.parametrize(
    ("where", "phase", "step", "last"),
    [
        ("phase=idle when=mid", IDLE, 2, "1op"),
        ("phase=idle when=before", COMMITTED, 1, "1op"),
        ("phase=forward when=before", IDLE, 2, "1op"),
        ("phase=forward when=mid", FORWARD, 2, "1op"),
        ("phase=barrier when=mid", READY, 2, "2ba"),
        ("phase=optimizer when=mid", COMMITTED, 2, "2ba"),
        ("phase=optimizer when=after", COMMITTED, 2, "2op"),
        ("", FORWARD, 2, "1op"),
    ],
)
def test_every_phase_can_be_struck(agent: StandIn, where: str, phase: WorkerPhase, step: int, last: str) -> None:
    assert struck(agent.run(LOOP, chaos=(f"kill step=2 {where}",))) == (phase, step, last)


def test_a_step_behind_the_last_is_never_struck(agent: StandIn) -> None:
    assert agent.run(LOOP, chaos=("kill step=4",)).end()[0] == 0


def test_the_last_step_can_be_struck_after_it_counts(agent: StandIn) -> None:
    assert struck(agent.run(LOOP, chaos=("kill step=4 phase=idle",))) == (IDLE, 4, "3op")


def test_what_is_raised_is_an_error_of_the_script(agent: StandIn) -> None:
    worker = agent.run(LOOP, chaos=("raise step=1 phase=barrier",))
    assert worker.end()[2].endswith("InjectedFault: injected by chaos: raise step=1 phase=barrier\n")
    assert worker.hears(Raised).place == "train.py:8 InjectedFault"


# ── who does not die ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("when", ["before", "mid", "after"])
def test_a_stopped_process_stands_in_its_phase(agent: StandIn, when: str) -> None:
    worker = agent.run(LOOP, chaos=(f"stop step=2 phase=backward when={when}",))
    until(lambda: psutil.Process(worker.process.pid).status() == psutil.STATUS_STOPPED)
    assert worker.board.phase is (FORWARD if when == "before" else BACKWARD)
    worker.process.send_signal(signal.SIGCONT)
    assert worker.end()[1].endswith("end\n")


@pytest.mark.parametrize(("when", "phase"), [("before", FORWARD), ("mid", BACKWARD), ("after", BACKWARD)])
def test_a_hang_stops_the_main_thread_only(agent: StandIn, when: str, phase: WorkerPhase) -> None:
    worker = agent.run(LOOP, chaos=(f"hang step=2 phase=backward when={when}",))
    agent.sees(worker, "in _hang")
    beats, moves = worker.board.heartbeat, worker.board.moves
    until(lambda: worker.board.heartbeat >= beats + 3)
    assert (worker.board.phase, worker.board.step, worker.board.moves) == (phase, 2, moves)


@pytest.mark.parametrize(("when", "phase"), [("before", FORWARD), ("mid", BACKWARD), ("after", BACKWARD)])
def test_a_held_gil_stops_the_heart(agent: StandIn, when: str, phase: WorkerPhase) -> None:
    worker = agent.run(LOOP, chaos=(f"gil step=2 phase=backward when={when}",))
    until(lambda: stands_still(worker, looks=150))
    assert (worker.board.phase, worker.board.step) == (phase, 2)
    assert psutil.Process(worker.process.pid).status() == psutil.STATUS_SLEEPING


@pytest.mark.parametrize("fault", ["hang for=0.01", "gil for=0.01", "slow for=0.01", "slow delay=0.01"])
def test_what_ends_by_itself_lets_the_script_go_on(agent: StandIn, fault: str) -> None:
    worker = agent.run(LOOP, chaos=(f"{fault} step=2 phase=backward times=2",))
    assert worker.end()[1].endswith("end\n")
    assert record(agent) == ["0-1"]


def test_slowness_comes_as_often_as_ordered(agent: StandIn) -> None:
    worker = agent.run(LOOP, chaos=("slow for=0.001 times=3",))
    assert worker.end()[1].endswith("end\n")
    assert record(agent) == ["0-1", "0-2", "0-3"]


# ── how often, and whom ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("times", [1, 2])
def test_a_replacement_does_not_die_of_what_was_done(agent: StandIn, times: int) -> None:
    chaos = ("partition delay=1", f"kill rank=0 step=1 phase=optimizer times={times}")
    codes = [agent.run(LOOP, chaos=chaos).end()[0] for _ in range(times + 1)]
    assert codes == [-signal.SIGKILL] * times + [0]
    assert record(agent) == [f"1-{count}" for count in range(1, times + 1)]  # the fault is number 1 of the job


def test_another_rank_or_node_is_left_alone(agent: StandIn) -> None:
    worker = agent.run(LOOP, rank=1, chaos=("kill rank=0 step=1", "kill node=there step=1"))
    assert worker.end()[0] == 0
    assert not (agent.folder / "chaos").exists()


def test_this_node_is_struck_by_its_name(agent: StandIn) -> None:
    assert agent.run(LOOP, chaos=("kill node=here step=1",)).end()[0] == -signal.SIGKILL


def test_without_a_fault_for_it_a_worker_has_no_injector(tmp_path: Path) -> None:
    faults = [parse("kill rank=1"), parse("agent-kill")]
    assert Injector.of_job(faults, Rank(0), NodeId(""), tmp_path) is None


def test_without_a_run_directory_a_process_counts_alone() -> None:
    injector = Injector.of_job([parse("slow for=0.001 step=0 times=1")], Rank(0), NodeId(""), None)
    assert injector is not None
    for _ in range(2):
        injector.before(WorkerPhase.FORWARD, Step(0))
        injector.inside(WorkerPhase.FORWARD, Step(0))
    assert [armed.strikes.claim() for armed in injector._armed] == [False], "its only strike was used"


# ── by time, and on a running job ────────────────────────────────────────────────────────────────────────


def test_a_fault_without_a_place_strikes_a_script_that_never_trains(agent: StandIn) -> None:
    worker = agent.run(
        """
        import threading, everstep
        everstep.init()
        threading.Event().wait()
        """,
        chaos=("kill delay=0.01",),
    )
    assert worker.end()[0] == -signal.SIGKILL


@pytest.mark.parametrize(
    ("spec", "code"), [("kill", -signal.SIGKILL), ("raise", 1), ("exit phase=backward when=after delay=0.01", 3)]
)
def test_a_running_worker_can_be_struck(agent: StandIn, spec: str, code: int) -> None:
    worker = agent.run(ENDLESS)
    assert worker.process.stdout is not None
    worker.process.stdout.readline()
    agent.send(worker, Inject(f"{spec} rank=0"))
    assert worker.end()[0] == code


def test_what_is_no_fault_or_for_another_changes_nothing(agent: StandIn) -> None:
    worker = agent.start(ENDLESS)
    agent.send(worker, Inject("kill"))  # a standby has no rank
    agent.assign(worker)
    assert worker.process.stdout is not None
    worker.process.stdout.readline()
    agent.send(worker, Inject("explode"))
    agent.send(worker, Inject("kill rank=1"))
    agent.send(worker, AskStack())
    worker.hears(Stack)
    beats = worker.board.heartbeat
    until(lambda: worker.board.heartbeat >= beats + 2)
    worker.process.kill()
    assert worker.end()[2].startswith("everstep: chaos: action='explode' cannot be")
