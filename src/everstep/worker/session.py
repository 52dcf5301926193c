"""This process and torch: sets up `torch.distributed` in init(), and protection in protect().

Two kinds. `JobSession` is part of a job that everstep runs: stable groups, and a loop that recovers. `LoneSession` was
started by torchrun or plain python: ordinary groups, the same steps and seeds, no protection.
"""

from __future__ import annotations

import atexit
import os
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import msgspec
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from everstep.core.effects import Assign, Role
from everstep.errors import ProtocolError, RuleError
from everstep.types import Coordinate, Step, WorkerPhase
from everstep.worker.checkpoint.keeper import Keeper
from everstep.worker.control import Control
from everstep.worker.environment import Place
from everstep.worker.groups.nccl import seam_of
from everstep.worker.groups.world import World
from everstep.worker.loop import ProtectedLoop
from everstep.worker.phases import RecoveryPhase
from everstep.worker.protection import Protection
from everstep.worker.rng import Streams, streams
from everstep.worker.state.protected import digest
from everstep.worker.step import Loop, PlainLoop
from everstep.worker.track import Track

COORDINATES = "coordinates"
LAYOUT = "layout of shard "
GROUP = "group "
"""Names of what is kept for newcomers."""


class Session(Protocol):
    def protect(self, epoch_of: Callable[[Step], int], **given: Any) -> Loop:
        """What `Job.protect` was given; the loop that trains from then on."""
        ...


def begin(place: Place, track: Track, control: Control | None, assign: Assign | None) -> Session:
    """In init(), once a rank is known."""
    if control is None or assign is None:
        return LoneSession(place, track)
    return JobSession(place, track, control, assign)


class JobSession:
    def __init__(self, place: Place, track: Track, control: Control, assign: Assign) -> None:
        self._place = place
        self._track = track
        self._control = control
        self._joins = assign.role is Role.JOINER
        self._memory = control.memory
        prologues = {
            name.removeprefix(GROUP): data for name, data in control.memories.items() if name.startswith(GROUP)
        }
        self._world = World(seam_of(place.device), control.publish, prologues if self._joins else None)
        control.world = self._world
        atexit.register(self._world.close)
        os.register_at_fork(after_in_child=partial(atexit.unregister, self._world.close))
        self._world.begin(place.rank, place.world_size, assign.generation)

    def protect(self, epoch_of: Callable[[Step], int], **given: Any) -> Loop:
        control = self._control
        if control.protection is not None:
            raise RuleError("protect() was called before: give everything to one call")
        protection = Protection(
            self._world, self._place.rank, self._place.world_size, tell=control.tell_digest, **given
        )
        if self._joins:
            self._track.recovering(RecoveryPhase.SCRIPT, self._track.version)
            protection.join(*self._remembered())
        else:
            protection.found()
            control.keep(self._memories(protection))
        self._world.recording = False
        control.protection = protection
        keeper = control.keeper = Keeper(control, self._track, protection, self._memory)
        if not self._joins:
            keeper.ask()
            keeper.prepare()
        loop = ProtectedLoop(control, self._track, protection, keeper, epoch_of)
        loop.attach()
        self._world.gate = loop
        control.protect(protection.coordinate, digest(protection.layout))
        keeper.ask()  # a newcomer has its state now, and nobody waits for it any more
        self._track.enter(WorkerPhase.IDLE, control.version)
        return loop

    def _memories(self, protection: Protection) -> dict[str, bytes]:
        """The first member of a group keeps what was said in it; the first of all, what was built."""
        kept = {
            GROUP + group.key: group.prologue.encode() for group in self._world.groups.values() if group.rank() == 0
        }
        if self._place.rank == 0:
            kept[COORDINATES] = msgspec.msgpack.encode(protection.coordinates)
        if protection.coordinate.replicate == 0:
            layout = zlib.compress(msgspec.msgpack.encode(protection.layout))
            kept[LAYOUT + str(protection.coordinate.shard)] = layout
        return kept

    def _remembered(self) -> tuple[list[str], list[Coordinate]]:
        """The layout of this rank's shard, and who has which shard."""
        memories = self._control.memories
        if COORDINATES not in memories:
            raise ProtocolError("the controller remembers nothing of this job: its run directory has lost `memories`")
        coordinates = msgspec.msgpack.decode(memories[COORDINATES], type=list[Coordinate])
        layout = memories[LAYOUT + str(coordinates[self._place.rank].shard)]
        return msgspec.msgpack.decode(zlib.decompress(layout), type=list[str]), coordinates


class LoneSession:
    """The environment is torchrun's, or that of one process."""

    def __init__(self, place: Place, track: Track) -> None:
        self._track = track
        if dist.is_initialized():
            return
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        if place.world_size == 1 and os.environ.get("MASTER_PORT") == "0":
            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        else:
            dist.init_process_group(backend)

    def protect(self, epoch_of: Callable[[Step], int], **given: Any) -> Loop:
        return SeededLoop(self._track, streams(given.get("rng", "step"), torch.initial_seed()), epoch_of)


class SeededLoop(PlainLoop):
    """The same seeds as with protection, so that the same script gives the same numbers."""

    def __init__(self, track: Track, random: Streams, epoch_of: Callable[[Step], int]) -> None:
        super().__init__(track)
        self._streams = random
        self._epoch_of = epoch_of

    def epoch(self, step: Step) -> int:
        return self._epoch_of(step)

    def begin(self, step: Step) -> None:
        self._streams.begin(step)
        super().begin(step)
