"""Lanes from flight records and the journal: what is there of a run is shown, and what cannot be read is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.controller.journal import Journal
from everstep.core.config import JobConfig
from everstep.core.events import Cause, Exited, Interrupted, NodeJoined, NodeLost, Registered, Verdict
from everstep.errors import ConfigError
from everstep.observe.flight import read_lanes
from everstep.observe.notes import CODEC, MAGIC, Chunk, Clock, Entry, Gone, Note, Opened, flight_path, pack
from everstep.types import Mark, NodeId, WorkerId
from everstep.wire.records import RecordFile

S = 1_000_000_000
W0, W1 = WorkerId(0), WorkerId(1)


def chunk(worker: int, *notes: tuple[int, int, Mark], rank: int | None = 0, sample: bool = False) -> Chunk:
    """Each note: second, step, mark."""
    data = b"".join(pack(Note(at * S, step, 1, 0, mark)) for at, step, mark in notes)
    return Chunk(worker, rank, sample, data)


def write(run_dir: Path, *entries: Entry, node: str = "a", first: bool = True) -> Path:
    path = flight_path(run_dir, NodeId(node))
    path.parent.mkdir(parents=True, exist_ok=True)
    file = RecordFile.create(path, MAGIC) if first else RecordFile(path, path.stat().st_size)
    file.append(*map(CODEC.encode, entries))
    file.close()
    return path


def opened(node: str = "a", wall_s: float = 1000.0) -> Opened:
    return Opened(node, "host", 1, 0, wall_s)


def phases(run_dir: Path, lane: int = 0) -> list[tuple[str, float, float | None]]:
    return [(span.phase, span.start_s, span.end_s) for span in read_lanes(run_dir)[lane].spans]


def test_a_run_of_which_there_is_nothing_has_no_lanes(tmp_path: Path) -> None:
    assert read_lanes(tmp_path) == ()


def test_a_phase_ends_where_the_next_one_begins_or_where_notes_were_left_out(tmp_path: Path) -> None:
    notes = ((1, 0, Mark.FORWARD), (2, 0, Mark.BACKWARD), (3, 0, Mark.END), (7, 4, Mark.FORWARD))
    write(tmp_path, opened(), chunk(0, *notes))
    assert phases(tmp_path) == [("FORWARD", 1001, 1002), ("BACKWARD", 1002, 1003), ("FORWARD", 1007, None)]


def test_what_was_written_twice_counts_once_and_order_does_not_matter(tmp_path: Path) -> None:
    forward, end, following = (1, 0, Mark.FORWARD), (2, 0, Mark.END), (2, 1, Mark.FORWARD)
    write(tmp_path, opened(), chunk(0, following), chunk(0, forward, sample=True), chunk(0, forward, end))
    assert phases(tmp_path) == [("FORWARD", 1001, 1002), ("FORWARD", 1002, None)]


def test_a_stop_does_not_cut_an_update_short(tmp_path: Path) -> None:
    notes = ((1, 6, Mark.COMMITTED), (2, 6, Mark.STOP), (3, 7, Mark.IDLE), (5, 7, Mark.RESET))
    write(tmp_path, opened(), chunk(0, *notes))
    assert phases(tmp_path) == [("COMMITTED", 1001, 1003), ("STOP", 1003, 1005), ("RESET", 1005, None)]


def test_nodes_are_brought_to_the_clock_of_the_controller(tmp_path: Path) -> None:
    note = (10, 0, Mark.FORWARD)
    write(tmp_path, opened("a"), Clock(0, 1000.0, 0.001), chunk(0, note), node="a")
    write(tmp_path, opened("b", wall_s=7.0), chunk(1, note, rank=1), Clock(0, 990.0, 0.001), node="b")
    assert [lane.spans[0].start_s for lane in read_lanes(tmp_path)] == [1010, 1000]


def test_each_agent_of_a_node_has_its_own_clock(tmp_path: Path) -> None:
    write(tmp_path, opened(wall_s=1000.0), chunk(0, (1, 0, Mark.FORWARD)))
    write(tmp_path, opened(wall_s=2000.0), chunk(1, (1, 0, Mark.FORWARD)), first=False)
    assert [lane.spans[0].start_s for lane in read_lanes(tmp_path)] == [1001, 2001]


def test_only_what_lies_within_the_given_time_is_read(tmp_path: Path) -> None:
    write(tmp_path, opened(), chunk(0, *((at, at, Mark.FORWARD) for at in range(10))))
    [lane] = read_lanes(tmp_path, within=(1003.5, 1005.5))
    assert [span.step for span in lane.spans] == [3, 4, 5]


def test_a_torn_tail_costs_the_last_record_only(tmp_path: Path) -> None:
    path = write(tmp_path, opened(), chunk(0, (1, 0, Mark.FORWARD)), chunk(0, (2, 0, Mark.BACKWARD)))
    path.write_bytes(path.read_bytes()[:-3])
    assert phases(tmp_path) == [("FORWARD", 1001, None)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"everstep flight 2\nwhatever", "is not a flight record of this version"),
        (b"", "is not a flight record of this version"),
    ],
)
def test_a_file_of_another_version_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    write(tmp_path, opened()).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_lanes(tmp_path)


def test_a_mark_that_this_version_does_not_know_is_named(tmp_path: Path) -> None:
    data = pack(Note(S, 0, 0, 0, 99))
    path = write(tmp_path, opened(), Chunk(0, 0, sample=False, data=data))
    with pytest.raises(ConfigError, match=f"{path}.*another version.*99"):
        read_lanes(tmp_path)


# ── with the journal ─────────────────────────────────────────────────────────────────────────────────────


def journal(run_dir: Path, *events: object) -> list[float]:
    """A job with one rank and a standby; when each event came."""
    log = Journal.create(run_dir / "journal", JobConfig(1, standbys=1))
    joined = (NodeJoined(NodeId("a"), ("cpu:0", "cpu:1")), Registered(W0), Registered(W1))
    times = [log.append(event) for event in (*joined, *events)]  # type: ignore[arg-type]
    log.close()
    return times[len(joined) :]


def test_workers_of_which_no_file_is_left_are_known_from_the_journal(tmp_path: Path) -> None:
    [died_s] = journal(tmp_path, Exited(W0, -9, "killed by SIGKILL in FORWARD of step 3\nmore"))
    first = read_lanes(tmp_path)[0]
    assert (first.worker, first.rank, first.node, first.spans) == (0, 0, "a", ())
    assert (first.end_s, first.end) == (died_s, "killed by SIGKILL in FORWARD of step 3")


def test_a_verdict_says_more_than_the_kill_that_follows_it(tmp_path: Path) -> None:
    _, died_s = journal(tmp_path, Verdict(W0, Cause.HANG, "has not moved for 2.5 s"), Exited(W0, -9, "killed"))
    lane = read_lanes(tmp_path)[0]
    assert (lane.end_s, lane.end) == (died_s, "hangs: has not moved for 2.5 s")


def test_the_agent_knows_best_when_a_worker_died(tmp_path: Path) -> None:
    journal(tmp_path, Exited(W0, -9, "killed by SIGKILL in FORWARD"))
    write(tmp_path, opened(), chunk(0, (1, 0, Mark.FORWARD)), Gone(0, 2 * S, "killed by SIGKILL"))
    lane = read_lanes(tmp_path)[0]
    assert (lane.end_s, lane.end) == (1002.0, "killed by SIGKILL in FORWARD")


def test_a_lost_node_ends_its_workers(tmp_path: Path) -> None:
    [lost_s] = journal(tmp_path, NodeLost(NodeId("a"), "its agent's connection ended"))
    ends = [(lane.end_s, lane.end) for lane in read_lanes(tmp_path)]
    assert ends == [(lost_s, "node a: its agent's connection ended")] * 2


def test_the_end_of_the_job_is_the_end_of_those_that_lived(tmp_path: Path) -> None:
    [ended_s] = journal(tmp_path, Interrupted())
    write(tmp_path, opened(), Gone(0, round((ended_s - 1000 + 0.5) * S), "killed by SIGKILL"))
    first, second = read_lanes(tmp_path)
    assert (first.end, second.end) == ("the job has ended", "the job has ended")
    assert first.end_s == pytest.approx(ended_s + 0.5, abs=1e-5)
    assert second.end_s == ended_s


def test_workers_of_a_job_under_way_have_no_end(tmp_path: Path) -> None:
    journal(tmp_path)
    assert [(lane.rank, lane.end_s, lane.end) for lane in read_lanes(tmp_path)] == [(0, None, ""), (None, None, "")]
