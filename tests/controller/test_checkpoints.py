"""The checkpoints of a job with a real machine, a real store and real receipts. Agents are played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.checkpoint.conftest import Place, place, point
from tests.core.test_machine import Job

from everstep.checkpoint import catalog
from everstep.controller.checkpoints import Checkpointer
from everstep.controller.job import CheckpointPlan
from everstep.core.events import Checkpoint, Event, Persisted, Sealed
from everstep.observe.checkpoints import CheckpointRecord, Fate, read_checkpoints
from everstep.types import NodeId, Rank, Step
from everstep.wire.messages import FromController, NoSlots, Persist, Receipt, Schedule, Skipped, Tell

__all__ = ["place"]  # a fixture

N0, N1 = NodeId("n0"), NodeId("n1")
DEADLINE_S = 20.0


async def soon(condition: Callable[[], bool]) -> None:
    """A thread does it."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  what it waits for is on disk
            await asyncio.sleep(0.005)


class Scene:
    """Two ranks on two nodes, in training."""

    def __init__(self, place: Place, every: str) -> None:
        self.place = place
        self.job = Job(ranks=2, nodes=2).training()
        self.sent: list[tuple[NodeId, FromController]] = []
        self.records = place.root / "checkpoints.jsonl"
        plan = CheckpointPlan(str(place.directory), every, keep=2, attempt=1)
        machine = self.job.machine
        self.checkpoints = Checkpointer(plan, 2, self.records, lambda: machine, self._send, self._take)

    def _send(self, node: NodeId, message: FromController) -> None:
        self.sent.append((node, message))

    def _take(self, event: Event) -> None:
        self.job.tell(event)

    def seal(self, at: Checkpoint, *ranks: int, slot: int = 0) -> None:
        for rank in ranks or (0, 1):
            sealed = Sealed(Rank(rank), self.job.node_of(rank), at, slot, 100, 0.25 * (rank + 1), 5.0 + rank)
            self.job.tell(sealed)
            self.checkpoints.on_event(sealed)

    def write(self, at: Checkpoint) -> None:
        """The agents do it."""
        for receipt in self.place.persist(at):
            self.checkpoints.on_receipt(receipt)

    async def committed(self, at: Checkpoint) -> None:
        await soon(lambda: (self.status["committed"] or {}).get("step") == at.step)

    def orders(self) -> list[tuple[NodeId, Persist]]:
        return [(node, message) for node, message in self.sent if isinstance(message, Persist)]

    def schedules(self) -> list[Schedule]:
        tells = [message for _, message in self.sent if isinstance(message, Tell)]
        return [tell.message for tell in tells if isinstance(tell.message, Schedule)]

    @property
    def status(self) -> dict[str, Any]:
        return self.checkpoints.status()

    def written(self) -> list[CheckpointRecord]:
        return read_checkpoints(self.records) if self.records.exists() else []

    def fates(self) -> list[tuple[int, Fate, str]]:
        return [(record.step, record.fate, record.reason) for record in self.written()]


def play(place: Place, act: Any, every: str = "10") -> None:
    async def run() -> None:
        scene = Scene(place, every)
        work: Coroutine[Any, Any, None] = act(scene)
        await work

    asyncio.run(run())


def test_what_is_complete_is_persisted_by_each_node_and_committed(place: Place) -> None:
    async def act(scene: Scene) -> None:
        scene.seal(point(10), 0)
        assert scene.orders() == []
        scene.seal(point(10), 1)
        nodes = {
            scene.job.node_of(0): Persist(point(10), (Rank(0),)),
            scene.job.node_of(1): Persist(point(10), (Rank(1),)),
        }
        assert dict(scene.orders()) == nodes
        assert scene.status["persisting"] == [10]
        scene.write(point(10))
        await scene.committed(point(10))
        assert Persisted(point(10)) in scene.job.log
        (found,) = catalog.find(place.store)
        assert found.commit is not None
        (record,) = scene.written()
        assert (record.fate, record.k0_s, record.time_s, record.bytes) == (Fate.COMMITTED, 0.5, 5.0, 200)
        assert (record.every, record.why) == (10, "asked for: every 10 steps")

    play(place, act)


def test_old_ones_go_when_newer_ones_are_committed(place: Place) -> None:
    async def act(scene: Scene) -> None:
        for turn, step in enumerate((10, 20, 30)):
            scene.seal(point(step), slot=turn % 2)
            scene.write(point(step))
            await scene.committed(point(step))
        await soon(lambda: len(catalog.find(place.store)) == 2)
        assert [found.checkpoint for found in catalog.find(place.store)] == [point(30), point(20)]

    play(place, act)


def test_a_share_that_cannot_be_written_leaves_it_in_memory_until_the_next_one(place: Place) -> None:
    async def act(scene: Scene) -> None:
        scene.seal(point(10))
        scene.checkpoints.on_receipt(Receipt(Rank(1), point(10), error="No space left on device"))
        assert scene.status["error"] == "step 10: rank 1: No space left on device"
        assert scene.fates() == [(10, Fate.SEALED, "rank 1: No space left on device")]
        scene.write(point(10))
        assert not catalog.find(place.store) or catalog.find(place.store)[0].commit is None
        scene.seal(point(20), slot=1)
        scene.write(point(20))
        await scene.committed(point(20))
        assert scene.status["error"] == ""

    play(place, act)


def test_a_commit_that_fails_is_an_error_and_no_end(place: Place) -> None:
    async def act(scene: Scene) -> None:
        scene.seal(point(10))
        receipts = place.persist(point(10))
        place.file(point(10), 1).unlink()
        for receipt in receipts:
            scene.checkpoints.on_receipt(receipt)
        await scene.checkpoints.finish(DEADLINE_S)
        ((step, fate, reason),) = scene.fates()
        assert (step, fate) == (10, Fate.SEALED)
        assert "--checkpoint-dir must be on a file system that all nodes share" in reason

    play(place, act)


def test_a_node_that_is_lost_takes_its_part_with_it(place: Place) -> None:
    async def act(scene: Scene) -> None:
        scene.seal(point(10))
        scene.checkpoints.on_node_lost(scene.job.node_of(1))
        assert scene.fates() == [(10, Fate.SEALED, "n1 was lost before rank 1 was durable")]
        assert scene.status["persisting"] == []

    play(place, act)


def test_what_was_overtaken_or_left_out_is_told(place: Place) -> None:
    async def act(scene: Scene) -> None:
        scene.seal(point(10), 0)
        scene.checkpoints.on_skipped(Skipped(Rank(1), Step(10), "both slots are busy"))
        for rank in (0, 1):
            scene.checkpoints.on_skipped(Skipped(Rank(rank), Step(20), "both slots are busy"))
        assert scene.status["busy"]
        assert scene.status["skipped"] == 2
        scene.seal(point(30), slot=1)
        assert not scene.status["busy"]
        assert scene.fates() == [
            (10, Fate.INCOMPLETE, "rank 1 has not sealed it: both slots are busy"),
            (20, Fate.SKIPPED, "both slots are busy"),
        ]

    play(place, act)


def test_the_end_waits_for_what_is_on_its_way_and_then_gives_up(place: Place) -> None:
    async def act(scene: Scene) -> None:
        scene.seal(point(10))
        waiting = asyncio.create_task(scene.checkpoints.finish(DEADLINE_S))
        await asyncio.sleep(0)
        assert not waiting.done()
        scene.write(point(10))
        await waiting
        assert scene.fates() == [(10, Fate.COMMITTED, "")]
        scene.seal(point(20), slot=1)
        await scene.checkpoints.finish(0.01)
        assert scene.fates()[1][:2] == (20, Fate.SEALED)
        assert "within 0.01 s of the end of the job" in scene.fates()[1][2]

    play(place, act)


def test_a_checkpoint_before_the_end_is_a_new_one(place: Place) -> None:
    async def act(scene: Scene) -> None:
        scene.seal(point(7), 0)
        saving = asyncio.create_task(scene.checkpoints.save(DEADLINE_S))
        await asyncio.sleep(0)
        assert [schedule.soon for schedule in scene.schedules()] == [True, True]
        scene.checkpoints.brief([scene.job.worker(0)])
        assert scene.schedules()[-1].soon, "who comes meanwhile is asked too"
        scene.seal(point(7), 1)
        scene.write(point(7))
        await scene.committed(point(7))
        assert not saving.done(), "it was begun before"
        scene.seal(point(8), slot=1)
        scene.write(point(8))
        assert await saving

    play(place, act)


def test_a_job_that_takes_none_has_none_to_save(place: Place) -> None:
    async def act(scene: Scene) -> None:
        assert not await scene.checkpoints.save(DEADLINE_S)
        scene.checkpoints.brief([scene.job.worker(0)])
        assert scene.sent == []

    play(place, act, every="off")


def test_a_restarted_controller_persists_again_what_is_not_committed(place: Place) -> None:
    async def act(scene: Scene) -> None:
        scene.seal(point(10))
        scene.job.tell(Persisted(point(5)))
        machine = scene.job.machine
        plan = CheckpointPlan(str(place.directory), "10", attempt=1)
        scene.checkpoints = Checkpointer(plan, 2, scene.records, lambda: machine, scene._send, scene._take)
        scene.sent.clear()
        scene.seal(point(10))
        assert len(scene.orders()) == 2
        scene.seal(point(5), slot=1)
        assert len(scene.orders()) == 2, "that one is committed"

    play(place, act)


def test_a_checkpoint_before_the_end_is_asked_for_again_when_a_slot_is_free(place: Place) -> None:
    async def act(scene: Scene) -> None:
        scene.seal(point(10))
        saving = asyncio.create_task(scene.checkpoints.save(DEADLINE_S))
        await asyncio.sleep(0)
        scene.checkpoints.on_skipped(Skipped(Rank(1), Step(11), "both slots are busy"))
        scene.sent.clear()
        scene.write(point(10))
        await scene.committed(point(10))
        assert [schedule.soon for schedule in scene.schedules()] == [True, True]
        scene.checkpoints.on_skipped(Skipped(Rank(1), Step(12), "its slots are not there yet"))
        assert [schedule.soon for schedule in scene.schedules()] == [True] * 4
        scene.seal(point(13), slot=1)
        scene.write(point(13))
        assert await saving

    play(place, act)


def test_a_new_interval_does_not_call_off_the_checkpoint_before_the_end(place: Place) -> None:
    async def act(scene: Scene) -> None:
        for now in range(6):
            scene.checkpoints.tick(float(now), now)
        scene.seal(point(5))
        saving = asyncio.create_task(scene.checkpoints.save(DEADLINE_S))
        await asyncio.sleep(0)
        scene.sent.clear()
        scene.write(point(5))
        await scene.committed(point(5))
        told = scene.schedules()
        assert told
        assert all(schedule.every and schedule.soon for schedule in told)
        saving.cancel()

    play(place, act, every="auto")


def test_a_job_that_was_not_told_to_take_any_takes_none_where_a_node_has_no_room(place: Place) -> None:
    async def act(scene: Scene) -> None:
        scene.checkpoints.on_no_slots(NoSlots(Rank(1), "/dev/shm is full"))
        for now in range(9):
            scene.checkpoints.tick(float(now), now)
        scene.checkpoints.brief([scene.job.worker(0)])
        assert scene.sent == []
        assert scene.status["error"] == "rank 1: /dev/shm is full"
        assert not await scene.checkpoints.save(DEADLINE_S)

    play(place, act, every="auto")
