"""What the script's small collectives gave before protect(): recorded at the first start, replayed to a newcomer.

A broadcast seed, the name of a run, the size of a vocabulary: a newcomer asks for them while nobody answers. They are
found by group and sequence number, because the script does the same on every rank in the same order.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
import torch

from everstep.errors import RuleError

log = logging.getLogger(__name__)

_OTHER_SOURCE = (
    "everstep: collective %d before protect() is a broadcast from this rank, and this replacement gives something else "
    "than the job began with. A tensor has the job's value now, but what was given to broadcast_object_list() has not: "
    "make it the same each time (not from the time, a random number or a new file)"
)

SMALL_BYTES = 64 << 10
"""A larger result is not kept: it has to land in protected state."""
TOTAL_BYTES = 1 << 20


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """The result of one collective; None if it was too large, or is another one on each rank."""

    operation: str
    outputs: list[bytes] | None


class Prologue:
    """Of one group: written by those that founded the job, read by a newcomer."""

    def __init__(self, entries: list[Entry] | None = None) -> None:
        self._replayed = entries
        self._at = 0
        self._total = 0
        self.entries: list[Entry] = []
        self.unshared: set[str] = set()
        """Operations whose result only this rank has, so that no replacement can be given it."""

    @property
    def replays(self) -> bool:
        return self._replayed is not None

    def wants(self, shared: bool, operation: str, outputs: Sequence[torch.Tensor]) -> bool:
        """Whether the result has to be waited for now, to be kept. One that is not kept is noted as such."""
        size = sum(tensor.numel() * tensor.element_size() for tensor in outputs)
        if shared and size <= SMALL_BYTES and self._total + size <= TOTAL_BYTES:
            self._total += size
            return True
        if not shared and outputs:
            self.unshared.add(operation)
        self.entries.append(Entry(operation, None))
        return False

    def record(self, operation: str, outputs: Sequence[torch.Tensor]) -> None:
        self.entries.append(Entry(operation, [_bytes(tensor) for tensor in outputs]))

    def replay(self, operation: str, outputs: Sequence[torch.Tensor], *, source: bool = False) -> bool:
        """Write the recorded result, if there is one. The source of a broadcast may have made another one by now."""
        if self._replayed is None or self._at >= len(self._replayed):
            return False
        entry = self._replayed[self._at]
        self._at += 1
        if entry.operation != operation:
            raise RuleError(
                f"collective {self._at} before protect() is {operation} here and was {entry.operation} when the job "
                "began: the script has to do the same on every device, in the same order"
            )
        if entry.outputs is None:
            return False
        if source and [_bytes(tensor) for tensor in outputs] != entry.outputs:
            log.warning(_OTHER_SOURCE, self._at)
        sizes = [tensor.numel() * tensor.element_size() for tensor in outputs]
        if sizes != [len(data) for data in entry.outputs]:
            if source:
                return False
            raise RuleError(
                f"collective {self._at} before protect() ({operation}) has outputs of {sizes} bytes here and had "
                f"{[len(data) for data in entry.outputs]} when the job began"
            )
        for tensor, data in zip(outputs, entry.outputs, strict=True):
            if data:
                flat = torch.frombuffer(bytearray(data), dtype=torch.uint8)
                tensor.copy_(flat.view(tensor.dtype).view(tensor.shape))
        return True

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self.entries)

    @classmethod
    def decode(cls, data: bytes) -> Prologue:
        return cls(msgspec.msgpack.decode(data, type=list[Entry]))


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().view(-1)
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""
