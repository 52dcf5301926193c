"""State that each rank has for itself: nobody else's is equal to it, so the next replica of its shard keeps a copy.

Carried random streams, a stateful loader, what the script names so. Before a step is READY each rank sends its own to
the next replica; so COMMITTED(i) means that every rank's state after step i exists twice. A shard without replicas
could not be restored anyway, so nobody keeps a copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from everstep.errors import LostError, RuleError
from everstep.types import Coordinate, Step
from everstep.worker.groups.exchange import receive_bytes, send_bytes
from everstep.worker.state.parts import Part, part_of
from everstep.worker.state.protected import as_bytes
from everstep.worker.state.sharded import Meshes
from everstep.worker.state.tree import Flat, Found, Plain, decode, encode


class _Image(msgspec.Struct, frozen=True, array_like=True):
    values: bytes
    tensors: list[tuple[str, str, list[int], bytes]]
    """Name, type, shape, content."""


class Private:
    """Of this rank, and the copy of its neighbour's."""

    def __init__(self, things: Mapping[str, Any]) -> None:
        self.parts: list[Part] = [part_of(name, thing) for name, thing in things.items()]
        self.missing = False
        """This rank is new and has not got back what its predecessor had."""
        self._after: list[int] = []
        self._before: list[int] = []
        self._held: dict[Step, bytes] = {}
        self._given = b""
        self._built = self.image() if self.parts else b""
        """As the script made it."""

    def __bool__(self) -> bool:
        return bool(self.parts)

    def places(self) -> list[torch.Tensor]:
        """Its tensors that exist at any time; they may be part of the protected state too."""
        return [tensor for part in self.parts for tensor in part.places().values()]

    def arrange(self, coordinates: Sequence[Coordinate]) -> None:
        """The replicas of each shard in a ring."""
        rings: dict[int, list[int]] = {}
        for rank, at in enumerate(coordinates):
            rings.setdefault(at.shard, []).append(rank)
        self._after, self._before = [*range(len(coordinates))], [*range(len(coordinates))]
        for ring in rings.values():
            for rank, following in zip(ring, (*ring[1:], ring[0]), strict=True):
                self._after[rank], self._before[following] = following, rank

    def exchange(self, group: dist.ProcessGroup, version: Step) -> None:
        """Give the next replica what this one has for this version; keep what the one before gives."""
        after, before = self._after[group.rank()], self._before[group.rank()]
        if not self.parts or after == group.rank():
            return
        image = self._given = self.image()
        sizes = torch.tensor([len(image)])
        theirs = torch.zeros(1, dtype=torch.int64)
        works = [group.send([sizes], after, 0), group.recv([theirs], before, 0)]
        for work in works:
            work.wait()
        data = torch.empty(int(theirs), dtype=torch.uint8)
        own = torch.frombuffer(bytearray(image), dtype=torch.uint8)
        works = [group.send([own], after, 0), group.recv([data], before, 0)]
        for work in works:
            work.wait()
        self._held = {kept: held for kept, held in self._held.items() if kept >= version - 1}
        self._held[version] = data.numpy().tobytes()

    def check(self) -> None:
        """Behind an update: the copy that was given before it has to be true still."""
        if not self._given or self.image() == self._given:
            return
        names = ", ".join(part.name for part in self.parts)
        raise RuleError(
            f"private state ({names}) was changed behind the barrier of its step, so its only copy, on another rank, "
            "is old: change it before optimizer.step(), or between two steps; what all ranks have alike is extra="
        )

    def give_back(self, group: dist.ProcessGroup, version: Step, missing: list[int]) -> None:
        """After a recovery: each rank that lacks its own gets it from the next replica."""
        rank = group.rank()
        for lost in missing:
            keeper = self._after[lost]
            if keeper in missing:
                if rank == lost:
                    self.take(b"", version)
                continue
            if rank == keeper:
                send_bytes(group, lost, self._held.get(version, b""))
            elif rank == lost:
                self.take(receive_bytes(group, keeper), version)
        if missing:
            self.exchange(group, version)  # what it does not come to replace is still true

    def image(self) -> bytes:
        """All of it, as `take` takes it."""
        flat = Flat(Meshes())
        values = encode([part.pack(flat) for part in self.parts])
        tensors = [
            (name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), as_bytes(tensor).numpy().tobytes())
            for name, tensor in zip(flat.names, flat.tensors, strict=True)
        ]
        return msgspec.msgpack.encode(_Image(values, tensors))

    def reset(self) -> None:
        """Be as the script made it."""
        if self.parts:
            self.take(self._built, Step(0))

    def start_anew(self, group: dist.ProcessGroup, version: Step) -> None:
        """All ranks have what they had at this version: the copies of anything else are void."""
        self._held.clear()
        self.missing = False
        self.exchange(group, version)

    def take(self, data: bytes, version: Step) -> None:
        """Be as in this image."""
        if not data:
            raise LostError(
                f"the private state of this rank ({', '.join(part.name for part in self.parts)}) at step {version} was "
                "lost together with its only copy, on the next replica"
            )
        image = msgspec.msgpack.decode(data, type=_Image)
        tensors = [
            torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(getattr(torch, dtype)).view(shape)
            if raw
            else torch.empty(shape, dtype=getattr(torch, dtype))
            for _, dtype, shape, raw in image.tensors
        ]
        by_name = dict(zip((name for name, *_ in image.tensors), tensors, strict=True))
        plain: list[Plain] = decode(image.values)
        for part, values in zip(self.parts, plain, strict=True):
            for name, place in part.places().items():
                if name in by_name:  # else it is tied to one that is
                    place.detach().copy_(by_name[name])
            part.put(values, Found(tensors, Meshes()))
        self.missing = False
