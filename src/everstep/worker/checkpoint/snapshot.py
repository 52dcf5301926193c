"""k0: copies the share of this rank from the live tensors into one of its two slots, and seals it.

Tensor by tensor straight into the mapped memory, so nothing is held twice. It decides nothing: `keeper` says when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from everstep.checkpoint.manifest import Entry, Manifest
from everstep.checkpoint.slot import Slot, SlotWriter, choose
from everstep.core.events import Checkpoint
from everstep.errors import SlotHeld
from everstep.worker.checkpoint.keys import keys_of
from everstep.worker.checkpoint.share import entries_of, views
from everstep.worker.protection import Protection
from everstep.worker.state.protected import digest
from everstep.worker.state.tree import Flat


class Snapshots:
    """Of one worker; its slots may be exchanged for larger ones."""

    def __init__(self, protection: Protection, paths: Sequence[str]) -> None:
        """Maps the slots, so that the first copy finds its memory in place."""
        self._protection = protection
        self._layout = digest(protection.layout)
        self._slots = [SlotWriter(Path(path)) for path in paths]
        self._signature: list[tuple[str, torch.dtype, torch.Size]] = []
        self._entries: list[Entry] = []

    def close(self) -> None:
        for slot in self._slots:
            slot.close()

    @property
    def mapped(self) -> dict[Path, Slot]:
        """The slots, for who reads them in this process."""
        return {slot.path: slot for slot in self._slots}

    @property
    def busy(self) -> bool:
        """No slot is free."""
        return bool(self._slots) and choose(self._slots) is None

    def take(self, checkpoint: Checkpoint, under_way: Callable[[], None] = lambda: None) -> tuple[int, int]:
        """Which slot it is in, and how many bytes that were. ``under_way`` is called when the slot is open.

        SlotHeld: both are busy. ResourceError: it does not fit. Either leaves the slots as they were.
        """
        protection = self._protection
        protection.tidy()
        values, flat = protection.state.read()
        manifest = self._manifest(checkpoint, values, flat)
        slot = choose(self._slots)
        if slot is None:
            raise SlotHeld("both slots are busy: storage has not taken the last checkpoint yet")
        room = slot.begin(manifest)
        under_way()
        mine = [number for number, entry in enumerate(manifest.entries) if entry.owner == manifest.replicate]
        _copy(room, [manifest.entries[number] for number in mine], [flat.tensors[number] for number in mine])
        slot.seal()
        return self._slots.index(slot), len(room)

    def _manifest(self, checkpoint: Checkpoint, values: bytes, flat: Flat) -> Manifest:
        protection = self._protection
        at = protection.coordinate
        return Manifest(
            step=checkpoint.step,
            generation=checkpoint.generation,
            attempt=checkpoint.attempt,
            rank=protection.rank,
            world_size=len(protection.coordinates),
            replicate=at.replicate,
            shard=at.shard,
            layout=self._layout,
            entries=self._arranged(flat),
            values=values,
            private=protection.private.image() if protection.private else b"",
        )

    def _arranged(self, flat: Flat) -> list[Entry]:
        """Nearly always those of the last time."""
        signature = [(name, it.dtype, it.shape) for name, it in zip(flat.names, flat.tensors, strict=True)]
        if signature != self._signature:
            coordinates = self._protection.coordinates
            shard = self._protection.coordinate.shard
            replicas = sum(at.shard == shard for at in coordinates)
            self._entries = entries_of(flat, keys_of(self._protection.state, flat), replicas)
            self._signature = signature
        return self._entries


def _copy(room: memoryview, entries: Sequence[Entry], tensors: Sequence[torch.Tensor]) -> None:
    """From several devices at once. Copies from a GPU into memory that is not pinned are untested."""
    if not entries:
        return  # there are more replicas than tensors
    places = list(views(room, entries))
    torch._foreach_copy_(places, list(tensors), non_blocking=True)
    if any(tensor.is_cuda for tensor in tensors):
        torch.cuda.synchronize()
