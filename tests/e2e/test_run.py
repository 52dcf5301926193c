"""What `everstep run` promises: jobs end as they should, say why, and leave nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.e2e.conftest import SCRIPTS, Run, eventually

Start = Callable[..., Run]
STEPS = str(SCRIPTS / "steps.py")
EXAMPLE = str(Path(__file__).parents[2] / "examples" / "steps.py")
TWO = ("--nproc", "2")
PLAIN = (*TWO, "--no-zygote")
"""For what is not about workers: no zygote has to import torch first, which these scripts do not need."""


def chaos(run: Run, *words: str) -> None:
    """As a person would."""
    command = [sys.executable, "-m", "everstep.cli", "chaos", str(run.dir), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_job_runs_to_its_end_and_leaves_nothing(start: Start) -> None:
    run = start(*TWO, "--preload", "json", STEPS, "5", "0.02")
    assert run.wait() == 0
    assert "[rank 0] rank 0 of 2 RANK=0 starts" in run.text()
    assert "[rank 1] rank 1 is done" in run.text()
    assert "rank 1 is done" in "".join(path.read_text() for path in (run.dir / "logs").glob("*r1*"))
    assert json.loads((run.dir / "result.json").read_text())["code"] == 0
    run.leaves_nothing()


def test_an_exception_is_repeated_until_the_limit_and_shown_last(start: Start) -> None:
    run = start(*TWO, "--max-failures", "1", str(SCRIPTS / "wrong.py"))
    assert run.wait() == 1
    assert "ValueError: the data is wrong" in run.text()
    last = run.text().strip().splitlines()[-6:]
    assert any("max_failures=1" in line or "the data is wrong" in line for line in last), last
    run.leaves_nothing()


def test_a_script_that_knows_nothing_of_everstep_is_restarted(start: Start) -> None:
    run = start(*PLAIN, str(SCRIPTS / "plain.py"), str(SCRIPTS.parent.parent / "nowhere"))
    assert run.wait() == 1, "the folder for its mark does not exist: both starts fail at the same place"
    assert "failed twice before init()" in run.text()


def test_a_plain_script_that_fails_once_gets_through(start: Start, tmp_path_factory: pytest.TempPathFactory) -> None:
    marks = tmp_path_factory.mktemp("marks")
    run = start(*TWO, str(SCRIPTS / "plain.py"), str(marks))
    assert run.wait() == 0
    assert (marks / "failed-once").exists()


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_everything(start: Start, times: int) -> None:
    run = start(*TWO, STEPS, "10000", "0.05")
    run.training()
    for _ in range(times):
        run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130
    run.leaves_nothing()


def test_kill_9_of_the_parent_ends_everything(start: Start) -> None:
    run = start(*TWO, STEPS, "10000", "0.05")
    run.training()
    run.process.kill()
    run.process.wait()
    run.leaves_nothing()


def test_the_controller_is_killed_20_times_and_nobody_notices(start: Start) -> None:
    run = start(*PLAIN, STEPS, "10000", "0.02")
    pids = {worker["pid"] for worker in run.training()["workers"]}
    for _ in range(20):
        old = run.controller_pid()
        os.kill(old, signal.SIGKILL)
        eventually(lambda old=old: run.controller_pid() != old, "another controller listens")  # type: ignore[misc]
    status = run.when(
        lambda status: all(w["pid"] in pids for w in status["workers"]) and len(status["workers"]) == 2,
        "the restarted controller knows the same workers",
    )
    assert status["generation"] == 1
    assert status["failures"] == []
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130
    run.leaves_nothing()


def listen_at(host: str, port: int) -> socket.socket | None:
    """None as long as somebody has the port: the former owner, or a connection that was given it at random."""
    try:
        return socket.create_server((host, port))
    except OSError:
        return None


def test_a_controller_whose_port_was_taken_meanwhile_comes_back_elsewhere(start: Start) -> None:
    run = start(*PLAIN, STEPS, "10000", "0.02")
    pids = {worker["pid"] for worker in run.training()["workers"]}
    old = json.loads((run.dir / "controller.json").read_text())
    run.process.send_signal(signal.SIGSTOP)  # or its supervisor would be faster than we
    os.kill(old["pid"], signal.SIGKILL)
    with eventually(lambda: listen_at(old["host"], old["port"]), "the port of the killed one is free"):
        run.process.send_signal(signal.SIGCONT)
        status = run.when(
            lambda status: len(status["workers"]) == 2 and all(w["pid"] for w in status["workers"]),
            "another controller knows the workers",
        )
    assert {worker["pid"] for worker in status["workers"]} == pids
    assert status["failures"] == []


def test_a_failure_while_the_controller_is_away_is_handled(start: Start) -> None:
    run = start(*PLAIN, STEPS, "10000", "0.02")
    victim = run.training()["workers"][1]["pid"]
    os.kill(run.controller_pid(), signal.SIGKILL)
    os.kill(victim, signal.SIGKILL)
    status = run.when(
        lambda status: len(status["workers"]) == 2 and not {0, victim} & {w["pid"] for w in status["workers"]},
        "rank 1 has another process",
    )
    assert status["generation"] >= 2


def test_a_killed_agent_costs_its_ranks_their_node(start: Start) -> None:
    run = start(*PLAIN, "--local-nodes", "2", STEPS, "10000", "0.02")
    nodes = {worker["node"] for worker in run.training()["workers"]}
    assert nodes == {"local-0", "local-1"}
    workers = {worker["pid"] for worker in run.training()["workers"]}
    chaos(run, "agent-kill", "node=local-1")
    status = run.when(
        lambda status: bool(status["failures"]) and not workers & {w["pid"] for w in status["workers"]},
        "the ranks have new processes",
    )
    assert "local-1: its agent's connection ended" in status["failures"][0]["text"]
    run.training()
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130
    run.leaves_nothing()


def test_an_agent_that_was_frozen_comes_back_as_a_new_node(start: Start) -> None:
    """Its connection stands all the time: only its silence tells, and its worker has lost its rank meanwhile."""
    run = start(*PLAIN, "--local-nodes", "2", STEPS, "10000", "0.02")
    old = next(w["pid"] for w in run.training()["workers"] if w["node"] == "local-1")
    agent = next(p for p in run.family() if {"everstep.agent", "local-1"} <= set(p.cmdline()))
    agent.suspend()
    status = run.when(lambda s: bool(s["failures"]) and len(s["workers"]) == 2, "the rank is elsewhere")
    assert "no heartbeat" in status["failures"][0]["text"]
    agent.resume()
    run.when(lambda s: len(s["nodes"]) == 2, "the node is back")
    eventually(lambda: not psutil.pid_exists(old), "the old worker is killed")


def test_status_tells_ranks_processes_and_steps(start: Start) -> None:
    run = start(*TWO, "--standby", "1", STEPS, "10000", "0.02")
    status = run.when(lambda s: bool(s["standbys"]) and bool(s["standbys"][0]["pid"]), "a standby is there")
    run.training()
    command = [sys.executable, "-m", "everstep.cli", "status", str(run.dir), "--json"]
    status = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert {"generation", "state", "workers", "standbys", "failures"} <= set(status)
    assert {"rank", "pid", "node", "step", "phase", "version"} <= set(status["workers"][0])
    assert {"pid", "node"} <= set(status["standbys"][0])
    assert [worker["rank"] for worker in status["workers"]] == [0, 1]
    for worker in status["workers"]:
        assert psutil.pid_exists(worker["pid"])


def test_the_run_dir_of_a_live_job_is_refused(start: Start) -> None:
    run = start(*PLAIN, STEPS, "10000", "0.02")
    run.training()
    second = start(*PLAIN, STEPS, "5", "0")
    assert second.wait() == 2
    lines = [line for line in run.text().splitlines() if "run" in line]
    assert any("give --run-dir another directory" in line for line in lines)


CASES = [
    ("kill rank=1 step=3 phase=forward", "SIGKILL"),
    ("segv rank=0 step=2 phase=backward when=mid", "SIGSEGV"),
    ("exit rank=1 step=1 phase=forward", "exited with code"),
    ("raise rank=0 step=2 phase=optimizer when=mid", "InjectedFault"),
    ("stop rank=1 step=2 phase=backward when=mid", "frozen"),
    ("gil rank=1 step=3 phase=forward when=mid", "frozen"),
]


@pytest.mark.parametrize(("fault", "evidence"), CASES, ids=[fault.split()[0] for fault, _ in CASES])
def test_each_fault_is_seen_with_evidence_and_healed(start: Start, fault: str, evidence: str) -> None:
    run = start(*TWO, "--chaos", fault, STEPS, "6", "0.05")
    assert run.wait() == 0
    failure = re.search(r"everstep: failure: (.*(?:\n.*){0,30})", run.text())
    assert failure, run.text()
    assert evidence in run.text()
    rank = re.search(r"rank=(\d)", fault)
    assert rank
    assert f"rank {rank[1]}" in failure[1]


def test_what_is_no_failure_of_a_worker_disturbs_none(start: Start) -> None:
    """The example, with a rank that is slow for a while, under a controller that is killed."""
    run = start(*PLAIN, "--chaos", "slow rank=1 step=3 for=1", "--chaos", "controller-kill", EXAMPLE)
    assert run.wait() == 0
    assert "the controller killed by SIGKILL; starting it again" in run.text()
    starts = re.findall(r"rank (\d) of 2 starts in generation (\d)", run.text())
    assert sorted(starts) == [("0", "1"), ("1", "1")]
    assert "failure" not in run.text()


def test_a_device_that_gets_sick_is_left(start: Start, tmp_path_factory: pytest.TempPathFactory) -> None:
    devices = tmp_path_factory.mktemp("devices")
    for name in ("a", "b", "c"):
        (devices / f"{name}.json").write_text('{"healthy": true}')
    run = start(*PLAIN, "--devices", f"file:{devices}", STEPS, "10000", "0.02")
    assert [worker["device"] for worker in run.training()["workers"]] == ["a", "b"]
    (devices / "a.json").write_text('{"healthy": false, "evidence": "Xid 79"}')
    status = run.when(lambda s: bool(s["failures"]) and len(s["workers"]) == 2, "the rank is elsewhere")
    assert "device is sick (a: Xid 79)" in status["failures"][0]["text"]
    assert sorted(worker["device"] for worker in status["workers"]) == ["b", "c"]


def test_a_hang_is_told_from_waiting(start: Start, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The main thread stands still in Forward while its control thread beats: the others' waiting tells."""
    folder = tmp_path_factory.mktemp("meet")
    run = start(
        *TWO, "--chaos", "hang rank=1 step=12 phase=forward when=mid", str(SCRIPTS / "meet.py"), "20", str(folder)
    )
    assert run.wait() == 0
    assert "rank 1" in run.text()
    assert "hangs" in run.text()


def test_a_partitioned_agent_ends_its_workers_and_comes_back(start: Start) -> None:
    run = start(*PLAIN, "--local-nodes", "2", "--lease", "0.5", STEPS, "10000", "0.02")
    run.training()
    lost = {w["pid"] for w in run.training()["workers"] if w["node"] == "local-1"}
    assert len(lost) == 1
    chaos(run, "partition", "node=local-1", "for=1.5")
    status = run.when(lambda s: bool(s["failures"]) and len(s["workers"]) == 2, "the rank is elsewhere")
    assert "local-1: its agent's connection ended" in status["failures"][0]["text"]
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in lost), "the lease has ended its workers")
    run.when(lambda s: len(s["nodes"]) == 2, "the node is back")
    run.training()
