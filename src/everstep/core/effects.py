"""What the machine asks for: commands to workers, and effects for the host that carries them out."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from everstep.core.events import Checkpoint, JobPhase
from everstep.types import Generation, NodeId, Rank, Step, WorkerId


class Role(enum.Enum):
    """How a worker comes to its state."""

    FOUNDER = "founder"  # builds it, in connected groups
    LOADER = "loader"  # reads a checkpoint, in connected groups
    JOINER = "joiner"  # receives it at protect(); no group is connected before


class Action(enum.Enum):
    """What a survivor does with the step that it is in."""

    FINISH = "finish"  # complete the update: it counts
    REDO = "redo"  # drop the step: it will run again
    ROLLBACK = "rollback"  # drop everything: a checkpoint replaces it


# ── commands to workers ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Assign:
    rank: Rank
    world_size: int
    generation: Generation
    role: Role
    device: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    generation: Generation


@dataclass(frozen=True, slots=True)
class Settle:
    generation: Generation
    target: Step
    action: Action


@dataclass(frozen=True, slots=True)
class Reset:
    """Remake every group. ``table[rank]`` is the worker that has the rank in this generation."""

    generation: Generation
    table: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True)
class Restore:
    """Receive the state of ``target`` from a donor, or read it from a checkpoint."""

    generation: Generation
    target: Step
    donor: WorkerId | None
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Donate:
    generation: Generation
    to: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True)
class Resume:
    """Run step ``target``; or leave the loop before it, because a survivor has (``over``)."""

    generation: Generation
    target: Step
    over: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """Everybody has completed the last step: leave the loop."""

    generation: Generation


Command = Assign | Stop | Settle | Reset | Restore | Donate | Resume | Release


# ── effects for the host ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Send:
    """One command for many workers: the host encodes it once per node."""

    to: tuple[WorkerId, ...]
    command: Command


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start a process: for a rank on a device, or as a standby that touches none."""

    node: NodeId
    worker: WorkerId
    rank: Rank | None = None
    device: str = ""


@dataclass(frozen=True, slots=True)
class Kill:
    """Fence: SIGKILL, wait for the exit, report ``Exited`` or ``FenceFailed``."""

    node: NodeId
    worker: WorkerId


@dataclass(frozen=True, slots=True)
class Arm:
    """Bring ``Deadline(generation, phase)`` after ``delay_s``. It replaces the one armed before."""

    generation: Generation
    phase: JobPhase
    delay_s: float


@dataclass(frozen=True, slots=True)
class ArmReturn:
    """Bring ``Absent`` after ``delay_s``."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence for the log, for people."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The job is over: stop every process, then exit with ``code``."""

    code: int
    reason: str


Effect = Send | Spawn | Kill | Arm | ArmReturn | Note | End
