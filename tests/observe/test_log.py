"""`recoveries.jsonl` has each record once, wherever a controller was killed."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest
from tests.observe.conftest import RecordedJob

from everstep.core.machine import Machine
from everstep.observe.log import RecoveryLog
from everstep.observe.records import Recovery, encode, read_recoveries, shown


@pytest.fixture(scope="module")
def job() -> RecordedJob:
    """Three recoveries, the last with two failures."""
    job = RecordedJob(2, standbys=1)
    job.training()
    for _ in range(2):
        job.crash(1)
        job.recovered()
    job.crash(0)
    job.run()
    job.crash(1)
    job.recovered()
    assert len(job.records) == 3
    return job


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recoveries.jsonl"


def live(job: RecordedJob, path: Path, until: int) -> list[Recovery]:
    """A controller that reads its journal, and lives until this event; what it says is new."""
    log = RecoveryLog(path)
    machine = Machine(job.config)
    machine.start()
    found = [log.take(event, machine, machine.handle(event), time_s) for event, time_s in job.story[:until]]
    log.close()
    return [recovery for recovery in found if recovery is not None]


def test_what_is_written_is_read_back(job: RecordedJob, path: Path) -> None:
    assert live(job, path, len(job.story)) == job.records
    assert read_recoveries(path) == job.records
    assert path.read_bytes() == b"".join(map(encode, job.records))


def test_without_a_failure_there_is_nothing_to_read(path: Path) -> None:
    assert read_recoveries(path) == []
    RecoveryLog(path).close()
    assert read_recoveries(path) == []


def test_each_record_is_written_once_wherever_controllers_were_killed(job: RecordedJob, path: Path) -> None:
    said = []
    for until in range(len(job.story) + 1):
        said += live(job, path, until)
    assert said == job.records
    assert read_recoveries(path) == job.records


def test_a_record_that_a_kill_kept_from_the_file_is_written_by_the_next_controller(
    job: RecordedJob, path: Path
) -> None:
    path.write_bytes(encode(job.records[0]))
    assert live(job, path, len(job.story)) == job.records[1:]
    assert read_recoveries(path) == job.records


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_a_torn_line_is_not_read_and_is_written_again(job: RecordedJob, path: Path, kept: int) -> None:
    whole = encode(job.records[0])
    path.write_bytes(whole + encode(job.records[1])[:kept])
    assert read_recoveries(path) == job.records[:1]
    live(job, path, len(job.story))
    assert read_recoveries(path) == job.records


def test_a_full_disk_does_not_stop_the_job_and_loses_no_record(
    job: RecordedJob, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write, calls = os.write, []

    def full_at_first(fd: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[:100] if len(calls) == 2 else data)

    monkeypatch.setattr("everstep.observe.log.os.write", full_at_first)
    with caplog.at_level(logging.WARNING):
        live(job, path, len(job.story))
    assert read_recoveries(path) == job.records
    assert "cannot be written: No space left on device" in caplog.text


def test_the_status_shows_the_keys_of_the_file(job: RecordedJob) -> None:
    assert shown(None) is None
    found = shown(job.records[-1])
    assert isinstance(found, dict)
    assert found["outcome"] == "recovered"
    assert [failure["rank"] for failure in found["failures"]] == [0, 1]
