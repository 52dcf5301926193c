"""What a report is drawn from: the directory of a run that is over, runs, was killed, is empty, damaged or foreign."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.observe.report.invented import invented

from everstep.controller.job import Job, RunDir
from everstep.controller.journal import MAGIC, Journal
from everstep.core.config import JobConfig
from everstep.core.events import NodeJoined
from everstep.errors import ConfigError
from everstep.launch.lookback import look_back
from everstep.observe.report.page import page
from everstep.observe.report.run import State
from everstep.types import NodeId
from everstep.wire.auth import Token

NOW_S = 4e9


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """One that is under way: this process holds its lock."""
    run = RunDir(tmp_path / "20260130-101500-train")
    run.create(Job("j-1", ("train.py", "--lr", "1"), str(tmp_path), {}, JobConfig(ranks=2), 2), Token.create())
    journal = Journal.create(run.journal, JobConfig(ranks=2))
    journal.append(NodeJoined(NodeId("n0"), ("d0", "d1", "d2")))
    journal.close()
    run.recoveries.write_bytes(msgspec.json.encode(invented().recoveries[0]) + b"\n")
    return run


def test_one_that_runs_is_read_as_far_as_it_has_come(run: RunDir) -> None:
    found = look_back(run.path, NOW_S)
    assert (found.state, found.last_s, found.ranks) == (State.RUNNING, NOW_S, 2)
    assert found.program == "train.py --lr 1"
    assert found.name == "20260130-101500-train"
    assert len(found.recoveries) == 1
    assert any("the job is running" in remark.lower() for remark in found.remarks)
    assert "still running" in page(found)


@pytest.mark.parametrize(("code", "state"), [(0, State.DONE), (1, State.FAILED), (130, State.INTERRUPTED)])
def test_how_it_ended(run: RunDir, code: int, state: State) -> None:
    run.finish(code, "rank 1 hangs")
    found = look_back(run.path, NOW_S)
    assert (found.state, found.reason) == (state, "rank 1 hangs")
    assert found.last_s is not None
    assert found.last_s < NOW_S


def test_one_that_was_killed_says_so(run: RunDir) -> None:
    (run.path / "lock").unlink()
    found = look_back(run.path, NOW_S)
    assert found.state is State.CUT_OFF
    assert any("it was killed" in remark for remark in found.remarks)


def test_an_empty_directory_is_a_run_without_anything(tmp_path: Path) -> None:
    found = look_back(tmp_path, NOW_S)
    assert found.state is State.EMPTY
    assert "it has none of job.json" in found.remarks[0]
    assert "it has none of job.json" in page(found)


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such directory"):
        look_back(tmp_path / "no", NOW_S)


@pytest.mark.parametrize("name", ["journal", "recoveries.jsonl", "checkpoints.jsonl", "job.json", "result.json"])
@pytest.mark.parametrize("content", [b"", b"\x00\xff garbage\n", b'{"number": 1}\n', b'{"num', MAGIC[:-3] + b"9\n"])
def test_a_file_that_cannot_be_read_is_left_out_and_the_rest_is_drawn(run: RunDir, name: str, content: bytes) -> None:
    (run.path / name).write_bytes(content)
    found = look_back(run.path, NOW_S)
    assert page(found)
    if name != "recoveries.jsonl":
        assert len(found.recoveries) == 1


def test_damage_is_told(run: RunDir) -> None:
    run.recoveries.write_bytes(run.recoveries.read_bytes() + b'{"number": 1}\n{"numb')
    run.journal.write_bytes(b"everstep journal 9\n")
    found = look_back(run.path, NOW_S)
    assert len(found.recoveries) == 1
    assert any("Line 2 of recoveries.jsonl" in remark for remark in found.remarks)
    assert any("not a journal of this version" in remark for remark in found.remarks)
    assert len(found.remarks) == len(set(found.remarks))


def test_without_flight_records_it_says_that_lanes_are_empty(run: RunDir) -> None:
    assert any("No phase of a worker was recorded" in remark for remark in look_back(run.path, NOW_S).remarks)
