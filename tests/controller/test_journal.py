"""The journal gives back what it was given, survives a kill in the middle of a record, and names damage."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.controller.journal import MAGIC, Journal, read
from everstep.controller.replay import replay, survivors, walk
from everstep.core.config import JobConfig
from everstep.core.events import (
    Cause,
    Checkpoint,
    Event,
    Exited,
    Interrupted,
    JobPhase,
    NodeJoined,
    NodeLost,
    Persisted,
    Position,
    Protected,
    Registered,
    Restarted,
    Restored,
    Stopped,
    Verdict,
)
from everstep.core.machine import Machine
from everstep.errors import ConfigError
from everstep.types import Coordinate, Generation, NodeId, Rank, Step, WorkerId, WorkerPhase

CONFIG = JobConfig(2, standbys=0)
W0, W1 = WorkerId(0), WorkerId(1)
START: tuple[Event, ...] = (
    NodeJoined(NodeId("a"), ("cpu:0", "cpu:1")),
    Registered(W0),
    Registered(W1),
    Protected(W0, Coordinate(0, 0), "m"),
    Protected(W1, Coordinate(1, 0), "m"),
)
EVENTS: tuple[Event, ...] = (
    *START,
    Verdict(W0, Cause.HANG, "others wait", Position(WorkerPhase.FORWARD, Step(3)), "train.py:3"),
    Exited(W0, -9, "killed by SIGKILL", moved=True),
    Stopped(W1, Generation(2), Position(WorkerPhase.READY, Step(3))),
    Persisted(Checkpoint(Step(2), Generation(1))),
    NodeLost(NodeId("b"), "silent", 3.0, ((W1, Position(WorkerPhase.IDLE, Step(3))),)),
    Restored(W1, Generation(1), Step(3), bytes=4096),
    Restarted(),
    Interrupted(),
)


def write(path: Path, events: tuple[Event, ...]) -> None:
    journal = Journal.create(path, CONFIG)
    for event in events:
        journal.append(event)
    journal.close()


def test_it_gives_back_every_event_in_order(tmp_path: Path) -> None:
    write(tmp_path / "journal", EVENTS)
    assert [record.entry for record in read(tmp_path / "journal")] == [CONFIG, *EVENTS]


@given(cut=st.integers(0, 2000))
def test_a_torn_tail_costs_only_the_last_record(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("torn") / "journal"
    write(path, EVENTS)
    whole = path.read_bytes()
    first_end = len(MAGIC) + 12 + int.from_bytes(whole[len(MAGIC) : len(MAGIC) + 4], "little")
    path.write_bytes(whole[: max(first_end, len(whole) - cut)])
    journal, records = Journal.reopen(path)
    kept = [record.entry for record in records]
    assert kept == [CONFIG, *EVENTS][: len(kept)]
    journal.append(Interrupted())
    journal.close()
    assert [record.entry for record in read(path)] == [*kept, Interrupted()]


def test_damage_in_the_middle_is_named_and_nothing_after_it_is_believed(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    write(path, EVENTS)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"damaged|unknown record"):
        list(read(path))


def test_something_else_is_not_taken_for_a_journal(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b"hello")
    with pytest.raises(ConfigError, match="not a journal"):
        list(read(tmp_path / "journal"))


def test_a_replay_ends_in_the_state_of_the_machine_that_wrote_it(tmp_path: Path) -> None:
    machine = Machine(CONFIG)
    machine.start()
    for event in EVENTS:
        machine.handle(event)
    write(tmp_path / "journal", EVENTS)
    *_, (_, replayed, _) = walk(read(tmp_path / "journal"))
    assert replayed.freeze() == machine.freeze()


def test_the_replay_tool_says_phases_and_reasons(tmp_path: Path) -> None:
    write(tmp_path / "journal", (*START, Exited(W0, -9, "killed by SIGKILL"), Exited(W0, -9), Exited(WorkerId(9), 1)))
    lines = list(replay(tmp_path / "journal"))
    assert [line.phase for line in lines][-3] is JobPhase.STOPPING
    assert any("killed by SIGKILL" in note for note in lines[-3].notes)
    assert lines[-1].notes == ()


def test_what_the_table_does_not_know_is_refused_and_the_job_goes_on(tmp_path: Path) -> None:
    write(tmp_path / "journal", (*START, Stopped(W1, Generation(7), Position(WorkerPhase.IDLE, Step(0)))))
    line = list(replay(tmp_path / "journal"))[-1]
    assert line.phase is JobPhase.RESUMING
    assert "refused" in line.notes[0]


def test_a_journal_tells_where_the_survivors_of_each_generation_were(tmp_path: Path) -> None:
    story = (*START, Exited(W0, -9), Stopped(W1, Generation(2), Position(WorkerPhase.READY, Step(3))))
    write(tmp_path / "journal", story)
    assert survivors(read(tmp_path / "journal")) == {2: {Rank(1): Position(WorkerPhase.READY, Step(3))}}
