"""What is asked of a running job: status, chaos, replay; with a controller that answers, that does not, and without."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from everstep.cli.status import newest
from everstep.controller.job import RunDir
from everstep.controller.journal import Journal
from everstep.core.config import JobConfig
from everstep.core.events import NodeJoined
from everstep.launch import client
from everstep.types import NodeId

if TYPE_CHECKING:
    from tests.cli.conftest import Controller, Everstep


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("status", "chaos"):
        monkeypatch.setattr(f"everstep.cli.{module}.RETURN_S", 0.0)


def finish(run: RunDir, code: int, reason: str) -> None:
    (run.path / "result.json").write_text(json.dumps({"code": code, "reason": reason}))


def test_the_json_is_what_the_controller_said(
    everstep: Everstep, controller: Controller, status: dict[str, Any]
) -> None:
    result = everstep("status", str(controller.run.path), "--json")
    assert result.exit_code == 0
    assert json.loads(result.output) == status
    assert {"generation", "state", "workers", "standbys", "failures"} <= status.keys()


def test_in_a_pipe_no_line_is_longer_than_what_it_says(everstep: Everstep, controller: Controller) -> None:
    lines = everstep("status", str(controller.run.path)).output.splitlines()
    assert max(map(len, lines)) < 120


def test_without_a_directory_it_is_the_newest_run(everstep: Everstep, controller: Controller) -> None:
    result = everstep("status")
    assert result.exit_code == 0
    assert result.output.startswith("train-1a2b3c  RUNNING  step 41  generation 3")


def test_the_newest_run_is_the_one_that_began_last(tmp_path: Path) -> None:
    for age, name in enumerate(("b", "c", "a")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.json").touch()
        os.utime(tmp_path / name / "job.json", (1000 - age, 1000 - age))
    assert newest(tmp_path).name == "b"


@pytest.mark.parametrize(("code", "text"), [(0, "done"), (1, "failed with code 1: rank 1 hangs"), (130, "interrupted")])
def test_a_run_that_is_over_says_how_it_ended(everstep: Everstep, run: RunDir, code: int, text: str) -> None:
    finish(run, code, "rank 1 hangs")
    result = everstep("status", str(run.path))
    assert result.exit_code == 0
    assert f"the run is over: {text}" in result.output
    shown = json.loads(everstep("status", str(run.path), "--json").output)
    assert shown == {"state": "DONE" if code == 0 else "FAILED", "code": code, "reason": "rank 1 hangs"}


def test_nobody_answers(everstep: Everstep, run: RunDir) -> None:
    result = everstep("status", str(run.path))
    assert result.exit_code == 1
    assert "controller not reachable: no controller has listened for" in result.output


def test_a_controller_that_has_gone(everstep: Everstep, run: RunDir, controller: Controller) -> None:
    address = run.address()
    controller.stop()
    assert address is not None
    result = everstep("status", str(run.path))
    assert result.exit_code == 1
    assert "controller not reachable" in result.output
    assert "Connect" in result.output


def test_a_controller_that_is_stopped_is_not_waited_for(
    everstep: Everstep, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ANSWER_S", 0.05)
    controller.mute = True
    result = everstep("status", str(controller.run.path))
    assert result.exit_code == 1
    assert "does not answer within 0.05 s" in result.output


def test_watching_ends_with_the_run(everstep: Everstep, controller: Controller) -> None:
    controller.after_first_answer = lambda: finish(controller.run, 0, "all ranks are done")
    result = everstep("status", "--watch")
    assert result.exit_code == 0
    first, last = result.output.splitlines()
    assert first == "generation 3 RUNNING step 41, 2 failures"
    assert last.endswith("the run is over: done")


def test_a_fault_is_injected_as_it_is_written(everstep: Everstep, controller: Controller) -> None:
    result = everstep("chaos", str(controller.run.path), "kill", "rank=2", "step=7", "phase=optimizer", "when=mid")
    assert (result.exit_code, result.output) == (0, "injected: kill rank=2 step=7 phase=optimizer when=mid\n")
    assert controller.injected == ["kill rank=2 step=7 phase=optimizer when=mid"]


def test_a_fault_that_the_job_refuses(everstep: Everstep, controller: Controller) -> None:
    controller.refusal = "nobody has rank 9 now"
    result = everstep("chaos", str(controller.run.path), "kill", "rank=9")
    assert result.exit_code == 1
    assert result.output == "everstep: 'kill rank=9' was not injected: nobody has rank 9 now\n"


def test_a_fault_for_a_run_that_does_not_run(everstep: Everstep, run: RunDir) -> None:
    result = everstep("chaos", str(run.path), "kill", "rank=1")
    assert result.exit_code == 1
    assert "'kill rank=1' was not injected: no controller has listened" in result.output


def test_a_fault_for_a_run_that_is_over(everstep: Everstep, run: RunDir) -> None:
    finish(run, 0, "all ranks are done")
    result = everstep("chaos", str(run.path), "kill", "rank=1")
    assert result.exit_code == 1
    assert result.output == "everstep: 'kill rank=1' was not injected: the run is over: done\n"


@pytest.fixture
def journal(run: RunDir) -> Path:
    journal = Journal.create(run.journal, JobConfig(ranks=1, standbys=0))
    journal.append(NodeJoined(NodeId("local-0"), ("cpu:0",), ()))
    journal.close()
    return run.journal


def test_a_journal_tells_events_states_and_reasons(everstep: Everstep, journal: Path) -> None:
    for source in (journal, journal.parent):
        result = everstep("replay", str(source))
        assert result.exit_code == 0
        first, joined, why = result.output.splitlines()
        assert first.lstrip().startswith("+0.000 s  g1   STARTING")
        assert "NodeJoined(node='local-0'" in joined
        assert why.strip() == "→ rank 0 goes to a new process on local-0"


def test_a_journal_as_json(everstep: Everstep, journal: Path) -> None:
    lines = [json.loads(line) for line in everstep("replay", str(journal), "--json").output.splitlines()]
    assert [line["state"] for line in lines] == ["STARTING", "STARTING"]
    assert lines[1]["notes"] == ["rank 0 goes to a new process on local-0"]
    assert set(lines[1]) == {"time", "event", "state", "generation", "notes"}
