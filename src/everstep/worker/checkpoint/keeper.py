"""When this worker saves its share, and where: between the main thread, which copies, and `control`, which hears.

A checkpoint is a matter of all ranks, and none of them decides it alone: whoever thinks that one is due says so in the
barrier, and all that pass it save the version behind it. Those that do not pass it miss it, which makes that
checkpoint incomplete and no other harm.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from everstep.core.events import Checkpoint
from everstep.errors import ResourceError, SlotHeld, StateError
from everstep.types import Generation, Step
from everstep.worker.checkpoint.estimate import share_bytes
from everstep.worker.checkpoint.load import Loader
from everstep.worker.checkpoint.snapshot import Snapshots
from everstep.worker.protection import Protection
from everstep.worker.track import Track

if TYPE_CHECKING:
    from everstep.wire.messages import Slots
    from everstep.worker.control import Control

GROWTH = 1.25
"""A share that has outgrown its slots gets slots with this much room, so that it does not outgrow them each time."""
LAST_S = 30.0
"""So long the last checkpoint waits for a free slot."""
LOOK_S = 0.02
LIMIT_S = 60.0
SLOWEST_BYTES_PER_S = 100e6
"""A copy to memory that takes longer than this is a hang."""


class Keeper:
    """One for a worker, from protect() on."""

    def __init__(self, control: Control, track: Track, protection: Protection, memory: Path) -> None:
        """``memory`` is where the agent of this node keeps the slots of its workers."""
        self._control = control
        self._track = track
        self._protection = protection
        self._memory = memory
        self._snapshots: Snapshots | None = None
        self._slots: Slots | None = None
        """Those that `_snapshots` has mapped."""
        self._last: tuple[Step, Generation] | None = None
        self._size_bytes = 0
        self._asked = False

    def ask(self) -> None:
        """Once it is known what there is to save: at protect(), or when a newcomer has its state."""
        if self._asked:
            return
        self._asked = True
        protection = self._protection
        replicas = sum(at.shard == protection.coordinate.shard for at in protection.coordinates)
        self._size_bytes = share_bytes(protection.state, protection.private.image(), replicas)
        self._control.need_slots(self._size_bytes)

    def prepare(self) -> None:
        """Wait for the slots: without them a job that was told to take checkpoints shall not begin."""
        slots = self._control.wait_for_slots(self._size_bytes)
        if slots.error and slots.required:
            raise ResourceError(f"no room for checkpoints: {slots.error}")
        self._open(slots)

    # ── saving ───────────────────────────────────────────────────────────────────────────────────────────

    def wants(self, version: Step) -> bool:
        """By its schedule, is a checkpoint of this version due?"""
        slots, schedule = self._control.slots, self._control.schedule
        if slots is not None and not slots.paths and self._snapshots is not None:
            self._close()  # the node has no room for all of its ranks: what this one has goes back
        if schedule is None or slots is None or not slots.paths:
            return False
        if schedule.soon:
            return True
        return schedule.every > 0 and version >= schedule.base and (version - schedule.base) % schedule.every == 0

    def save(self, version: Step) -> None:
        """All ranks do. What stands against it is told, and training goes on."""
        control = self._control
        slots = control.slots
        if slots is None or not slots.paths:
            if slots is None or slots.error:
                control.skipped(version, slots.error if slots else "its slots are not there yet")
            return
        control.taken()
        generation = control.generation
        began_s, start_s = time.time(), time.perf_counter()
        limit_s = LIMIT_S + self._size_bytes / SLOWEST_BYTES_PER_S
        with self._track.long("checkpoint", limit_s), self._track.checkpoint():
            try:
                if slots is not self._slots:
                    self._open(slots)
                assert self._snapshots is not None
                checkpoint = Checkpoint(version, generation, slots.attempt)
                slot, size_bytes = self._snapshots.take(checkpoint, self._track.reach_checkpoint)
            except (SlotHeld, StateError) as unfit:  # busy, or with a tensor that no file can hold
                control.skipped(version, str(unfit))
            except ResourceError as small:
                control.skipped(version, str(small))
                self._grow()
            else:
                self._last = version, generation
                control.sealed(checkpoint, slot, size_bytes, time.perf_counter() - start_s, began_s)

    def save_last(self, version: Step) -> None:
        """At the end of the loop, unless this version was saved just now.

        It is the one that must not be left out, and nobody trains any more: storage gets some time to free a slot.
        """
        if self._last == (version, self._control.generation):
            return
        snapshots, deadline = self._snapshots, time.monotonic() + LAST_S
        with self._track.long("checkpoint", LIMIT_S + LAST_S):
            while snapshots is not None and snapshots.busy and time.monotonic() < deadline:
                if self._control.must_park:
                    return
                time.sleep(LOOK_S)  # a word in shared memory tells it, and nobody calls
        self.save(version)

    def _open(self, slots: Slots) -> None:
        self._close()
        self._snapshots = Snapshots(self._protection, slots.paths)
        self._slots = slots

    def _close(self) -> None:
        if self._snapshots is not None:
            self._snapshots.close()
        self._snapshots = self._slots = None

    def _grow(self) -> None:
        """The state has become larger than it was thought to become."""
        replicas = sum(at.shard == self._protection.coordinate.shard for at in self._protection.coordinates)
        need_bytes = share_bytes(self._protection.state, self._protection.private.image(), replicas)
        self._size_bytes = int(GROWTH * max(need_bytes, self._size_bytes))
        self._control.need_slots(self._size_bytes)

    # ── loading ──────────────────────────────────────────────────────────────────────────────────────────

    def load(self, checkpoint: Checkpoint) -> int:
        """All ranks do, together. How many bytes; CheckpointError on all of them if any cannot."""
        self.ask()
        slots = self._control.wait_for_slots(self._size_bytes)
        mapped = {} if self._snapshots is None else self._snapshots.mapped
        loader = Loader(self._protection, self._memory, slots.checkpoint_dir, mapped)
        return loader.load(checkpoint)
