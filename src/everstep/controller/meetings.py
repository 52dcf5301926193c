"""What workers say to each other through the controller: addresses of process groups, and memories for newcomers.

It hands on and decides nothing. Addresses are of one generation and kept in memory: after a restart of the controller
the agents say them again. Memories are kept in the run directory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from everstep.types import Generation, NodeId, WorkerId
from everstep.wire.messages import Keep, Meet, Memories, Publish, Tell


@dataclass(slots=True)
class _Group:
    addresses: dict[int, bytes] = field(default_factory=dict)
    members: dict[WorkerId, NodeId] = field(default_factory=dict)


class Meetings:
    """One for a job."""

    def __init__(self, memories: Path) -> None:
        self._path = memories
        self._memories: dict[str, bytes] = {}
        if memories.exists():
            self._memories = msgspec.msgpack.decode(memories.read_bytes(), type=dict[str, bytes])
        self._generation = Generation(0)
        self._groups: defaultdict[str, _Group] = defaultdict(_Group)

    def publish(self, node: NodeId, message: Publish) -> Iterator[tuple[NodeId, Tell]]:
        """When the last member has come: the rows for the members, one message for each node."""
        if message.generation > self._generation:
            self._generation = message.generation
            self._groups.clear()
        group = self._groups[message.key]
        group.addresses[message.rank] = message.address
        group.members[message.worker] = node
        if len(group.addresses) < message.size:
            return
        rows = tuple(address for _, address in sorted(group.addresses.items()))
        meet = Meet(message.generation, message.key, rows)
        nodes: defaultdict[NodeId, list[WorkerId]] = defaultdict(list)
        for worker, where in group.members.items():
            nodes[where].append(worker)
        for where, workers in nodes.items():
            yield where, Tell(tuple(workers), meet)

    def keep(self, message: Keep) -> None:
        """Whole or not at all: a controller that is killed here starts from the file as it was."""
        self._memories.update(message.memories)
        part = self._path.with_suffix(".part")
        part.write_bytes(msgspec.msgpack.encode(self._memories))
        part.replace(self._path)

    @property
    def memories(self) -> Memories:
        return Memories(self._memories)
