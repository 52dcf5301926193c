"""The records of a run as others see them: each once, also those of a line that is written in two pieces."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.observe.conftest import RecordedJob

from everstep.observe.checkpoints import CheckpointRecord, Fate
from everstep.observe.ledger import Ledger
from everstep.observe.records import Decision, Outcome, encode


def checkpoint(step: int, fate: Fate = Fate.COMMITTED) -> bytes:
    record = CheckpointRecord(
        step=step,
        generation=1,
        attempt=0,
        fate=fate,
        reason="",
        time_s=1000.0 + step,
        k0_s=0.02,
        sealed_s=1000.1 + step,
        k1_s=0.5 if fate is Fate.COMMITTED else None,
        committed_s=1000.6 + step if fate is Fate.COMMITTED else None,
        bytes=4096,
        every=10,
        why="asked for",
    )
    return msgspec.json.encode(record) + b"\n"


@pytest.fixture
def recoveries(tmp_path: Path) -> Path:
    return tmp_path / "recoveries.jsonl"


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints.jsonl"


@pytest.fixture
def ledger(recoveries: Path, checkpoints: Path) -> Ledger:
    return Ledger(recoveries, checkpoints)


def recovery() -> bytes:
    job = RecordedJob(ranks=2, standbys=0)
    job.training(1)
    job.crash(1)
    job.recovered()
    return encode(job.record)


def test_a_run_without_records_has_none(ledger: Ledger) -> None:
    ledger.refresh()
    assert (list(ledger.recoveries), list(ledger.checkpoints), ledger.last_committed) == ([], [], None)


def test_each_recovery_is_counted_once(ledger: Ledger, recoveries: Path) -> None:
    recoveries.write_bytes(recovery())
    ledger.refresh()
    ledger.refresh()
    assert ledger.outcomes == {("EXIT", Decision.REDO, Outcome.RECOVERED): 1}
    with recoveries.open("ab") as file:
        file.write(recovery())
    ledger.refresh()
    assert ledger.outcomes.total() == ledger.recovery_s.count == len(ledger.recoveries) == 2
    assert ledger.steps_redone == 2


def test_a_line_that_is_still_written_comes_when_it_is_whole(ledger: Ledger, recoveries: Path) -> None:
    line = recovery()
    recoveries.write_bytes(line + line[:100])
    ledger.refresh()
    assert len(ledger.recoveries) == 1
    with recoveries.open("ab") as file:
        file.write(line[100:])
    ledger.refresh()
    assert len(ledger.recoveries) == 2


def test_the_newest_durable_checkpoint_is_known_among_others(ledger: Ledger, checkpoints: Path) -> None:
    checkpoints.write_bytes(
        checkpoint(10) + checkpoint(20) + checkpoint(30, Fate.SEALED) + checkpoint(40, Fate.SKIPPED)
    )
    ledger.refresh()
    assert ledger.last_committed is not None
    assert ledger.last_committed.step == 20
    assert ledger.fates == {Fate.COMMITTED: 2, Fate.SEALED: 1, Fate.SKIPPED: 1}
    assert (ledger.k0_s.count, ledger.k1_s.count) == (3, 2)


def test_a_line_that_is_no_record_is_told_and_left_out(
    ledger: Ledger, checkpoints: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints.write_bytes(checkpoint(10) + b'{"step": "x"}\n' + checkpoint(20))
    ledger.refresh()
    assert [record.step for record in ledger.checkpoints] == [10, 20]
    assert "checkpoints.jsonl has a line near byte" in caplog.text
