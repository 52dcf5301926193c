"""An agent with real workers, slots and a real persister. Its controller is scripted, as in `test_agent`."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from tests.agent.test_agent import W0, W1, Scene, scene_of, shared, soon, welcome

from everstep.checkpoint import names
from everstep.checkpoint.slot import SlotReader
from everstep.core.events import Checkpoint, Sealed
from everstep.types import Generation, Rank, Step
from everstep.wire.messages import Fence, Leaving, NoSlots, Notice, Persist, Receipt, Skipped, Welcome

if TYPE_CHECKING:
    from tests.agent.conftest import Run

__all__ = ["welcome"]  # a fixture

R3 = Rank(3)
SAVER = """
from peer import *
from everstep.checkpoint.manifest import Manifest
from everstep.checkpoint.slot import SlotWriter

def needs(size_bytes=1 << 16):
    agent.send(NeedSlots(me, size_bytes))
    slots = agent.recv(10.0)
    assert isinstance(slots, Slots), slots
    print(slots.error or f"{slots.attempt} {len(slots.paths)} {slots.checkpoint_dir}", flush=True)
    return [SlotWriter(Path(path)) for path in slots.paths]

def seals(slot, index, step):
    checkpoint = Checkpoint(Step(step), Generation(1), 1)
    slot.begin(Manifest(step, 1, 1, 3, 4, 0, 0, "", [], b"values of %d" % step))
    slot.seal()
    agent.send(SealedSlot(me, checkpoint, index, 7, 0.5, 1.0))

"""


def at(step: int) -> Checkpoint:
    return Checkpoint(Step(step), Generation(1), 1)


@pytest.fixture
def saving(welcome: Welcome, tmp_path: Path) -> Welcome:
    return replace(welcome, checkpoint_dir=str(tmp_path / "store"), slots=True, attempt=1)


def slot_of(welcome: Welcome, index: int) -> Path:
    return shared(welcome) / f"slot-3-{index}"


def persister() -> psutil.Process | None:
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has just gone
            if "everstep.checkpoint.persister" in child.cmdline():
                return child
    return None


async def sealed(scene: Scene, step: int) -> Sealed:
    notice = await scene.controller.hear(
        Notice, lambda notice: isinstance(notice.event, Sealed) and notice.event.checkpoint == at(step)
    )
    assert isinstance(notice.event, Sealed)
    return notice.event


async def receipt(scene: Scene) -> Receipt:
    return await scene.controller.hear(Receipt)


def persist(scene: Scene, step: int) -> None:
    scene.controller.say(Persist(at(step), (R3,)))


def test_a_worker_gets_two_slots_for_its_rank_which_outlive_it(run: Run, saving: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script(SAVER + "slots = needs(); seals(slots[1], 1, 5); signal.pause()")
        scene.start(W0, rank=3, device="a")
        await scene.output(f"[rank 3] 1 2 {saving.checkpoint_dir}")
        assert await sealed(scene, 5) == Sealed(R3, scene.config.node, at(5), 1, 7, 0.5, 1.0)
        scene.controller.say(Fence(W0))
        await scene.controller.exit_of(W0)
        scene.script(SAVER + "slots = needs(1 << 17); print(slots[1].checkpoint, slots[1].size_bytes); signal.pause()")
        scene.start(W1, rank=3, device="a")
        await scene.output(f"[rank 3] {at(5)} {1 << 17}")

    run(scene_of(play, saving))


def test_the_persister_is_there_before_it_has_anything_to_do(run: Run, saving: Welcome) -> None:
    """Else the first k1 would be its start, and `auto` would believe it."""

    async def play(scene: Scene) -> None:
        scene.script(SAVER + "needs(); signal.pause()")
        scene.start(W0, rank=3, device="a")
        await soon(lambda: persister() is not None)

    run(scene_of(play, saving))


def test_a_job_that_takes_no_checkpoints_has_no_slots(run: Run, saving: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script(SAVER + "needs(); signal.pause()")
        scene.start(W0, rank=3, device="a")
        await scene.output(f"[rank 3] 1 0 {saving.checkpoint_dir}")
        assert not slot_of(saving, 0).exists()
        assert persister() is None

    run(scene_of(play, replace(saving, slots=False)))


def test_memory_that_is_not_there_is_said_to_who_asks(run: Run, saving: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script(SAVER + "needs(1 << 50); signal.pause()")
        scene.start(W0, rank=3, device="a")
        await soon(lambda: any("enlarge it (mount -o remount" in line for line in scene.lines))
        assert not slot_of(saving, 0).exists()

    run(scene_of(play, saving))


def test_what_is_left_out_is_told_with_the_rank(run: Run, saving: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script(SAVER + "agent.send(SkippedSlot(me, Step(5), 'both are busy')); signal.pause()")
        scene.start(W0, rank=3, device="a")
        assert await scene.controller.hear(Skipped) == Skipped(R3, Step(5), "both are busy")

    run(scene_of(play, saving))


def test_it_persists_what_it_is_told_and_holds_the_newest(run: Run, saving: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script(SAVER + "slots = needs(); seals(slots[0], 0, 5); seals(slots[1], 1, 10); signal.pause()")
        scene.start(W0, rank=3, device="a")
        await sealed(scene, 10)
        for step, slot in ((5, 0), (10, 1)):
            persist(scene, step)
            done = await receipt(scene)
            assert (done.rank, done.checkpoint, done.error) == (R3, at(step), "")
            folder = Path(saving.checkpoint_dir) / names.directory_of(at(step))
            assert (folder / done.file).stat().st_size == done.size_bytes
            assert SlotReader(slot_of(saving, slot)).held
        assert not SlotReader(slot_of(saving, 0)).held

    run(scene_of(play, saving))


def test_a_slot_that_has_something_else_by_now_is_an_error_in_the_receipt(run: Run, saving: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script(SAVER + "slots = needs(); seals(slots[0], 0, 5); signal.pause()")
        scene.start(W0, rank=3, device="a")
        await sealed(scene, 5)
        persist(scene, 4)
        assert "does not have it any more" in (await receipt(scene)).error
        assert not SlotReader(slot_of(saving, 0)).held

    run(scene_of(play, saving))


def test_a_persister_that_is_killed_is_started_again_and_the_share_written(run: Run, saving: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script(SAVER + "slots = needs(); seals(slots[0], 0, 5); seals(slots[1], 1, 10); signal.pause()")
        scene.start(W0, rank=3, device="a")
        await sealed(scene, 10)
        persist(scene, 5)
        await receipt(scene)
        first = persister()
        assert first is not None
        first.send_signal(signal.SIGSTOP)  # storage that does not answer
        persist(scene, 10)
        await soon(lambda: SlotReader(slot_of(saving, 1)).held)
        first.kill()
        done = await receipt(scene)
        assert (done.checkpoint, done.error) == (at(10), "")
        second = persister()
        assert second is not None
        assert second.pid != first.pid

    run(scene_of(play, saving))


def test_a_restarted_controller_hears_what_is_sealed_and_gets_the_receipt_again(run: Run, saving: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script(SAVER + "slots = needs(); seals(slots[0], 0, 5); signal.pause()")
        scene.start(W0, rank=3, device="a")
        await sealed(scene, 5)
        persist(scene, 5)
        first = await receipt(scene)
        written = Path(saving.checkpoint_dir) / names.directory_of(at(5)) / first.file
        before = written.stat().st_ino
        scene.controller.cut()
        await sealed(scene, 5)
        persist(scene, 5)
        assert await receipt(scene) == first
        assert written.stat().st_ino == before

    run(scene_of(play, saving))


def test_an_agent_that_is_told_to_end_stays_until_the_controller_lets_it_go(run: Run, saving: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script(SAVER + "needs(); signal.pause()")
        scene.start(W0, rank=3, device="a")
        await scene.output(f"[rank 3] 1 2 {saving.checkpoint_dir}")
        os.kill(os.getpid(), signal.SIGTERM)
        await scene.controller.hear(Leaving)
        scene.controller.say(Fence(W0))
        assert (await scene.controller.exit_of(W0)).code == -signal.SIGKILL, "it lived until now"

    run(scene_of(play, replace(saving, grace_s=60.0)))


def test_a_job_that_was_not_told_to_take_checkpoints_goes_without_where_there_is_no_room(
    run: Run, saving: Welcome
) -> None:
    """One rank has its slots; that there are none for the other one makes them useless."""

    async def play(scene: Scene) -> None:
        scene.script(SAVER + "needs(); print(agent.recv(10.0).error, 'for rank 3 too'); signal.pause()")
        scene.start(W0, rank=3, device="a")
        await scene.output(f"[rank 3] 1 2 {saving.checkpoint_dir}")
        scene.script(SAVER + "needs(1 << 50); signal.pause()")
        scene.start(W1, rank=2, device="b")
        refused = await scene.controller.hear(NoSlots)
        assert refused.rank == 2
        assert "enlarge it" in refused.reason
        await soon(lambda: any("for rank 3 too" in line for line in scene.lines))
        assert not list(shared(saving).glob("slot-*"))

    run(scene_of(play, replace(saving, slots_required=False)))


def test_one_that_cannot_be_held_takes_the_place_of_none(run: Run, saving: Welcome) -> None:
    """Its slot was used again before it was known that all had sealed it: the one before stays complete."""

    async def play(scene: Scene) -> None:
        scene.script(SAVER + "slots = needs(); [seals(slots[step > 5], int(step > 5), step) for step in (5, 10, 15)]")
        scene.start(W0, rank=3, device="a")
        await sealed(scene, 15)
        persist(scene, 5)
        assert not (await receipt(scene)).error
        persist(scene, 10)
        assert "does not have it any more" in (await receipt(scene)).error
        assert SlotReader(slot_of(saving, 0)).held

    run(scene_of(play, saving))
