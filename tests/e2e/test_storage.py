"""Checkpoints of whole jobs, while storage, the persister, the agent or the controller fails."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from tests.e2e.conftest import SCRIPTS, Run, eventually
from tests.tmpfs import tmpfs

from everstep.observe.checkpoints import Fate, read_checkpoints

Start = Callable[..., Run]
TWO = ("--nproc", "2", "--standby", "0")
LONG = "1000000"
PAUSE_S = "0.02"


def saving(start: Start, *options: str, steps: str = LONG) -> Run:
    return start(*TWO, *options, str(SCRIPTS / "saving.py"), steps, PAUSE_S)


def committed(run: Run, step: int = 1) -> dict[str, Any]:
    """A checkpoint of this step or a later one is durable."""

    def ready(status: dict[str, Any]) -> bool:
        newest = status["checkpoints"]["committed"]
        return newest is not None and newest["step"] >= step

    return run.when(ready, f"a checkpoint of step {step} is committed")["checkpoints"]  # type: ignore[no-any-return]


def persister(run: Run) -> psutil.Process:
    """It is named after nothing of the run, but it is a child of its agent."""

    def find() -> psutil.Process | None:
        children = psutil.Process(run.process.pid).children(recursive=True)
        return next((child for child in children if "everstep.checkpoint.persister" in _words(child)), None)

    return eventually(find, "there is a persister")


def agent(run: Run, node: str = "local-0") -> psutil.Process:
    found = psutil.Process(run.process.pid).children()
    return next(child for child in found if {"everstep.agent", node} <= set(_words(child)))


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def stop_storage(run: Run) -> psutil.Process:
    """From here on nothing is written, until somebody says otherwise."""
    process = persister(run)
    process.suspend()
    run.when(lambda status: status["checkpoints"]["busy"], "both slots are busy")
    return process


def go_on(run: Run) -> None:
    """The job trains."""
    status = run.status()
    assert status is not None
    at = max(worker["version"] for worker in status["workers"])
    run.when(lambda status: all(w["version"] > at + 3 for w in status["workers"]), "more steps are done")


def test_training_goes_on_while_storage_stands_still(start: Start) -> None:
    run = saving(start, "--checkpoint-every", "4")
    committed(run)
    stuck = stop_storage(run)
    go_on(run)
    status = run.status()
    assert status is not None
    shown = status["checkpoints"]
    assert shown["persisting"]
    assert shown["skipped"] > 0
    stuck.kill()  # the agent starts another one, which writes what this one had not
    committed(run, max(shown["persisting"]))
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130
    fates = {record.fate for record in read_checkpoints(run.dir / "checkpoints.jsonl")}
    assert {Fate.COMMITTED, Fate.SKIPPED} <= fates
    run.leaves_nothing()


def test_a_controller_that_is_killed_meanwhile_commits_it_afterwards(start: Start) -> None:
    run = saving(start, "--checkpoint-every", "4")
    committed(run)
    stuck = stop_storage(run)
    status = run.status()
    assert status is not None
    newest = max(status["checkpoints"]["persisting"])
    os.kill(run.controller_pid(), signal.SIGKILL)
    stuck.resume()
    committed(run, newest)
    assert run.process.poll() is None


def test_after_the_loss_of_its_only_node_a_job_goes_on_from_storage(start: Start) -> None:
    run = saving(start, "--checkpoint-every", "4")
    committed(run, 8)
    agent(run).kill()
    run.when(lambda status: status["generation"] > 1 and status["state"] == "RUNNING", "it runs again")
    assert "from the newest persistent checkpoint" in run.text()
    go_on(run)


def test_a_storage_that_vanishes_disturbs_nobody_and_is_shown(start: Start) -> None:
    run = saving(start, "--checkpoint-every", "4")
    committed(run)
    where = run.dir / "checkpoints"
    where.rename(run.dir / "gone")
    where.write_text("in its place is a file")
    run.when(lambda status: "Not a directory" in status["checkpoints"]["error"], "the error is shown")
    go_on(run)
    where.unlink()
    (run.dir / "gone").rename(where)
    run.when(lambda status: not status["checkpoints"]["error"], "a checkpoint is committed again")


def test_a_disk_that_is_full_disturbs_nobody_and_is_shown(start: Start, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", 1 << 20) as small:
        (small / "other").write_bytes(bytes(shutil.disk_usage(small).free))
        run = saving(start, "--checkpoint-every", "4", "--checkpoint-dir", str(small / "checkpoints"))
        run.when(lambda status: "No space left" in status["checkpoints"]["error"], "the error is shown")
        go_on(run)
        (small / "other").unlink()
        committed(run)
        run.when(lambda status: not status["checkpoints"]["error"], "the error is over")
        run.process.send_signal(signal.SIGINT)
        assert run.wait() == 130


def test_a_job_that_is_told_to_end_takes_a_checkpoint_first_and_can_go_on_from_it(start: Start) -> None:
    run = saving(start, "--checkpoint-every", LONG)
    run.training(steps=6)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 130
    run.leaves_nothing()
    again = saving(start, "--checkpoint-every", LONG)
    shown = again.training(steps=8)
    step = int(re.findall(r"goes on from the checkpoint of step (\d+)", again.text())[0])
    assert step >= 6
    assert all(worker["version"] >= step for worker in shown["workers"])


def test_a_node_that_is_told_to_go_leaves_a_checkpoint_and_the_others_go_on(start: Start) -> None:
    run = saving(start, "--local-nodes", "2", "--checkpoint-every", LONG)
    run.training(steps=3)
    agent(run, "local-1").terminate()
    committed(run, 3)
    run.when(lambda status: status["generation"] > 1 and status["state"] == "RUNNING", "it runs again")
    assert "local-1 is told to end: a checkpoint is taken first" in run.text()
    go_on(run)


def test_the_end_of_the_loop_is_saved(start: Start) -> None:
    run = saving(start, "--checkpoint-every", LONG, steps="6")
    assert run.wait() == 0
    assert [path.name for path in (run.dir / "checkpoints").glob("step-*")] == ["step-0000000006-g1-a1"]
    digests = _digests(run)
    assert len(digests) == 1
    again = saving(start, steps="6")
    assert again.wait() == 0
    assert "goes on from the checkpoint of step 6" in again.text()
    assert _digests(again) == digests


def test_a_failure_after_the_loop_begins_again_at_its_end(start: Start) -> None:
    run = start(*TWO, "--checkpoint-every", LONG, str(SCRIPTS / "saving.py"), "6", PAUSE_S, "fail=failed")
    assert run.wait() == 0
    assert "all started again and loaded step 6" in run.text()
    assert len(_digests(run)) == 1


def _digests(run: Run) -> set[str]:
    return set(re.findall(r"has ([0-9a-f]{64})", run.text()))


def test_a_state_that_no_checkpoint_can_hold_trains_without(start: Start) -> None:
    run = start("--nproc", "1", "--standby", "0", str(SCRIPTS / "saving.py"), "8", PAUSE_S, "more=complex128")
    assert run.wait() == 0
    assert "has elements of type torch.complex128, which no checkpoint can hold" in run.text()
