"""The words every part shares: identities, phases, coordinates. Knows nothing of ours but the errors."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NewType

from everstep.errors import ConfigError

Rank = NewType("Rank", int)
"""Place of a worker in the job, 0 … world size - 1. It outlives the process that fills it."""

Step = NewType("Step", int)
"""Index of a training step. At version ``v`` the next step to run is step ``v``."""

Generation = NewType("Generation", int)
"""Counts the memberships of the job. A message of an older one has no effect."""

WorkerId = NewType("WorkerId", int)
"""One incarnation of a process. Never used again: a replacement has the rank, not the id."""

NodeId = NewType("NodeId", str)


class WorkerPhase(enum.IntEnum):
    """Where a worker is. The values are stamped on its board, so they keep their numbers."""

    SPAWNED = 0
    STANDBY = 1  # in init(), waiting for a rank
    BUILDING = 2  # has a rank, runs the script up to protect()
    HOLLOW = 3  # at protect(), holds no state yet
    IDLE = 4  # holds a complete version, between two steps
    FORWARD = 5
    BACKWARD = 6
    READY = 7  # complete gradients, in the Gradient Synchronization Barrier
    COMMITTED = 8  # passed the barrier, in the Optimizer Step
    ENDED = 9  # completed the last step, still a holder


class Mark(enum.IntEnum):
    """What the flight recorder notes: a worker is in this from here on. The values are in files, so they keep their
    numbers. The first ones are those of `WorkerPhase`."""

    SPAWNED = 0
    STANDBY = 1
    BUILDING = 2
    HOLLOW = 3
    IDLE = 4
    FORWARD = 5
    BACKWARD = 6
    READY = 7
    COMMITTED = 8
    ENDED = 9
    STOP = 16  # from here to RESUME: what a worker does in a recovery
    CLEAN = 17
    RESET = 18
    RESTORE = 19
    RESUME = 20
    CHECKPOINT = 24  # it copies its state to memory (k0)
    END = 255  # no phase: what follows was not kept


class Moment(enum.Enum):
    """When a digest of the protected state is taken. Never in a step but the second one of a generation."""

    PROTECT = "protect"  # at protect(), when a job begins
    FIRST_STEP = "first step"  # of a generation, behind it: its update may tell replicas apart
    RESTORATION = "restoration"  # by the donor of what it has sent, by the newcomer of its live objects
    LOAD = "load"  # of the live objects, when a checkpoint was loaded
    END = "end"  # when the rank leaves the loop


@dataclass(frozen=True, slots=True, order=True)
class Coordinate:
    """Which copy (``replicate``) of which piece (``shard``) of the state a rank holds."""

    replicate: int
    shard: int


@dataclass(frozen=True, slots=True)
class Mesh:
    """``replicate`` copies of ``shard`` pieces; plain data parallel is ``Mesh(world_size, 1)``."""

    replicate: int
    shard: int = 1

    def __post_init__(self) -> None:
        if self.replicate < 1 or self.shard < 1:
            raise ConfigError(f"mesh {self}: both sides must be at least 1")

    def __str__(self) -> str:
        return f"{self.replicate}x{self.shard}"

    @property
    def size(self) -> int:
        return self.replicate * self.shard

    def coordinate(self, rank: Rank) -> Coordinate:
        return Coordinate(*divmod(rank, self.shard))

    @classmethod
    def parse(cls, text: str, ranks: int) -> Mesh:
        """``"2x2"`` for the given number of ranks, or a ConfigError that says what is wrong."""
        left, cross, right = text.partition("x")
        if not (cross and left.isdecimal() and right.isdecimal()):
            raise ConfigError(f"mesh {text!r}: write it as REPLICATExSHARD, for example 2x2")
        mesh = cls(int(left), int(right))
        if mesh.size != ranks:
            raise ConfigError(f"mesh {mesh} has {mesh.size} places but the job has {ranks} ranks; they must be equal")
        return mesh
