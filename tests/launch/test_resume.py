"""What a job begins with, with real checkpoint directories."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.checkpoint.conftest import Place, place, point

from everstep.checkpoint import names
from everstep.controller.job import Job, RunDir
from everstep.core.config import JobConfig
from everstep.errors import ConfigError
from everstep.launch.resume import Wish, begin, hold
from everstep.wire.auth import Token

__all__ = ["place"]  # a fixture


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job("job", ("train.py",), str(tmp_path), {}, JobConfig(2), 2)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def wish(resume: str | None = None, every: str = "auto", directory: Path | None = None) -> Wish:
    return Wish(every, keep=3, keep_every=0, grace_s=1.0, directory=directory, resume=resume)


def test_a_new_job_begins_at_the_start_as_the_first_of_its_directory(job: Job, run: RunDir) -> None:
    beginning = begin(job, run, wish())
    assert beginning.job.config.resume == ()
    assert beginning.job.checkpoints.directory == str(run.path / "checkpoints")
    assert beginning.job.checkpoints.attempt == 1
    assert begin(job, run, wish()).job.checkpoints.attempt == 2


def test_a_job_without_checkpoints_makes_no_directory(job: Job, run: RunDir) -> None:
    assert begin(job, run, wish(every="off")).job.checkpoints.directory == ""
    assert not (run.path / "checkpoints").exists()


def test_latest_is_the_newest_good_one_with_the_older_ones_behind_it(job: Job, run: RunDir, place: Place) -> None:
    for step in (10, 20, 30):
        place.commit(point(step))
    place.file(point(30), 1).write_bytes(b"torn")
    beginning = begin(job, run, wish("latest"))
    assert beginning.job.config.resume == (point(20), point(10))
    assert beginning.job.checkpoints.attempt == 2
    assert "goes on from the checkpoint of step 20" in beginning.note


def test_a_step_is_found_and_later_ones_are_no_way_back(job: Job, run: RunDir, place: Place) -> None:
    for at in (point(10), point(20), point(30), point(15, attempt=2)):
        place.commit(at)
    assert begin(job, run, wish("20")).job.config.resume == (point(20), point(10))
    assert begin(job, run, wish("15")).job.config.resume == (point(15, attempt=2), point(10))


def test_a_directory_may_be_that_of_another_run_or_one_checkpoint(job: Job, tmp_path: Path, place: Place) -> None:
    for step in (10, 20):
        place.commit(point(step))
    other = RunDir(tmp_path / "other")
    beginning = begin(job, other, wish(str(tmp_path)))
    assert beginning.job.config.resume == (point(20), point(10))
    assert beginning.job.checkpoints.directory == str(place.directory)
    one = str(place.directory / names.directory_of(point(10)))
    assert begin(job, other, wish(one)).job.config.resume == (point(10),)


def test_without_new_checkpoints_the_directory_is_only_read(job: Job, run: RunDir, place: Place) -> None:
    place.commit(point(10))
    beginning = begin(job, run, wish("latest", every="off"))
    assert beginning.job.config.resume == (point(10),)
    assert not (place.directory / names.ATTEMPTS).exists()


@pytest.mark.parametrize(
    ("resume", "steps", "why"),
    [
        ("latest", (), "--resume latest: there is no good checkpoint in"),
        ("25", (10, 20), "--resume 25: no good checkpoint in .* is that; there are steps 10, 20"),
        ("nowhere", (10,), "nowhere is not a directory"),
    ],
)
def test_what_is_not_there_is_named(
    job: Job, run: RunDir, place: Place, resume: str, steps: tuple[int, ...], why: str
) -> None:
    for step in steps:
        place.commit(point(step))
    with pytest.raises(ConfigError, match=why):
        begin(job, run, wish(resume))


def test_a_job_has_one_checkpoint_directory(job: Job, run: RunDir, place: Place) -> None:
    place.commit(point(10))
    with pytest.raises(ConfigError, match="a job has one checkpoint directory"):
        begin(job, run, wish(str(place.directory), directory=run.path / "elsewhere"))


def test_a_directory_that_a_running_job_saves_to_is_refused(job: Job, tmp_path: Path, place: Place) -> None:
    place.commit(point(10))
    one, other = RunDir(tmp_path / "one"), RunDir(tmp_path / "other")
    lock = hold(begin(job, one, wish(str(place.directory))).job.checkpoints)
    assert lock is not None
    again = begin(job, other, wish(str(place.directory)))
    with pytest.raises(ConfigError, match=f"another job that is running saves its checkpoints to {place.directory}"):
        hold(again.job.checkpoints)
    assert hold(begin(job, other, wish(str(place.directory), every="off")).job.checkpoints) is None
    os.close(lock)  # as the end of its process does
    lock = hold(again.job.checkpoints)
    assert lock is not None
    os.close(lock)
    assert again.note.endswith("new ones go there too, and of all 3 stay")


def test_a_directory_that_cannot_be_made_is_named(job: Job, run: RunDir) -> None:
    (run.path / "taken").write_text("a file")
    with pytest.raises(ConfigError, match=r"taken: .*; give --checkpoint-dir another one, or --checkpoint-every off"):
        begin(job, run, wish(directory=run.path / "taken"))


def test_what_the_run_before_has_left_is_put_away(job: Job, run: RunDir, place: Place) -> None:
    run.create(begin(job, run, wish()).job, Token.create())
    for path in (run.journal, run.recoveries, run.result, run.logs / "w0.log"):
        path.write_text("of the first run")
    place.commit(point(10))
    os.close(run._lock)  # as the end of its process does
    again = RunDir(run.path)
    beginning = begin(job, again, wish())
    assert beginning.job.config.resume == (point(10),)
    again.create(beginning.job, Token.create())
    assert not any(path.exists() for path in (again.journal, again.recoveries, again.result, again.logs / "w0.log"))
    former = again.former / "001"
    assert (former / "journal").read_text() == (former / "logs" / "w0.log").read_text() == "of the first run"
    assert place.file(point(10), 0).exists()
    assert again.read_job() == beginning.job
