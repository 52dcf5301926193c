"""Where the shares of a memory checkpoint are, as all ranks find it together.

A slot stays on its node when its worker dies, and a replacement may start on another node: so a share is read by its
own rank if that is where it was, else by whoever is. What one rank says to all is a few bytes.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from everstep.checkpoint.slot import Content, Slot, SlotReader
from everstep.core.events import Checkpoint
from everstep.errors import CheckpointError
from everstep.types import Coordinate, Rank
from everstep.worker.groups.exchange import gather_bytes

NODE_BYTES = 8


@dataclass(frozen=True, slots=True)
class Located:
    """Equal on all ranks, but for ``here``."""

    here: dict[Rank, Content]
    """The shares in the memory of this node."""
    nodes: list[bytes]
    """Where each rank is."""
    readers: dict[Rank, frozenset[Rank]]
    """Ranks that reach the share of this one in the memory of their node."""
    missing: tuple[Rank, ...]
    """Those whose share nobody reaches."""

    def reads(self, rank: Rank, share: Rank) -> bool:
        """Whether the rank has this share in the memory of its node."""
        readers = self.readers.get(share, frozenset())
        return rank in readers or (share in readers and self.nodes[rank] == self.nodes[share])

    def transfers(self, coordinates: Sequence[Coordinate]) -> Iterator[tuple[Rank, Rank, Rank]]:
        """Who sends whose share to whom, in the order in which all do it."""
        members: dict[int, list[Rank]] = {}
        for rank, at in enumerate(coordinates):
            members.setdefault(at.shard, []).append(Rank(rank))
        for share, readers in sorted(self.readers.items()):
            reader = share if share in readers else min(readers)
            for rank in members[coordinates[share].shard]:
                if rank != reader and not self.reads(rank, share):
                    yield reader, share, rank


def locate(group: dist.ProcessGroup, memory: Path, checkpoint: Checkpoint, mapped: Mapping[Path, Slot]) -> Located:
    """All ranks look, and tell each other. RuntimeError if one more failure comes meanwhile."""
    here = shares_in(memory, checkpoint, mapped)
    rank, ranks = Rank(group.rank()), range(group.size())
    said = gather_bytes(group, _node(memory) + bytes([rank in here]))
    nodes = [word[:NODE_BYTES] for word in said]
    homes = {Rank(other) for other in ranks if said[other][NODE_BYTES]}
    away = [Rank(other) for other in ranks if other not in homes]
    readers = {home: frozenset((home,)) for home in homes}
    if homes and away:
        masks = gather_bytes(group, bytes(share in here for share in away))
        found = {share: frozenset(Rank(r) for r in ranks if masks[r][place]) for place, share in enumerate(away)}
        readers |= {share: those for share, those in found.items() if those}
    return Located(here, nodes, readers, tuple(share for share in away if share not in readers))


def shares_in(memory: Path, checkpoint: Checkpoint, mapped: Mapping[Path, Slot]) -> dict[Rank, Content]:
    """Those of this checkpoint that are sealed in the shared memory of this node. A damaged one is none.

    To map a share page by page takes longer than to copy it, so the slots that this process has in its memory are read
    where they are.
    """
    found: dict[Rank, Content] = {}
    for path in sorted(memory.glob("slot-*")):
        try:
            with nullcontext(mapped[path]) if path in mapped else SlotReader(path) as slot:
                if slot.checkpoint == checkpoint:
                    content = slot.read(checkpoint)
                    found[Rank(content.manifest.rank)] = content
        except (CheckpointError, FileNotFoundError):
            continue
    return found


def _node(memory: Path) -> bytes:
    """Equal on the ranks that see the same files."""
    return hashlib.blake2b(f"{socket.gethostname()} {memory}".encode(), digest_size=NODE_BYTES).digest()
