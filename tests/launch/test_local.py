"""The launcher with small real processes: who is started again, what ends the run, and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from everstep.launch.local import TRIES, Restarts

LAUNCHER = Path(__file__).with_name("actors") / "launcher.py"
DEADLINE_S = 20.0
T = TypeVar("T")


def until(condition: Callable[[], T]) -> T:
    deadline = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {DEADLINE_S:.0f} s in vain"
        time.sleep(0.005)
    return value


class Launched:
    """A launcher in a process of its own, seen from outside."""

    def __init__(self, path: Path, mode: str, nodes: str) -> None:
        self.path = path
        command = [sys.executable, str(LAUNCHER), str(path), mode, nodes]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def pids(self, name: str, count: int = 1) -> list[int]:
        """Of those that have come to work so far, at least so many."""

        def written() -> list[int]:
            found = (self.path / name).read_text().split() if (self.path / name).exists() else []
            return [int(pid) for pid in found] if len(found) >= count else []

        return until(written)

    def working(self) -> None:
        self.pids("controllers")
        self.pids("agents")

    def finish(self, code: int, reason: str) -> None:
        part = self.path / "finish.part"
        part.write_text(json.dumps({"code": code, "reason": reason}))
        part.rename(self.path / "finish")

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, out, err

    def everybody(self) -> list[int]:
        names = ("controllers", "agents", "workers")
        return [pid for name in names if (self.path / name).exists() for pid in self.pids(name)]


def running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def gone(pid: int) -> None:
    until(lambda: not running(pid))


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    started: list[Launched] = []

    def launch(mode: str = "normal", nodes: str = "local-0") -> Launched:
        started.append(Launched(tmp_path / "run", mode, nodes))
        return started[-1]

    yield launch
    for one in started:
        one.process.kill()
        one.process.communicate()
        for pid in one.everybody():
            gone(pid)


def test_the_exit_code_of_the_controller_is_that_of_the_run(launched: Callable[..., Launched]) -> None:
    run = launched(nodes="local-0,local-1")
    run.pids("agents", 2)
    run.finish(0, "all ranks are done")
    code, out, err = run.end()
    assert code == 0
    assert sorted(out.splitlines()) == ["[rank 0] hello from local-0", "[rank 0] hello from local-1"]
    assert "[agent] a warning" in err
    assert not [pid for pid in run.everybody() if running(pid)]


def test_the_last_line_of_a_failed_run_is_its_first_cause(launched: Callable[..., Launched]) -> None:
    run = launched()
    run.working()
    run.finish(1, "rank 3 raised in train.py:7\nTraceback:\nValueError: 7\n")
    code, _, err = run.end()
    assert code == 1
    assert err.splitlines()[-1] == "everstep: rank 3 raised in train.py:7 … ValueError: 7"


def test_a_killed_controller_is_started_again_and_the_agent_left_alone(launched: Callable[..., Launched]) -> None:
    run = launched()
    run.working()
    for killed in range(1, TRIES + 2):
        os.kill(run.pids("controllers", killed)[-1], signal.SIGKILL)
    run.pids("controllers", TRIES + 2)
    assert len(run.pids("agents")) == 1
    run.finish(0, "")
    code, _, err = run.end()
    assert code == 0
    assert err.count("the controller killed by SIGKILL; starting it again") == TRIES + 1


def test_a_killed_agent_is_started_again_as_the_same_node(launched: Callable[..., Launched]) -> None:
    run = launched()
    run.working()
    os.kill(run.pids("agents")[0], signal.SIGKILL)
    run.pids("agents", 2)
    run.finish(0, "")
    code, out, err = run.end()
    assert code == 0
    assert out.splitlines() == ["[rank 0] hello from local-0"] * 2
    assert "the agent of node local-0 killed by SIGKILL; starting it again" in err
    assert not running(run.pids("workers", 2)[0]), "the worker of the killed agent, in its own session"


def test_a_controller_that_only_fails_is_given_up(launched: Callable[..., Launched]) -> None:
    code, _, err = launched("broken").end()
    assert code == 1
    assert err.splitlines()[-1] == (
        "everstep: the controller exited with code 1, 3 times in a row: a bug in the controller"
    )


def test_a_controller_that_was_used_wrongly_is_not_tried_again(launched: Callable[..., Launched]) -> None:
    code, _, err = launched("taken").end()
    assert code == 2
    assert err.splitlines()[-1] == "everstep: the port is taken"
    assert err.count("taken") == 1


def test_a_machine_that_no_agent_can_work_on_ends_the_run(launched: Callable[..., Launched]) -> None:
    code, _, err = launched("no room").end()
    assert code == 2
    assert err.splitlines()[-1] == "everstep: no room in /dev/shm"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_one_signal_ends_the_job(launched: Callable[..., Launched], number: signal.Signals) -> None:
    run = launched()
    run.working()
    run.process.send_signal(number)
    code, _, err = run.end()
    assert code == 130
    assert err.splitlines()[-1] == "everstep: interrupted"
    assert not [pid for pid in run.everybody() if running(pid)]


def test_an_agent_that_hears_no_good_bye_is_told_to_go(launched: Callable[..., Launched]) -> None:
    """As one that was about to connect when the job was interrupted."""
    run = launched("unmet")
    run.working()
    run.process.send_signal(signal.SIGINT)
    assert run.end()[0] == 130
    assert (run.path / "told to go").exists()
    assert not [pid for pid in run.everybody() if running(pid)]


def test_a_second_signal_kills_what_does_not_end(launched: Callable[..., Launched]) -> None:
    run = launched("deaf")
    run.working()
    run.process.send_signal(signal.SIGINT)
    assert run.process.stderr is not None
    until(lambda: "once more" in run.process.stderr.readline())  # type: ignore[union-attr]
    run.process.send_signal(signal.SIGINT)
    assert run.end()[0] == 130
    assert not [pid for pid in run.everybody() if running(pid)]


def test_the_death_of_the_launcher_ends_controller_and_agents(launched: Callable[..., Launched]) -> None:
    run = launched()
    run.working()
    run.process.kill()
    for pid in run.everybody():
        gone(pid)


def test_a_kill_is_no_reason_to_give_up_but_failing_young_is() -> None:
    restarts = Restarts()
    assert all(restarts.again(-signal.SIGKILL, age_s=0.0) for _ in range(100))
    assert [restarts.again(1, age_s=0.1) for _ in range(TRIES)] == [True] * (TRIES - 1) + [False]


def test_who_has_lived_long_begins_anew() -> None:
    restarts = Restarts()
    assert all(restarts.again(1, age_s=60.0) for _ in range(100))
