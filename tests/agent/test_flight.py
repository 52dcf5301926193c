"""The file of a node's flight recorder: what is written, what an earlier agent has left, and how large it becomes."""

from __future__ import annotations

import asyncio
import itertools
import resource
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from everstep.agent.flight import Flight
from everstep.agent.ring import RingReader, RingWriter
from everstep.agent.shm import SharedDirectory
from everstep.agent.tape import AFTER, BEFORE
from everstep.agent.thinning import sample_bytes
from everstep.observe.flight import read_lanes
from everstep.observe.notes import CODEC, KIND, MAGIC, NOTE, flight_path
from everstep.observe.timeline import Lane
from everstep.types import Mark, NodeId, Rank, WorkerId
from everstep.wire.records import scan

NODE = NodeId("a/b")
DEADLINE_S = 20.0
PHASES = (Mark.FORWARD, Mark.BACKWARD, Mark.READY, Mark.COMMITTED)


@dataclass
class Worker:
    id: WorkerId
    rank: Rank | None
    ring: RingReader
    writer: RingWriter

    def steps(self, *steps: int) -> None:
        for step in steps:
            for mark in PHASES:
                self.writer.note(mark, step, 0, 1)
            self.writer.note(Mark.IDLE, step + 1, 0, 1)


class Node:
    """An agent with workers that write their notes when the test says so."""

    def __init__(self, run_dir: Path, shared: SharedDirectory) -> None:
        self.run_dir = run_dir
        self.shared = shared
        self.workers: dict[WorkerId, Worker] = {}

    @property
    def path(self) -> Path:
        return flight_path(self.run_dir, NODE)

    def add(self, number: int, rank: int | None = None) -> Worker:
        ring = RingReader.create(self.shared, WorkerId(number))
        worker = Worker(WorkerId(number), None if rank is None else Rank(rank), ring, RingWriter(ring.path))
        self.workers[worker.id] = worker
        return worker

    def record(self, act: Callable[[Flight], Awaitable[None] | None], limit_bytes: int = 1 << 20) -> None:
        """What happens while one agent records."""

        async def run() -> None:
            flight = Flight(self.run_dir, NODE, self.workers, limit_bytes)
            if (work := act(flight)) is not None:
                async with asyncio.timeout(DEADLINE_S):
                    await work
            flight.close()

        asyncio.run(run())

    def lane(self, number: int) -> Lane:
        [lane] = [lane for lane in read_lanes(self.run_dir) if lane.worker == number]
        return lane

    def sampled_bytes(self) -> int:
        return sum(sample_bytes(CODEC.decode(body)) for _, body in scan(self.path, MAGIC, KIND)[0])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with SharedDirectory("job", NODE, tmp_path) as shared:
        node = Node(tmp_path / "run", shared)
        yield node
        for worker in node.workers.values():
            worker.writer.close()
            worker.ring.close()


def test_notes_come_to_the_file_with_worker_rank_and_node(node: Node) -> None:
    node.add(3, rank=1).steps(0)
    node.record(Flight.look)
    lane = node.lane(3)
    assert (lane.rank, lane.node, lane.end_s) == (1, NODE, None)
    assert [span.phase for span in lane.spans] == ["SPAWNED", "FORWARD", "BACKWARD", "READY", "COMMITTED", "IDLE"]
    assert [span.step for span in lane.spans] == [-1, 0, 0, 0, 0, 1]


def test_the_last_notes_of_a_dead_worker_are_there_with_its_end(node: Node) -> None:
    worker = node.add(3)
    worker.steps(0, 1)

    def die(flight: Flight) -> None:
        flight.look()
        worker.writer.note(Mark.FORWARD, 2, 0, 1)
        flight.ended(worker, time.monotonic_ns(), "killed by SIGKILL")

    node.record(die)
    lane = node.lane(3)
    assert lane.end == "killed by SIGKILL"
    assert (lane.spans[-1].phase, lane.spans[-1].step, lane.spans[-1].end_s) == ("FORWARD", 2, None)
    assert lane.end_s is not None
    assert lane.spans[-1].start_s <= lane.end_s


def test_the_next_agent_of_the_node_writes_on_behind_a_torn_tail(node: Node) -> None:
    node.add(1).steps(0)
    node.record(Flight.look)
    with node.path.open("ab") as file:
        file.write(b"\x50\0\0\0torn")
    del node.workers[WorkerId(1)]
    node.add(2).steps(0)
    node.record(Flight.look)
    assert len(node.lane(1).spans) == len(node.lane(2).spans) == 6


def test_old_samples_are_thinned_out_and_what_belongs_to_failures_stays(node: Node) -> None:
    worker, limit_bytes, last = node.add(0, rank=0), 20_000, 2000
    sizes = []

    async def train(flight: Flight) -> None:
        for step in range(last):
            worker.steps(step)
            if step == 150:
                worker.writer.note(Mark.STOP, 151, 0, 2)
            if step % 100 == 99:
                flight.look()
                sizes.append(node.sampled_bytes())
                while flight.thinning:
                    flight.look()  # what comes meanwhile is not lost
                    await asyncio.sleep(0)

    node.record(train, limit_bytes=limit_bytes)
    steps = [span.step for span in node.lane(0).spans if span.phase == "COMMITTED"]
    assert len(steps) == len(set(steps)) < last / 2
    assert set(range(AFTER)) < set(steps), "the first ones"
    assert set(range(151 - BEFORE + 1, 151 + AFTER)) < set(steps), "those around the failure"
    assert max(sizes) <= limit_bytes + 100 * 6 * NOTE.size, "no more than what came since the look before"
    gaps = [second - first for first, second in itertools.pairwise(steps) if 160 < first < last - 200]
    assert len(set(gaps)) == 1, "what is left is spread evenly"
    assert [path.name for path in node.path.parent.iterdir()] == [node.path.name]


def test_a_disk_that_is_full_ends_the_recording_only(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    worker = node.add(0)
    worker.steps(0)
    node.record(Flight.look)
    worker.steps(*range(1, 100))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (node.path.stat().st_size + 200, limits[1]))
    try:
        node.record(Flight.look)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert "the flight record of this node ends here" in caplog.text
    assert len(node.lane(0).spans) == 6


def test_without_a_place_for_its_file_nothing_is_recorded(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.run_dir.write_text("a file")
    worker = node.add(0)
    node.record(lambda flight: flight.ended(worker, 0, "exited"))
    assert "no flight record of this node is written" in caplog.text
