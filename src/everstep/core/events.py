"""What can happen to a job, as seen by the controller. Facts only; what to do about them is the machine's.

Reports of a worker are levels, not edges: one that arrives again, or late, changes nothing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from everstep.types import Coordinate, Generation, NodeId, Rank, Step, WorkerId, WorkerPhase


class JobPhase(enum.Enum):
    """Where the job is. The order is the way of a recovery."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    SETTLING = "SETTLING"
    RESETTING = "RESETTING"
    RESTORING = "RESTORING"
    RESUMING = "RESUMING"
    ENDING = "ENDING"
    DONE = "DONE"
    FAILED = "FAILED"


class Cause(enum.Enum):
    """Why somebody is no longer trusted, as a person would say it."""

    EXIT = "exited"
    EXCEPTION = "raised an exception"
    FROZEN = "frozen"
    HANG = "hangs"
    OVERDUE = "did not answer in time"
    DEVICE = "device is sick"
    NODE = "node is out of reach"
    STALLED = "nobody moves"
    COLLECTIVE = "a collective failed and nobody died"
    UNREACHABLE = "cannot reach the target version"
    LAYOUT = "built a different model"
    RULE = "broke a rule"
    LOST = "lost what nobody else has"
    RESOURCE = "is short of a resource"
    CHECKPOINT = "a checkpoint cannot be loaded"


@dataclass(frozen=True, slots=True)
class Position:
    """Where a main thread stands. ``version`` is the number of updates that its state includes."""

    phase: WorkerPhase
    version: Step

    def __str__(self) -> str:
        return f"{self.phase.name}({self.version})"


@dataclass(frozen=True, slots=True, order=True)
class Checkpoint:
    """Names one saved state. Two attempts at one step differ in their generation, or in the job, and never mix."""

    step: Step
    generation: Generation
    attempt: int = 0
    """Counts the jobs that have used this checkpoint directory."""

    @property
    def age(self) -> tuple[int, int, int]:
        """Sorts from the oldest to the newest: a later generation may have gone back to an earlier step."""
        return self.attempt, self.generation, self.step


# ── from agents ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """An agent said hello, for the first time or again. ``workers`` are the processes alive on it."""

    node: NodeId
    devices: tuple[str, ...]
    workers: tuple[WorkerId, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeLost:
    node: NodeId
    evidence: str = ""
    quiet_s: float = 0.0
    """Since the last sign of life."""
    where: tuple[tuple[WorkerId, Position], ...] = ()
    """Where its workers were when they were last seen."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Somebody judged this worker. Its process may still be there, so it is fenced."""

    worker: WorkerId
    cause: Cause
    evidence: str = ""
    where: Position | None = None
    place: str = ""
    """Where in the script it failed: the same place twice before protect() stops the job."""
    quiet_s: float = 0.0
    """Since the last sign of life that was missed afterwards."""


@dataclass(frozen=True, slots=True)
class Exited:
    """The process is gone, by itself or because it was fenced."""

    worker: WorkerId
    code: int
    evidence: str = ""
    where: Position | None = None
    place: str = ""
    moved: bool = False
    """It had moved on between the verdict and the kill: a false alarm."""
    quiet_s: float = 0.0
    """Since the last sign of life: the end lies within it."""


@dataclass(frozen=True, slots=True)
class FenceFailed:
    """The process did not go within ``fence_s``: it is out of reach and its device lost."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class DeviceSick:
    """A device must not be used again."""

    node: NodeId
    device: str
    evidence: str = ""


# ── from workers ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Registered:
    """It called init()."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class Protected:
    """It reached protect(). ``layout`` is a digest of what it built; all ranks of a shard must agree."""

    worker: WorkerId
    coordinate: Coordinate
    layout: str = ""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Its collectives are cut and its main thread is parked, or finishes a committed update."""

    worker: WorkerId
    generation: Generation
    position: Position


@dataclass(frozen=True, slots=True)
class Settled:
    """It finished or dropped its step as it was told, and is parked."""

    worker: WorkerId
    generation: Generation
    position: Position


@dataclass(frozen=True, slots=True)
class Connected:
    """Its groups of this generation are up."""

    worker: WorkerId
    generation: Generation


@dataclass(frozen=True, slots=True)
class Restored:
    """It holds a complete, verified state of this version."""

    worker: WorkerId
    generation: Generation
    version: Step
    bytes: int = 0
    """So much of it came from the donor, or from the checkpoint."""


@dataclass(frozen=True, slots=True)
class Committed:
    """It passed the barrier of its first step in this generation."""

    worker: WorkerId
    generation: Generation
    step: Step


@dataclass(frozen=True, slots=True)
class Ended:
    """It left the training loop at this version and waits to be released."""

    worker: WorkerId
    generation: Generation
    version: Step


@dataclass(frozen=True, slots=True)
class Unusable:
    """The checkpoint that it was told to load is missing, damaged, or does not fit. The next older one may be good."""

    worker: WorkerId
    generation: Generation
    checkpoint: Checkpoint
    evidence: str


@dataclass(frozen=True, slots=True)
class Broken:
    """A collective of this generation failed. Evidence, not a verdict."""

    worker: WorkerId
    generation: Generation
    evidence: str = ""


# ── from the host and the checkpoints ────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Deadline:
    """The timer that an ``Arm`` effect asked for."""

    generation: Generation
    phase: JobPhase


@dataclass(frozen=True, slots=True)
class Restarted:
    """The controller is back; its state came from the journal, its connections are gone."""


@dataclass(frozen=True, slots=True)
class Absent:
    """After a restart these nodes did not come back in time; armed by ``Restarted``."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A person wants the job to stop."""


@dataclass(frozen=True, slots=True)
class Stalled:
    """Everybody waits and nobody moves: mismatched collectives. All have told their stacks by now, if they could."""

    generation: Generation
    evidence: str = ""
    quiet_s: float = 0.0
    """Since somebody was last seen to move."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A memory checkpoint of this rank is complete on this node. What its slot held before is gone."""

    rank: Rank
    node: NodeId
    checkpoint: Checkpoint
    slot: int = 0
    bytes: int = 0
    k0_s: float = 0.0
    """So long the main thread was held up."""
    began_s: float = 0.0
    """In seconds since 1970, by the clock of the node."""


@dataclass(frozen=True, slots=True)
class Persisted:
    """A persistent checkpoint is committed."""

    checkpoint: Checkpoint


FromWorker = Registered | Protected | Stopped | Settled | Connected | Restored | Unusable | Committed | Ended | Broken
FromAgent = NodeJoined | NodeLost | Verdict | Exited | FenceFailed | DeviceSick | Sealed
FromHost = Deadline | Restarted | Absent | Interrupted | Stalled | Persisted
Event = FromWorker | FromAgent | FromHost
