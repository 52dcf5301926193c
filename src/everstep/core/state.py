"""The state of the machine: its fields, what each is for, and a compact form to compare, store and copy.

It decides nothing. The part that transitions depend on is in `freeze`; what only explains them is not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Self, cast

from everstep.core.config import JobConfig
from everstep.core.effects import Action, Arm, Command, Effect, Kill, Note, Send
from everstep.core.events import Cause, Checkpoint, Event, JobPhase, Position
from everstep.core.membership import Membership
from everstep.core.planner import Checkpoints
from everstep.types import Generation, NodeId, Rank, Step, WorkerId, WorkerPhase

RECENT_EVENTS = 20


class Fence(NamedTuple):
    """A kill under way."""

    usable: bool = True
    """Its device can be used again."""
    forgivable: bool = False
    """The detector asked for it; if the worker had moved on by then, it was a false alarm."""


class Loss(NamedTuple):
    """Why a recovery begins, or begins again: somebody who had a rank failed, or nobody is to blame."""

    cause: Cause
    evidence: str
    worker: WorkerId | None = None
    rank: Rank | None = None
    node: NodeId | None = None
    stage: WorkerPhase | None = None
    """What the membership knew of it."""


@dataclass(slots=True)
class JobState:
    config: JobConfig
    phase: JobPhase = JobPhase.STARTING
    generation: Generation = Generation(1)
    target: Step = Step(0)
    """T: the step that everybody runs after the newest decision."""
    source: Checkpoint | None = None
    """Set while the state of ``target`` comes from this checkpoint and not from replicas."""
    members: Membership = field(default_factory=Membership)
    awaiting: set[WorkerId] = field(default_factory=set)
    """Who still owes the answer that this phase waits for."""
    fencing: dict[WorkerId, Fence] = field(default_factory=dict)
    """Who is being killed."""
    answers: dict[WorkerId, Position] = field(default_factory=dict)
    """Where the survivors of this generation stand."""
    actions: dict[WorkerId, Action] = field(default_factory=dict)
    """What the decision told each survivor."""
    donors: dict[WorkerId, WorkerId] = field(default_factory=dict)
    """Who gives its state to which newcomer."""
    table: tuple[WorkerId, ...] = ()
    """The worker of each rank in the groups of this generation."""
    over: bool = False
    """A survivor had left the loop at T, so it is over for newcomers too."""
    ended: dict[WorkerId, Step] = field(default_factory=dict)
    """Who has left the loop, and at which version."""
    gathered: bool = False
    """The nodes that the job needs to begin have joined once."""
    finished: set[Rank] = field(default_factory=set)
    """Ranks whose script ended with code 0."""
    former: dict[Rank, NodeId] = field(default_factory=dict)
    """The node of the last worker that had a vacant rank."""
    layouts: dict[int, str] = field(default_factory=dict)
    """Digest of the model by shard."""
    failures: int = 0
    attempts: int = 0
    """Recoveries, or starts, in a row that led to no committed step."""
    graced: bool = False
    """A collective of this generation failed and the verdict that explains it is awaited."""
    stalled: bool = False
    """Nobody moved in this step once before."""
    stranded: bool = False
    """Somebody has lost what nobody else has: live replicas are no help, a checkpoint may be."""
    stillborn: tuple[str, int] = ("", 0)
    """Where the newest process failed before init(), and how many in a row did so there."""
    duds: int = 0
    """Processes in a row that ended before init(), wherever."""
    checkpoints: Checkpoints = field(init=False)
    recent: deque[Event] = field(default_factory=lambda: deque(maxlen=RECENT_EVENTS), repr=False)
    last_failure: str = ""
    """For the reason of a failed job; no decision looks at it."""
    reason: str = ""
    """The newest decision in a sentence; no other decision looks at it."""
    losses: list[Loss] = field(default_factory=list, repr=False)
    """The failures in the event that is being handled, for the records."""
    out: list[Effect] = field(default_factory=list, repr=False)
    """The effects of the event that is being handled."""

    def __post_init__(self) -> None:
        self.checkpoints = Checkpoints(self.config.ranks)
        if self.config.resume:
            self.source = self.config.resume[0]
            self.target = self.source.step
            for checkpoint in self.config.resume:
                self.checkpoints.persist(checkpoint)

    # ── effects ──────────────────────────────────────────────────────────────────────────────────────────

    def send(self, to: Iterable[WorkerId], command: Command) -> None:
        receivers = tuple(to)
        if receivers:
            self.out.append(Send(receivers, command))

    def note(self, text: str) -> None:
        self.out.append(Note(text))

    def arm(self, phase: JobPhase, delay_s: float) -> None:
        self.out.append(Arm(self.generation, phase, delay_s))

    def kill(self, worker: WorkerId) -> None:
        self.out.append(Kill(self.members.workers[worker].node, worker))

    def name(self, worker: WorkerId) -> str:
        record = self.members.workers[worker]
        who = "a standby" if record.rank is None else f"rank {record.rank}"
        return f"{who} (worker {worker} on {record.node})"

    # ── the compact form ─────────────────────────────────────────────────────────────────────────────────

    def freeze(self) -> Hashable:
        """All that transitions depend on, hashable. Equal forms behave equally."""
        return (
            tuple(getattr(self, name) for name in _VALUES),
            tuple(frozenset(getattr(self, name)) for name in _SETS),
            tuple(frozenset(getattr(self, name).items()) for name in _DICTS),
            self.members.freeze(),
            self.checkpoints.freeze(),
        )

    @classmethod
    def thaw(cls, config: JobConfig, frozen: Hashable) -> Self:
        """A new state that is equal to the frozen one."""
        values, sets, dicts, members, checkpoints = cast("tuple[tuple[object, ...], ...]", frozen)
        state = cls(config)
        for name, value in zip(_VALUES, values, strict=True):
            setattr(state, name, value)
        for name, value in zip(_SETS, sets, strict=True):
            setattr(state, name, set(cast("Iterable[object]", value)))
        for name, value in zip(_DICTS, dicts, strict=True):
            setattr(state, name, dict(cast("Iterable[tuple[object, object]]", value)))
        state.members = Membership.thaw(members)
        state.checkpoints = Checkpoints.thaw(config.ranks, checkpoints)
        return state


_VALUES = (
    *("phase", "generation", "target", "source", "table", "over"),
    *("failures", "attempts", "graced", "stalled", "stranded", "stillborn", "duds", "gathered"),
)
_SETS = ("awaiting", "finished")
_DICTS = ("fencing", "answers", "actions", "donors", "ended", "former", "layouts")
