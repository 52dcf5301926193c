"""A small world around the real core: processes, channels, collectives and failures, each a nondeterministic step.

It owns what the core cannot see: what is really in a worker's memory, which collectives can still return, which
messages are under way. It never repeats a decision of the core; it runs `Machine` and `WorkerMachine` themselves.

Everything is as nasty as the real thing: channels keep their order but are independent of each other and of the
exits that an agent sees; a collective that all have entered may return success to any subset after a death or a cut,
and an error to the others; who is suspected goes on until the kill; a node out of reach goes on; a timer may be early.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from everstep.core.config import JobConfig
from everstep.core.events import Checkpoint, JobPhase
from everstep.core.machine import Machine
from everstep.core.worker import WorkerMachine
from everstep.errors import ConfigError
from everstep.types import Generation, Mesh, Step

STORED = Checkpoint(Step(0), Generation(0))
"""What is on storage from the start, if anything is."""


class Kind(enum.Enum):
    """The failures that the explorer can inject. Each uses one of the failures that are allowed.

    A process that is frozen, or hangs, is one that takes no step, and this world lets everybody take no step for as
    long as it likes; so SUSPECT covers freezes, hangs, zombies that come back before they are killed, and false alarms.
    """

    CRASH = "crash"  # a process dies; its agent tells it some time later
    SUSPECT = "suspect"  # a verdict on a process, which goes on until it is killed
    TIMER = "timer"  # a deadline for somebody who would have answered
    BREAK = "break"  # a collective fails for one rank and nobody died
    STALL = "stall"  # the verdict that nobody moves
    NODE = "node"  # a node dies with all its processes
    PARTITION = "partition"  # a node is out of reach and its processes go on
    RESTART = "restart"  # the controller is killed and comes back
    DAMAGE = "damage"  # a checkpoint that is to be loaded has a hole
    ECHO = "echo"  # a command comes again, perhaps after a Stop that made it old


@dataclass(frozen=True, slots=True)
class Scope:
    """What is explored."""

    ranks: int = 2
    standbys: int = 1
    failures: int = 1
    steps: int = 2
    nodes: int = 1
    mesh: Mesh | None = None
    checkpoint: bool = False
    """A persistent checkpoint of step 0 is there from the start."""
    resume: bool = False
    """The job goes on from it."""
    seal: bool = False
    """Each rank seals a memory checkpoint of every version, in one of two slots of its node."""
    kinds: tuple[Kind, ...] = tuple(Kind)
    reduce: bool = True
    """Take steps that commute with all others, and that nobody can see, first."""
    machine: type[Machine] = Machine
    worker: type[WorkerMachine] = WorkerMachine

    def __post_init__(self) -> None:
        for name, least in (("failures", 0), ("steps", 1), ("nodes", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be at least {least}")
        if self.resume and not self.checkpoint:
            raise ConfigError("resume needs a checkpoint to begin with")
        _ = self.job  # its own rules come before those that compare
        if self.nodes > self.ranks:
            raise ConfigError(f"nodes is {self.nodes}: there are only {self.ranks} ranks to put on them")
        if self.mesh is not None and self.mesh.size != self.ranks:
            raise ConfigError(f"mesh {self.mesh} has {self.mesh.size} places, not {self.ranks}")

    @property
    def layout(self) -> Mesh:
        return self.mesh or Mesh(self.ranks)

    @property
    def devices(self) -> int:
        """Of each node: enough for its own ranks and those of a lost node."""
        return self.ranks

    @property
    def job(self) -> JobConfig:
        """Limits that the allowed failures cannot reach: a job that fails has lost state."""
        many = 10 * (self.failures + 1)
        resume = (STORED,) if self.resume else ()
        limits = {"max_failures": many, "max_failures_per_step": many}
        return JobConfig(self.ranks, self.standbys, self.nodes, resume=resume, **limits)


class Link(enum.IntEnum):
    """The connection between an agent and the controller."""

    UP = 0
    AWAY = 1  # the controller was restarted and this agent has not said hello yet
    LOST = 2  # the controller gave the node up, but its processes go on
    DEAD = 3


class Task(enum.IntEnum):
    """What a main thread does in our code, where it is not parked and not in the user's."""

    NONE = 0
    DROP = 1
    CONNECT = 2
    FILL = 3
    SEAL = 4


class Process(NamedTuple):
    """What is true of a worker, whatever it says."""

    node: int
    core: int
    alive: bool = True
    killing: bool = False
    suspect: bool = False
    """Someone gave the controller a verdict on it."""
    content: int = 0
    """Halves of updates in its memory: 2 · v is the complete version v."""
    gradients: int = -1
    """The step whose complete gradients it holds."""
    task: Task = Task.NONE
    serving: int = 0
    """The generation in which it gives its state away."""
    promised: bool = False
    """Its parked main thread has answered a Stop and no newer command has come."""
    filling: int = -1
    """The Restore that it carries out, as a message number."""
    echo: int = -1
    """The newest command that is no Stop, as a message number, while it may come again."""
    up: tuple[int, ...] = ()
    down: tuple[int, ...] = ()


class Seat(NamedTuple):
    """What one rank has entered in the collectives of one generation."""

    worker: int
    sync: int = -1
    barrier: int = -1


class Group(NamedTuple):
    generation: int
    seats: tuple[Seat | None, ...]


class Saved(NamedTuple):
    """The share of one rank that really is in a slot of a node."""

    rank: int
    node: int
    slot: int
    checkpoint: Checkpoint


class World(NamedTuple):
    core: int
    timer: tuple[int, JobPhase] | None
    budget: int
    links: tuple[Link, ...]
    processes: tuple[Process | None, ...]
    notices: frozenset[int]
    """What agents have seen and not yet told, as message numbers."""
    groups: tuple[Group, ...]
    saved: frozenset[Saved] = frozenset()
    stored: bool = False
    """`STORED` is there, and whole."""
