"""Who is in the job: nodes, their devices, workers, the rank each has. Bookkeeping without decisions.

Every query that a recovery needs is answered from an index, so that nothing is worse than linear in nodes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Self, cast

from everstep.types import Coordinate, NodeId, Rank, WorkerId, WorkerPhase

DEVICE_OF_NONE = ""


@dataclass(frozen=True, slots=True)
class Worker:
    """One incarnation. ``stage`` is SPAWNED, STANDBY, BUILDING, HOLLOW or IDLE (a holder of state)."""

    id: WorkerId
    node: NodeId
    stage: WorkerPhase = WorkerPhase.SPAWNED
    rank: Rank | None = None
    device: str = DEVICE_OF_NONE
    """A standby touches no device before it has a rank."""


@dataclass(frozen=True, slots=True)
class Node:
    id: NodeId
    free: tuple[str, ...]
    """Devices nobody uses. One judged sick is never put back."""
    present: bool = True
    """False between a restart of the controller and the agent's return."""
    troubles: int = 0
    """Failures that speak against the node itself."""


@dataclass(slots=True)
class Membership:
    nodes: dict[NodeId, Node] = field(default_factory=dict)
    workers: dict[WorkerId, Worker] = field(default_factory=dict)
    seats: dict[Rank, WorkerId] = field(default_factory=dict)
    """Who has a rank. A vacant rank is missing here."""
    coordinates: dict[Rank, Coordinate] = field(default_factory=dict)
    pool: dict[WorkerId, None] = field(default_factory=dict)
    """Workers without a rank, in the order they came."""
    leaving: dict[WorkerId, None] = field(default_factory=dict)
    """Workers that had a rank and still use its device."""
    open_nodes: dict[NodeId, None] = field(default_factory=dict)
    """Nodes with a free device."""
    by_node: dict[NodeId, frozenset[WorkerId]] = field(default_factory=dict)
    sick: dict[tuple[NodeId, str], None] = field(default_factory=dict)
    """Devices that must not be used again."""
    next_id: int = 0

    # ── nodes ────────────────────────────────────────────────────────────────────────────────────────────

    def join(self, node: NodeId, devices: tuple[str, ...]) -> None:
        """A node that comes back has the sick devices that it had."""
        self.by_node.setdefault(node, frozenset())
        self._put_node(Node(node, tuple(device for device in devices if (node, device) not in self.sick)))

    def leave(self, node: NodeId) -> frozenset[WorkerId]:
        """Forget a node; what ran there is returned, still to be removed."""
        del self.nodes[node]
        self.open_nodes.pop(node, None)
        return self.by_node.pop(node)

    def take_out(self, node: NodeId, device: str) -> WorkerId | None:
        """A device that must not be used again; its user, if it has one, is still to be judged."""
        record = self.nodes[node]
        self.sick[node, device] = None
        self._put_node(replace(record, free=tuple(free for free in record.free if free != device)))
        users = (worker for worker in self.by_node[node] if self.workers[worker].device == device)
        return next(users, None)

    def mark(self, node: NodeId, *, present: bool | None = None, trouble: bool = False) -> None:
        old = self.nodes[node]
        self._put_node(
            replace(
                old,
                present=old.present if present is None else present,
                troubles=old.troubles + trouble,
            )
        )

    def _put_node(self, node: Node) -> None:
        self.nodes[node.id] = node
        if node.free and node.present:
            self.open_nodes[node.id] = None
        else:
            self.open_nodes.pop(node.id, None)

    # ── workers ──────────────────────────────────────────────────────────────────────────────────────────

    def add(self, node: NodeId) -> Worker:
        worker = Worker(WorkerId(self.next_id), node)
        self.next_id += 1
        self.workers[worker.id] = worker
        self.pool[worker.id] = None
        self.by_node[node] |= {worker.id}
        return worker

    def seat(self, worker: WorkerId, rank: Rank) -> Worker:
        """Give a rank, and a free device of its node, to a worker of the pool."""
        old = self.workers[worker]
        node = self.nodes[old.node]
        device, *rest = node.free
        self._put_node(replace(node, free=tuple(rest)))
        stage = WorkerPhase.BUILDING if old.stage is WorkerPhase.STANDBY else old.stage
        new = replace(old, rank=rank, device=device, stage=stage)
        self.workers[worker] = new
        self.seats[rank] = worker
        del self.pool[worker]
        return new

    def set_stage(self, worker: WorkerId, stage: WorkerPhase) -> None:
        self.workers[worker] = replace(self.workers[worker], stage=stage)

    def unseat(self, worker: WorkerId) -> None:
        """Its rank is vacant from now on; the process, and the device it uses, are still there."""
        record = self.workers[worker]
        if record.rank is None:
            self.pool.pop(worker, None)
        elif self.is_seated(record):
            del self.seats[record.rank]
            self.leaving[worker] = None

    def remove(self, worker: WorkerId, *, device_usable: bool) -> None:
        """The process is gone, or given up; its device is free, or lost."""
        record = self.workers.pop(worker)
        self.leaving.pop(worker, None)
        node = self.nodes.get(record.node)
        if node is None:
            return
        self.by_node[node.id] -= {worker}
        if record.device and not device_usable:
            self.sick[node.id, record.device] = None
        elif record.device:
            self._put_node(replace(node, free=(*node.free, record.device)))

    # ── queries ──────────────────────────────────────────────────────────────────────────────────────────

    def vacancies(self, ranks: int) -> list[Rank]:
        if len(self.seats) == ranks:
            return []
        return [rank for rank in map(Rank, range(ranks)) if rank not in self.seats]

    def seated(self, *stages: WorkerPhase) -> list[WorkerId]:
        """Workers with a rank that are in one of these stages, by rank."""
        return [
            worker for _, worker in sorted(self.seats.items()) if not stages or self.workers[worker].stage in stages
        ]

    def is_seated(self, worker: Worker) -> bool:
        return worker.rank is not None and self.seats.get(worker.rank) == worker.id

    def suspect(self, node: NodeId) -> bool:
        record = self.nodes.get(node)
        return record is None or record.troubles > 0

    def shard_of(self, rank: Rank) -> int:
        return self.coordinates[rank].shard

    # ── the compact form ─────────────────────────────────────────────────────────────────────────────────

    def freeze(self) -> Hashable:
        return (self.next_id, *(frozenset(getattr(self, name).items()) for name in _DICTS))

    @classmethod
    def thaw(cls, frozen: Hashable) -> Self:
        next_id, *dicts = cast("tuple[int, Iterable[tuple[object, object]]]", frozen)
        new = cls(next_id=next_id)
        for name, items in zip(_DICTS, dicts, strict=True):
            setattr(new, name, dict(items))
        return new


_DICTS = tuple(field.name for field in fields(Membership) if field.name != "next_id")
