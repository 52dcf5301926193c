"""The directory of a run, looked back at: over, running, killed, in parts, of another version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from everstep.controller.job import Job, RunDir
from everstep.controller.journal import MAGIC, Journal
from everstep.core.config import JobConfig
from everstep.errors import ConfigError
from everstep.launch.client import Result
from everstep.launch.recorded import State, read_run
from everstep.wire.auth import Token

NOW_S = 4e9


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    run.create(Job("j-1", ("t.py",), str(tmp_path), {}, JobConfig(ranks=4), 4), Token.create())
    Journal.create(run.journal, JobConfig(ranks=4)).close()
    run.recoveries.touch()
    return run


@pytest.fixture
def abandoned(run: RunDir) -> RunDir:
    """Nobody holds its lock."""
    (run.path / "lock").unlink()
    return run


def test_one_that_is_over(abandoned: RunDir) -> None:
    abandoned.finish(1, "rank 1 hangs")
    found = read_run(abandoned.path, NOW_S)
    assert (found.state, found.result, found.ranks) == (State.OVER, Result(1, "rank 1 hangs"), 4)
    assert found.notes == ()
    assert found.run_s == 0.0


def test_one_that_runs_has_lasted_until_now(run: RunDir) -> None:
    found = read_run(run.path, NOW_S)
    assert found.state is State.RUNNING
    assert found.notes == ("the job is running: this is what is known so far",)
    assert found.run_s is not None
    assert 1e9 < found.run_s < NOW_S


def test_one_that_was_killed(abandoned: RunDir) -> None:
    found = read_run(abandoned.path, NOW_S)
    assert found.state is State.KILLED
    assert "it was killed" in found.notes[0]


def test_to_look_takes_the_lock_from_nobody(abandoned: RunDir) -> None:
    (abandoned.path / "lock").touch()
    assert not abandoned.running
    abandoned.lock()
    assert abandoned.running


def test_parts_of_one(tmp_path: Path) -> None:
    (tmp_path / "recoveries.jsonl").touch()
    found = read_run(tmp_path, NOW_S)
    assert found.notes[0] == "there is no job.json: these are parts of the directory of a run"
    assert "there is no journal" in found.notes[1]
    assert (found.run_s, found.ranks) == (None, None)


def test_one_of_another_version(abandoned: RunDir) -> None:
    abandoned.journal.write_bytes(MAGIC.replace(b"1", b"9"))
    abandoned.recoveries.write_bytes(b"{}\n")
    abandoned.checkpoints.write_bytes(b'{"step": 1')
    abandoned.result.write_bytes(b"[]")
    found = read_run(abandoned.path, NOW_S)
    assert found.state is State.OVER
    for words in (
        "result.json is of another version",
        "line 1 of recoveries.jsonl is of another version",
        "the last line of checkpoints.jsonl was never finished",
        "not a journal of this version",
    ):
        assert any(words in note for note in found.notes), words


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "there is no such directory"),
        (lambda path: path.touch(), "it is a file"),
        (lambda path: path.mkdir(), "it has none of job.json, journal, recoveries.jsonl"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path: Path, make: Callable[[Path], None], words: str) -> None:
    make(tmp_path / "x")
    with pytest.raises(ConfigError, match=f"x is not the directory of a run: {words}"):
        read_run(tmp_path / "x", NOW_S)


def test_one_that_cannot_be_read(abandoned: RunDir) -> None:
    abandoned.journal.unlink()
    abandoned.journal.mkdir()
    with pytest.raises(ConfigError, match="journal cannot be read: Is a directory"):
        read_run(abandoned.path, NOW_S)
