"""What controller, agents, workers and clients say to each other. The events and commands of `core` travel as they are.

    worker  ⇄ agent        Unix socket: WorkerHello first, then Report, Publish, …  ⇄  Order, Meet, AskStack, …
    agent   ⇄ controller   TCP: AgentHello first  ⇄  Welcome first, or Bye
    client  ⇄ controller   TCP: Ask, Inject, Interrupt  ⇄  Status, Done

A message whose generation is old is dropped by the machines in `core`, not here.
"""

from __future__ import annotations

from dataclasses import dataclass

from everstep.core.effects import Command
from everstep.core.events import Cause, Checkpoint, Exited, FenceFailed, FromWorker, Sealed, Verdict
from everstep.core.watch import Sighting
from everstep.types import Generation, Moment, NodeId, Rank, Step, WorkerId

# ── worker to agent ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class WorkerHello:
    """The first message of a worker, from its control thread."""

    worker: WorkerId
    pid: int


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker's machine says. Agents pass it on and remember the newest one of each worker."""

    event: FromWorker


@dataclass(frozen=True, slots=True)
class Raised:
    """The script failed with this exception; the process is about to exit."""

    worker: WorkerId
    traceback: str
    place: str
    """The innermost frame of the user's code, for example ``train.py:12 ValueError``."""
    cause: Cause = Cause.EXCEPTION


@dataclass(frozen=True, slots=True)
class Stack:
    """Stacks of all threads of a worker, asked for in a stall."""

    worker: WorkerId
    text: str


@dataclass(frozen=True, slots=True)
class Publish:
    """One member of a process group: where it can be reached. Not an event of the protocol, which only knows that all
    have connected."""

    worker: WorkerId
    generation: Generation
    key: str
    """Name of the group."""
    rank: int
    """In the group."""
    size: int
    address: bytes


@dataclass(frozen=True, slots=True)
class Keep:
    """What a replacement will need before it can be given the state: results of small collectives, the layout."""

    worker: WorkerId
    generation: Generation
    memories: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class NeedSlots:
    """At protect(), and again if the state has grown: two slots of this size for this worker's rank."""

    worker: WorkerId
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SealedSlot:
    """k0 is done: this slot holds the whole share of this worker's rank."""

    worker: WorkerId
    checkpoint: Checkpoint
    slot: int
    bytes: int
    k0_s: float
    began_s: float
    """Wall clock."""


@dataclass(frozen=True, slots=True)
class SkippedSlot:
    """A checkpoint was due at this step, and not taken: both slots are busy, or it did not fit."""

    worker: WorkerId
    step: Step
    reason: str


@dataclass(frozen=True, slots=True)
class StateDigest:
    """Of all that is equal on the replicas of a shard. It is recorded, and nothing is decided by it."""

    worker: WorkerId
    rank: Rank
    shard: int
    generation: Generation
    version: Step
    moment: Moment
    digest: str


# ── agent to worker ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Order:
    """A command for this worker. ``env`` is what an Assign adds to its environment (RANK, LOCAL_RANK, …)."""

    command: Command
    env: dict[str, str]


@dataclass(frozen=True, slots=True)
class AskStack:
    pass


@dataclass(frozen=True, slots=True)
class Meet:
    """All members of a process group have published: the address of each, by its rank in the group."""

    generation: Generation
    key: str
    rows: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Memories:
    """All that was given as `Keep`; comes before the Assign of a worker that joins a running job."""

    memories: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Slots:
    """The answer to `NeedSlots`: files in the shared memory of the agent. None: the job takes no checkpoints."""

    paths: tuple[str, ...]
    checkpoint_dir: str = ""
    attempt: int = 0
    """Part of the name of each checkpoint that this job takes."""
    error: str = ""
    """Why there are none although the job wants checkpoints."""
    required: bool = True
    """With an error: the job was told to take checkpoints, so it cannot begin without. Else it goes on without."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """When to take checkpoints: at version ``base + n * every``, and ``soon``: behind the next barrier.

    The ranks agree in the barrier: if one wants a checkpoint of the version behind it, all take it.
    """

    every: int
    """0: only at the end of the loop, and when it is asked for."""
    base: Step
    soon: bool = False


@dataclass(frozen=True, slots=True)
class Inject:
    """A fault to inject, as written: ``kill rank=2 step=7 phase=optimizer``."""

    spec: str


# ── agent to controller ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class AgentHello:
    """The first message of an agent, also when it comes back to a restarted controller."""

    node: NodeId
    host: str
    pid: int
    devices: tuple[str, ...]
    workers: tuple[WorkerId, ...]
    """The worker processes that are alive. Their newest reports follow as `Report`."""


@dataclass(frozen=True, slots=True)
class Notice:
    """What an agent has seen of a worker."""

    event: Exited | Verdict | FenceFailed | Sealed


@dataclass(frozen=True, slots=True)
class Sick:
    """A device plugin judged a device."""

    device: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Beat:
    """Heartbeat of the node: once a second, and at once when a worker's board has changed (≥ 20 Hz)."""

    sightings: tuple[Sighting, ...]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A rank has left out a checkpoint that was due."""

    rank: Rank
    step: Step
    reason: str


@dataclass(frozen=True, slots=True)
class NoSlots:
    """A node has no room for the slots of this rank, and the job was not told to take checkpoints."""

    rank: Rank
    reason: str


@dataclass(frozen=True, slots=True)
class Leaving:
    """The agent was told to end. It stays for its grace, so that a checkpoint can be taken while its workers live."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """k1 of one rank: its file is durable, or ``error`` says why not."""

    rank: Rank
    checkpoint: Checkpoint
    file: str = ""
    """Name in the directory of the checkpoint."""
    size_bytes: int = 0
    digest: str = ""
    """xxh3 of the header of the file, which has the digests of its tensors."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Durations:
    """How long the workers of this agent have taken in each phase, all sums since the agent began."""

    pid: int
    """Of the agent: another one begins to count anew."""
    counts: dict[str, tuple[tuple[int, ...], float]]
    """As `observe.phases.Counts`."""


@dataclass(frozen=True, slots=True)
class AskTime:
    """What time is it? The answer is a `Time`."""

    sent_ns: int
    """By the node's monotonic clock."""


# ── controller to agent ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Welcome:
    """What an agent needs to run its part of the job."""

    job: str
    """Name of the job, unique on this machine; shared memory is named after it."""
    argv: tuple[str, ...]
    """What follows ``python``."""
    cwd: str
    env: dict[str, str]
    """The complete environment of a worker but for what its rank adds."""
    run_dir: str
    preload: tuple[str, ...]
    zygote: bool
    ranks: int
    local_world_size: int
    lease_s: float
    fence_s: float
    chaos: tuple[str, ...] = ()
    master_addr: str = "127.0.0.1"
    """With ``master_port``: what libraries find in the environment. Nothing of ours listens there."""
    master_port: int = 29500
    checkpoint_dir: str = ""
    """As `open_store` reads it; empty: the job neither takes checkpoints nor begins with one."""
    slots: bool = False
    """The job takes checkpoints."""
    slots_required: bool = True
    """It was told to. Else (``auto``) a node without room for them is no reason not to train."""
    attempt: int = 0
    """Part of the name of each checkpoint that this job takes."""
    grace_s: float = 0.0
    """For the last checkpoint to reach storage when a node has to go."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start this worker; with a rank, the device and environment of the rank."""

    worker: WorkerId
    rank: Rank | None
    device: str


@dataclass(frozen=True, slots=True)
class Fence:
    """SIGKILL, wait for the exit, tell it with ``moved`` set if the board has moved on since ``moves``."""

    worker: WorkerId
    moves: int = -1
    """The board's counter when the verdict was made; -1: do not compare."""


@dataclass(frozen=True, slots=True)
class Deliver:
    """One command for these workers of the node."""

    to: tuple[WorkerId, ...]
    command: Command


@dataclass(frozen=True, slots=True)
class Tell:
    """Something for these workers that is no command of the protocol."""

    to: tuple[WorkerId, ...]
    message: Meet | Memories | Schedule


@dataclass(frozen=True, slots=True)
class Persist:
    """This checkpoint is complete in memory: hold its slots, let go of older ones that are not being written, and
    write those of this node to storage."""

    checkpoint: Checkpoint
    ranks: tuple[Rank, ...] = ()
    """Whose shares this node has."""


@dataclass(frozen=True, slots=True)
class AskStacks:
    workers: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True)
class Time:
    """When the question of ``sent_ns`` was answered, in seconds since 1970."""

    sent_ns: int
    wall_s: float


@dataclass(frozen=True, slots=True)
class Bye:
    """The job is over, or this agent is not part of it: stop every worker and exit with ``code``."""

    code: int
    reason: str


# ── clients ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Ask:
    """Give me the status."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """End the job, as Ctrl-C does; or as SIGTERM does, which means that the machine will be taken away."""

    save: bool = False
    """Take a checkpoint first."""


@dataclass(frozen=True, slots=True)
class Status:
    """The status as JSON, as ``everstep status --json`` prints it."""

    json: str


@dataclass(frozen=True, slots=True)
class Done:
    """What was asked for is done, or ``error`` says why not."""

    error: str = ""


FromWorkerSide = (
    WorkerHello | Report | Raised | Stack | Publish | Keep | NeedSlots | SealedSlot | SkippedSlot | StateDigest
)
ToWorkerSide = Order | AskStack | Inject | Meet | Memories | Slots | Schedule
ToController = (
    AgentHello
    | Report
    | Notice
    | Sick
    | Beat
    | Durations
    | AskTime
    | Stack
    | StateDigest
    | Raised
    | Publish
    | Keep
    | Skipped
    | NoSlots
    | Receipt
    | Leaving
    | Ask
    | Inject
    | Interrupt
)
FromController = Welcome | Start | Fence | Deliver | Tell | Persist | AskStacks | Time | Inject | Bye | Status | Done
