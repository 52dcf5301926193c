"""What a saved share of the state consists of: the list of its tensors, and all that is no tensor.

A share belongs to one rank. The replicas of a shard divide its tensors among them, so each share lists all tensors of
the shard and says who has which. Knows neither torch nor files: a slot holds one, and the header of a file.
"""

from __future__ import annotations

import msgspec


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

    def own(self) -> list[Entry]:
        """Those whose bytes are in this share."""
        return [entry for entry in self.entries if entry.owner == self.replicate]
