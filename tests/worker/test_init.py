"""How a process comes into the job: by its agent, by another launcher, or alone; and how it leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.worker.conftest import ENV, TOKEN, StandIn, run_script, until

import everstep
from everstep import errors
from everstep.agent.environment import SOCKET, WORKER
from everstep.core.events import Registered
from everstep.errors import ConfigError
from everstep.types import WorkerPhase
from everstep.wire.auth import TOKEN_VARIABLE
from everstep.wire.messages import AskStack, Report, Stack, WorkerHello
from everstep.worker.environment import Seat, unprotected

SHOW_JOB = """
    import everstep
    job = everstep.init()
    print(job.rank, job.world_size, job.local_rank, job.device, job.generation)
    """


def test_a_worker_says_who_it_is_and_gets_its_place(agent: StandIn) -> None:
    worker = agent.start(SHOW_JOB)
    agent.assign(worker, rank=1, generation=5)
    assert worker.end() == (0, "1 2 1 cpu 5\n", "")
    assert worker.heard[0] == WorkerHello(worker.id, worker.process.pid)
    assert (worker.board.phase, worker.board.generation) == (WorkerPhase.BUILDING, 5)


def test_a_standby_waits_in_init_with_a_beating_heart(agent: StandIn) -> None:
    worker = agent.start(SHOW_JOB)
    worker.hears(Report)
    beats = worker.board.heartbeat
    until(lambda: worker.board.heartbeat >= beats + 3)
    assert worker.board.phase is WorkerPhase.STANDBY
    agent.sees(worker, "in register")


def test_what_comes_with_the_rank_is_in_the_environment(agent: StandIn) -> None:
    worker = agent.start("""
        import os, everstep
        everstep.init()
        print(os.environ["RANK"], os.environ["MASTER_PORT"])
        """)
    agent.assign(worker, rank=1, MASTER_PORT="4711")
    assert worker.end() == (0, "1 4711\n", "")


def test_a_rank_that_comes_again_changes_nothing(agent: StandIn) -> None:
    """As after a restart of the controller."""
    worker = agent.start("""
        import os, time, everstep
        job = everstep.init()
        print("in", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.002)
        print(os.environ["STORY"], job.rank)
        """)
    agent.assign(worker, rank=0, STORY="first")
    assert worker.process.stdout is not None
    worker.process.stdout.readline()
    agent.assign(worker, rank=1, STORY="second")
    agent.send(worker, AskStack())
    worker.hears(Stack)  # so it has heard the assignment before it
    assert worker.heard.count(Report(Registered(worker.id))) == 1  # it is no standby any more, and does not say so
    (agent.folder / "go").touch()
    assert worker.end() == (0, "first 0\n", "")


def test_a_second_init_gives_the_same_job(agent: StandIn) -> None:
    worker = agent.run("""
        import everstep
        print(everstep.init() is everstep.init())
        """)
    assert worker.end() == (0, "True\n", "")


def test_what_the_script_starts_is_no_worker(agent: StandIn) -> None:
    worker = agent.run("""
        import os, subprocess, sys, everstep
        everstep.init()
        child = "import os; print([name for name in os.environ if name.startswith('EVERSTEP_')])"
        subprocess.run([sys.executable, "-c", child])
        """)
    assert worker.end() == (0, "['EVERSTEP_NODE', 'EVERSTEP_RUN_DIR']\n", "")


def test_a_worker_ends_with_its_agent(agent: StandIn) -> None:
    worker = agent.run("""
        import threading, everstep
        everstep.init()
        print("in", flush=True)
        threading.Event().wait()
        """)
    assert worker.process.stdout is not None
    worker.process.stdout.readline()
    agent.hang_up()
    code, _, stderr = worker.end()
    assert (code, stderr) == (1, f"everstep: worker {worker.id} ends: the agent is gone (end of stream)\n")


def test_a_standby_ends_with_its_agent(agent: StandIn) -> None:
    worker = agent.start(SHOW_JOB)
    worker.hears(Report)
    agent.hang_up()
    assert worker.end()[:2] == (1, "")


def test_an_agent_that_is_not_there_is_named(agent: StandIn) -> None:
    worker = agent.start(SHOW_JOB, env={SOCKET: "/nowhere"})
    assert worker.end() == (1, "", "everstep: worker 0 cannot reach its agent at /nowhere: No such file or directory\n")


def test_after_the_script_no_heartbeat_is_missed(agent: StandIn) -> None:
    """The interpreter may take its time to end; the connection says that nobody beats any more."""
    worker = agent.run("""
        import atexit, threading, everstep
        atexit.register(threading.Event().wait)
        everstep.init()
        """)
    line = until(lambda: worker.line)
    assert until(lambda: line.closed) == "end of stream"
    assert worker.process.poll() is None


def test_without_an_agent_it_runs_alone_and_says_how_to_be_protected(tmp_path: Path) -> None:
    process = run_script(
        tmp_path,
        """
        import os, sys, everstep
        job = everstep.init()
        print(job.rank, job.world_size, job.local_rank, job.device, job.generation, os.environ["MASTER_ADDR"])
        for step in job.steps(2):
            with step, step.long("evaluate", limit_s=1), job.waiting():
                step.phase("backward")
            print(step.index, step.done)
        print("torch" in sys.modules)
        """,
        ENV,
    )
    stdout, stderr = process.communicate(timeout=20)
    assert stdout == "0 1 0 cpu 0 127.0.0.1\n0 True\n1 True\nFalse\n"
    assert stderr == "everstep: no protection, a failure ends this run; with it: everstep run --nproc 1 train.py\n"


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("3", 0)])
def test_under_torchrun_it_takes_the_rank_it_is_given(tmp_path: Path, rank: str, lines: int) -> None:
    env = {"TORCHELASTIC_RUN_ID": "none", "RANK": rank, "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    stdout, stderr = run_script(tmp_path, SHOW_JOB, ENV | env).communicate(timeout=20)
    assert stdout == f"{rank} 4 1 cpu 0\n"
    assert stderr.count("\n") == stderr.count("everstep run --nproc 4 train.py") == lines


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"RANK": "two", "WORLD_SIZE": "4"}, "RANK='two': it must be a whole number"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4 with WORLD_SIZE=4"),
    ],
)
def test_a_rank_that_cannot_be_is_refused(env: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        unprotected(env)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({SOCKET: "s"}, f"{WORKER} is not set"),
        ({SOCKET: "s", WORKER: "-1"}, f"{WORKER}='-1'"),
        ({SOCKET: "s", WORKER: "1"}, "EVERSTEP_BOARD is not set"),
    ],
)
def test_half_a_seat_is_refused(env: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Seat.take(env)


def test_a_seat_can_be_taken_once(agent: StandIn) -> None:
    worker = agent.start(SHOW_JOB)
    env = agent.environment(worker.reader, worker.ring)
    seat = Seat.take(env)
    assert seat is not None
    assert seat.token is not None
    assert seat.token.text == TOKEN.text
    assert TOKEN_VARIABLE not in env
    assert Seat.take(env) is None


# ── what the script forks ────────────────────────────────────────────────────────────────────────────────


def test_a_process_that_the_script_forks_is_no_part_of_the_job(agent: StandIn) -> None:
    worker = agent.run("""
        import os, everstep
        job = everstep.init()
        board = [line for line in open("/proc/self/maps") if "board-" in line]
        steps = job.steps(3)
        with next(steps) as step:
            pid = os.fork()
            if pid == 0:
                import time
                step.phase("optimizer")
                sockets = [fd for fd in os.listdir("/proc/self/fd")
                           if os.path.exists(f"/proc/self/fd/{fd}")
                           and os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")]
                maps = [line for line in open("/proc/self/maps") if "board-" in line]
                print(len(board), sockets, maps, job.rank, flush=True)
                raise SystemExit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            os._exit(0)
        """)
    assert worker.end() == (0, "1 [] [] 0\n7\n", "")
    assert worker.board.phase is WorkerPhase.FORWARD


FORK_AND_BE_KILLED = """
    import os, signal, threading, everstep
    everstep.init()
    ends, says = os.pipe()
    def fork():
        if os.fork() == 0:
            os.write(says, b".")
            signal.pause()
    {fork}
    os.read(ends, 1)
    os.kill(os.getpid(), signal.SIGKILL)
    """


def test_a_process_that_the_script_forks_dies_with_it(agent: StandIn) -> None:
    worker = agent.run(FORK_AND_BE_KILLED.format(fork="fork()"))
    assert worker.end()[0] == -9  # the end of its output: nobody holds the pipe any more


def test_a_thread_that_forks_does_not_take_its_children_with_it(agent: StandIn) -> None:
    worker = agent.run("""
        import os, threading, everstep
        everstep.init()
        ends, says = os.pipe()
        def fork():
            global child
            child = os.fork()
            if child == 0:
                os.close(says)
                os.read(ends, 1)
                os._exit(5)
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
        os.close(says)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """)
    assert worker.end() == (0, "5\n", "")


def test_the_package_imports_neither_torch_nor_a_worker_before_they_are_used(tmp_path: Path) -> None:
    process = run_script(
        tmp_path,
        """
        import sys, everstep.core.worker
        print([name for name in sys.modules if name == "torch" or name.startswith("everstep.worker")])
        print(everstep.init.__module__, everstep.Step.__name__, everstep.ConfigError.__name__)
        """,
        ENV,
    )
    assert process.communicate(timeout=20)[0] == "[]\neverstep.worker.job Step ConfigError\n"


def test_every_public_name_is_there() -> None:
    assert [name for name in everstep.__all__ if not hasattr(everstep, name)] == []
    assert set(everstep.__all__) >= {
        name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)
    }
    with pytest.raises(AttributeError, match="has no attribute 'protect'"):
        everstep.protect  # noqa: B018
