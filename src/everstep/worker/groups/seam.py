"""What a backend has to be able to do so that its groups can be cut and made again. One small class for each.

make     connect a new inner group of a generation; may block until all members have come
cut      end whatever waits in it, from another thread and within milliseconds; never anybody else's sockets
quiet    after a cut: what has not ended by now never will, and touches no memory any more
drain    wait until the device has finished what was queued for it, so that "complete" is true
brief    of an error of the backend, what tells a user something
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

from everstep.types import Generation
from everstep.worker.groups.rendezvous import MeetingStore


@dataclass(frozen=True, slots=True)
class Plan:
    """What an inner group is made from."""

    key: str
    generation: Generation
    rank: int
    size: int
    timeout_s: float


class Seam(Protocol):
    """The way of one backend."""

    @property
    def device_types(self) -> tuple[torch.device, ...]: ...

    def make(self, plan: Plan, store: MeetingStore) -> dist.ProcessGroup: ...

    def cut(self, rows: Sequence[bytes]) -> int:
        """End what waits in the groups that met with these addresses; how many connections that were."""
        ...

    def quiet(self) -> bool: ...

    def drain(self) -> None: ...

    def brief(self, error: str) -> str: ...
