"""The decisions of a recovery as pure functions, each with a reason that a person can read in a log.

They know the membership and the positions of live holders, and change nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import Any, NamedTuple, Self, cast

from everstep.core.effects import Action
from everstep.core.events import Checkpoint, Position
from everstep.core.membership import Membership
from everstep.types import NodeId, Rank, Step, WorkerId, WorkerPhase


@dataclass(frozen=True, slots=True)
class Decision:
    """Redo step ``target``, or finish the step before it and go on with ``target``."""

    target: Step
    actions: dict[WorkerId, Action]
    unreachable: tuple[WorkerId, ...]
    """Holders that cannot come to the target: I1 or I2 was broken. They are replaced."""
    reason: str


def decide(positions: Mapping[WorkerId, Position]) -> Decision:
    """docs/protocol.md: T is the largest version that a live holder has reached or has committed to reach.

    What a dead worker knew has no effect (I4): it is not among the positions.
    """
    holders = {worker: at for worker, at in positions.items() if at.phase is not WorkerPhase.HOLLOW}
    target = Step(max(_reaches(at) for at in holders.values()))
    actions: dict[WorkerId, Action] = {}
    unreachable: list[WorkerId] = []
    for worker, at in holders.items():
        if at.version == target:
            actions[worker] = Action.REDO
        elif at.version == target - 1 and at.phase in (WorkerPhase.READY, WorkerPhase.COMMITTED):
            actions[worker] = Action.FINISH
        else:
            unreachable.append(worker)
    return Decision(target, actions, tuple(unreachable), _reason(target, holders, actions))


def _reaches(at: Position) -> int:
    return at.version + (at.phase is WorkerPhase.COMMITTED)


def _reason(target: Step, holders: Mapping[WorkerId, Position], actions: Mapping[WorkerId, Action]) -> str:
    everybody = f"{len(holders)} live holder" + "s" * (len(holders) != 1)
    finishing = sum(action is Action.FINISH for action in actions.values())
    if not finishing:
        return f"of {everybody} nobody has passed the barrier of step {target}: step {target} is done again"
    updated = sum(at.version == target for at in holders.values())
    committed = sum(at.phase is WorkerPhase.COMMITTED for at in holders.values())
    return (
        f"of {everybody} {updated + committed} had passed the barrier of step {target - 1}, so its update counts: "
        f"{finishing} finish it and all go on with step {target}"
    )


def missing_shards(membership: Membership, holders: Mapping[WorkerId, object]) -> list[int]:
    """Pieces of the state that no live holder has."""
    live = {membership.shard_of(rank) for rank, worker in membership.seats.items() if worker in holders}
    every = {coordinate.shard for coordinate in membership.coordinates.values()}
    return sorted(every - live)


def donors(membership: Membership, newcomers: list[WorkerId]) -> dict[WorkerId, WorkerId]:
    """A live holder of the same shard for each newcomer: the one that gives least so far, the same node first."""
    holders: dict[int, list[WorkerId]] = defaultdict(list)
    for rank, worker in sorted(membership.seats.items()):
        if membership.workers[worker].stage is WorkerPhase.IDLE:
            holders[membership.shard_of(rank)].append(worker)
    load: dict[WorkerId, int] = defaultdict(int)
    chosen: dict[WorkerId, WorkerId] = {}
    for newcomer in newcomers:
        record = membership.workers[newcomer]
        assert record.rank is not None

        def cost(donor: WorkerId, node: NodeId = record.node) -> tuple[int, bool, int]:
            return load[donor], membership.workers[donor].node != node, donor

        donor = min(holders[membership.shard_of(record.rank)], key=cost)
        load[donor] += 1
        chosen[newcomer] = donor
    return chosen


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a vacant rank goes: a standby, or a new process on a node."""

    rank: Rank
    node: NodeId
    standby: WorkerId | None
    reason: str


def place(membership: Membership, ranks: Iterable[Rank], former: Mapping[Rank, NodeId]) -> Iterator[Placement]:
    """A standby, else a fork on the same node, else on another. It ends early where a node has to be waited for.

    Where the former node is suspect, any other node goes first.
    """
    free = {node: len(membership.nodes[node].free) for node in membership.open_nodes}
    ready: dict[NodeId, list[WorkerId]] = defaultdict(list)
    for worker in sorted(membership.pool, reverse=True):
        record = membership.workers[worker]
        if record.stage is WorkerPhase.STANDBY and record.node in free:
            ready[record.node].append(worker)
    warm, cold = _Preference(membership, free, ready), _Preference(membership, free, free)
    for rank in ranks:
        node, standby = warm.best(former.get(rank)), None
        if node is not None:
            standby = ready[node].pop()
            if not ready[node]:
                del ready[node]
        else:
            node = cold.best(former.get(rank))
        if node is None:
            return
        free[node] -= 1
        warm.changed(node)
        cold.changed(node)
        where = f"a new process on {node}" if standby is None else f"standby {standby} on {node}"
        yield Placement(rank, node, standby, f"rank {rank} goes to {where}")


class _Preference:
    """Nodes in the order in which ranks go to them: not suspect, then many free devices, then by name.

    A heap, because at a start each of thousands of ranks asks thousands of nodes.
    """

    def __init__(self, membership: Membership, free: Mapping[NodeId, int], among: Container[NodeId]) -> None:
        self._membership, self._free, self._among = membership, free, among
        self._heap = [self._entry(node) for node in free if node in among]
        heapify(self._heap)

    def best(self, former: NodeId | None) -> NodeId | None:
        if former is not None and self._is_open(former) and not self._membership.suspect(former):
            return former
        first = self._first()
        if first is None or first != former:
            return first
        entry = heappop(self._heap)
        second = self._first()
        heappush(self._heap, entry)
        return second or first

    def changed(self, node: NodeId) -> None:
        if self._is_open(node):
            heappush(self._heap, self._entry(node))

    def _first(self) -> NodeId | None:
        """The best one; entries that are no longer true go."""
        while self._heap:
            node = self._heap[0][2]
            if self._is_open(node) and self._heap[0] == self._entry(node):
                return node
            heappop(self._heap)
        return None

    def _is_open(self, node: NodeId) -> bool:
        return node in self._among and self._free.get(node, 0) > 0

    def _entry(self, node: NodeId) -> tuple[bool, int, NodeId]:
        return self._membership.suspect(node), -self._free[node], node


def place_standby(membership: Membership) -> NodeId | None:
    """The node with the fewest standbys."""
    count = dict.fromkeys((node for node, record in membership.nodes.items() if record.present), 0)
    for worker in membership.pool:
        node = membership.workers[worker].node
        if node in count:
            count[node] += 1
    return min(count, key=lambda node: (membership.suspect(node), count[node], node), default=None)


class Held(NamedTuple):
    """What a slot in the shared memory of a node holds."""

    node: NodeId
    slot: int
    checkpoint: Checkpoint


REMEMBERED = 8
"""So many persistent checkpoints are known; retention keeps fewer, or far apart."""


_age = attrgetter("age")


@dataclass(slots=True)
class Checkpoints:
    """Which checkpoints exist: in the memory of which node, and which are committed on storage."""

    ranks: int
    sealed: dict[Rank, tuple[Held, ...]] = field(default_factory=dict)
    persisted: tuple[Checkpoint, ...] = ()
    """The oldest first."""

    def seal(self, rank: Rank, held: Held) -> None:
        """What the slot held before is gone."""
        kept = [old for old in self.sealed.get(rank, ()) if (old.node, old.slot) != (held.node, held.slot)]
        self.sealed[rank] = tuple(sorted((*kept, held)))

    def persist(self, checkpoint: Checkpoint) -> None:
        self.persisted = tuple(sorted({*self.persisted, checkpoint}, key=_age))[-REMEMBERED:]

    def discard(self, checkpoint: Checkpoint) -> None:
        """It could not be loaded, from wherever."""
        self.persisted = tuple(known for known in self.persisted if known != checkpoint)
        self._keep(lambda held: held.checkpoint != checkpoint)

    def forget_node(self, node: NodeId) -> None:
        self._keep(lambda held: held.node != node)

    def _keep(self, good: Callable[[Held], bool]) -> None:
        self.sealed = {rank: kept for rank, held in self.sealed.items() if (kept := tuple(filter(good, held)))}

    def complete(self) -> set[Checkpoint]:
        """Those that every rank has sealed, each in some slot."""
        if len(self.sealed) < self.ranks:
            return set()
        return set.intersection(*({held.checkpoint for held in slots} for slots in self.sealed.values()))

    def newest(self) -> tuple[Checkpoint, str] | None:
        """The ladder: the newest memory checkpoint complete over all ranks, unless storage has a newer one."""
        best, stored = max(self.complete(), key=_age, default=None), max(self.persisted, key=_age, default=None)
        if best is not None and (stored is None or _age(best) >= _age(stored)):
            return best, "memory"
        return (stored, "persistent") if stored is not None else None

    def freeze(self) -> Hashable:
        return self.persisted, frozenset(self.sealed.items())

    @classmethod
    def thaw(cls, ranks: int, frozen: Hashable) -> Self:
        persisted, sealed = cast("tuple[tuple[Checkpoint, ...], Iterable[tuple[Rank, Any]]]", frozen)
        return cls(ranks, dict(sealed), persisted)
