"""What a saved share of the state consists of: the list of its tensors, and all that is no tensor.

A share belongs to one rank. The replicas of a shard divide its tensors among them, so each share lists all tensors of
the shard and says who has which. Knows neither torch nor files: a slot holds one, and the header of a file.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from everstep.core.events import Checkpoint
from everstep.errors import StateError
from everstep.types import Generation, Step

ITEM_BYTES = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "C64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "U16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
}
"""The types that safetensors knows, and how many bytes an element has."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of the shard, in the order in which `Protected.read` numbers them."""

    name: str
    """The one of `Protected`: it finds the place of the tensor in the live objects."""
    key: str
    """The fully qualified name that torch.distributed.checkpoint gives it, e.g. ``model.0.weight``."""
    dtype: str
    """As safetensors writes it: F32, BF16, I64, …"""
    shape: list[int]
    """Of the piece that this shard has."""
    offsets: list[int]
    """Where that piece begins in the whole tensor."""
    whole: list[int]
    """Shape of the whole tensor."""
    owner: int
    """The replica (`Coordinate.replicate`) that saves it."""
    start: int
    """Of its bytes in the data of the owner's share."""
    size_bytes: int
    device: str = "cpu"
    """Type of the device that it was on."""


class Manifest(msgspec.Struct, frozen=True):
    """One share."""

    step: int
    generation: int
    attempt: int
    rank: int
    world_size: int
    replicate: int
    shard: int
    layout: str
    """Digest of what the script has built: equal on all replicas of the shard."""
    entries: list[Entry]
    values: bytes
    """All that is no tensor, as `Protected.read` encodes it; equal on all replicas of the shard."""
    private: bytes = b""
    """What this rank alone has: carried random streams, a stateful loader. Empty if it has none."""

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(Step(self.step), Generation(self.generation), self.attempt)

    @property
    def data_bytes(self) -> int:
        """Of the tensors in this share."""
        return sum(entry.size_bytes for entry in self.own())

    def own(self) -> list[Entry]:
        """Those whose bytes are in this share."""
        return [entry for entry in self.entries if entry.owner == self.replicate]


def arrange(entries: Sequence[Entry]) -> list[Entry]:
    """The same entries, with their places in the data of their owners.

    In the way that safetensors wants it: without gaps, the largest elements first, so that each tensor is aligned.
    """
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for number in sorted(range(len(entries)), key=lambda number: -_item_bytes(entries[number])):
        entry = entries[number]
        starts[number] = ends.get(entry.owner, 0)
        ends[entry.owner] = starts[number] + entry.size_bytes
    return [msgspec.structs.replace(entry, start=starts[number]) for number, entry in enumerate(entries)]


def _item_bytes(entry: Entry) -> int:
    try:
        return ITEM_BYTES[entry.dtype]
    except KeyError:
        raise StateError(
            f"{entry.name} has elements of type {entry.dtype}, which no checkpoint can hold; "
            f"it may have {', '.join(sorted(ITEM_BYTES))}"
        ) from None
