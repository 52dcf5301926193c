"""`everstep explain`: all recoveries, one of them, and runs that are not whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.observe.conftest import RecordedJob

from everstep.controller.job import RunDir
from everstep.controller.journal import Journal
from everstep.core.events import Exited, Position
from everstep.observe.records import encode
from everstep.types import Step, WorkerPhase

if TYPE_CHECKING:
    from tests.cli.conftest import Everstep


@pytest.fixture
def played(run: RunDir) -> RunDir:
    """Two recoveries, and the run is over."""
    job = RecordedJob(3, standbys=1)
    job.training()
    for evidence in ("killed by SIGKILL", "bad\x1b[2J news"):
        job.at(WorkerPhase.BACKWARD, 7)
        job.tell(Exited(job.worker(2), -9, evidence, Position(WorkerPhase.BACKWARD, Step(7)), quiet_s=0.03))
        job.recovered()
    journal = Journal.create(run.journal, job.config)
    for event, _ in job.story:
        journal.append(event)
    journal.close()
    run.recoveries.write_bytes(b"".join(map(encode, job.records)))
    run.result.write_text(json.dumps({"code": 0, "reason": ""}))
    return run


def test_without_a_number_each_recovery_is_a_line(everstep: Everstep, played: RunDir) -> None:
    result = everstep("explain", str(played.path))
    assert result.exit_code == 0
    first, second, last = result.output.splitlines()
    assert first.startswith("  0  ")
    assert "rank 2 (killed by SIGKILL) → standby 3; all redo step 7" in first
    assert second.startswith("  1  ")
    assert last == "the run is over: done"


def test_one_recovery_is_told_with_where_the_others_were(everstep: Everstep, played: RunDir) -> None:
    result = everstep("explain", str(played.path), "0")
    assert result.exit_code == 0
    assert "recovery 0, generation 2: recovered in 30ms" in result.output
    assert "What failed\n  rank 2 (worker 2 on n0) exited in Backward of step 7: killed by SIGKILL\n" in result.output
    assert "Where the others were\n  ranks 0–1: in Backward of step 7\n" in result.output


def test_what_a_terminal_would_obey_is_not_passed_on(everstep: Everstep, played: RunDir) -> None:
    for arguments in ((), ("1",)):
        assert "bad?[2J news" in everstep("explain", str(played.path), *arguments).output


def test_a_number_that_does_not_exist(everstep: Everstep, played: RunDir, run: RunDir) -> None:
    result = everstep("explain", str(played.path), "2")
    assert result.exit_code == 2
    assert result.output == f"everstep: there is no recovery 2 in {played.path}: it has number 0, 1\n"
    run.recoveries.write_bytes(b"")
    assert everstep("explain", str(run.path), "0").output.endswith(": it has none\n")


def test_a_run_in_which_nothing_failed(everstep: Everstep, played: RunDir) -> None:
    played.recoveries.write_bytes(b"")
    assert everstep("explain", str(played.path)).output.startswith("no recovery: nothing failed")


def test_a_running_job(everstep: Everstep, played: RunDir) -> None:
    played.result.unlink()
    played.recoveries.write_bytes(b"")
    assert everstep("explain", str(played.path)).output.splitlines() == [
        "note: the job is running: this is what is known so far",
        "no recovery so far",
    ]


def test_what_can_be_read_of_a_damaged_run_is_shown(everstep: Everstep, played: RunDir) -> None:
    played.journal.write_bytes(b"everstep journal 0\n")
    good = played.recoveries.read_bytes()
    played.recoveries.write_bytes(b'{"number": 0}\n' + good.splitlines(keepends=True)[1] + b'{"num')
    result = everstep("explain", str(played.path))
    assert result.exit_code == 0
    assert "note: line 1 of recoveries.jsonl is of another version of everstep, or damaged: " in result.output
    assert "note: the last line of recoveries.jsonl was never finished" in result.output
    assert "is not a journal of this version of everstep" in result.output
    assert "\n  1  " in result.output
    one = everstep("explain", str(played.path), "1").output
    assert "Where the others were" not in one
    assert "What was decided" in one


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("explain nix", "nix is not the directory of a run: there is no such directory"),
        ("explain .", "it has none of job.json, journal"),
        ("explain . -1", "No such option '-1'"),
        ("explain . first", "'first' is not a valid integer"),
        ("explain", "Missing argument 'RUN'"),
    ],
)
def test_what_is_no_run_is_told_in_one_line(everstep: Everstep, tmp_path: Path, line: str, words: str) -> None:
    result = everstep(*line.split())
    assert result.exit_code == 2
    [said] = result.output.splitlines()
    assert words in said
