"""A shard that is put together from the shares of its replicas, right in the live objects where they have a place."""

from __future__ import annotations

import msgspec
import torch
import torch.distributed as dist

from everstep.checkpoint.files import ShareFile
from everstep.checkpoint.manifest import Entry, Manifest
from everstep.checkpoint.slot import Content
from everstep.errors import CheckpointError
from everstep.types import Rank
from everstep.worker.checkpoint.share import DTYPES, empty, views
from everstep.worker.groups.exchange import receive_bytes, send_bytes
from everstep.worker.state.protected import Protected, as_bytes, check_equal, tensor_digest
from everstep.worker.state.transfer import receive_tensors, send_tensors

_MANIFEST = msgspec.msgpack.Decoder(Manifest)


class Assembly:
    """Give it every share of the shard, from wherever; then `finish`."""

    def __init__(self, state: Protected, layout: str) -> None:
        self._state = state
        self._layout = layout
        self._manifests: dict[int, Manifest] = {}
        self._entries: list[Entry] = []
        self._targets: list[torch.Tensor] = []
        self._have: set[int] = set()
        """The numbers of those that are there."""
        self._wrong = ""
        """What is wrong with a share that was received: said at the end, because its sender goes on."""
        self.size_bytes = 0

    # ── shares ───────────────────────────────────────────────────────────────────────────────────────────

    def take_slot(self, share: Content) -> None:
        """From the memory of this node."""
        numbers = self._begin(share.manifest)
        for number, view in zip(numbers, _tensors(share), strict=True):
            self._targets[number].copy_(view)
            self._have.add(number)

    def take_file(self, share: ShareFile) -> None:
        """From storage; it checks its digests."""
        for number in self._begin(share.manifest):
            entry, target = self._entries[number], self._targets[number]
            if target.device.type == "cpu" and target.is_contiguous() and not target.is_complex():
                share.read_into(entry, as_bytes(target).numpy().data)
            else:
                raw = torch.empty(entry.size_bytes, dtype=torch.uint8)
                share.read_into(entry, raw.numpy().data)
                target.copy_(raw.view(DTYPES[entry.dtype]).view(entry.shape))
            self._have.add(number)

    def receive(self, group: dist.ProcessGroup, source: int) -> None:
        """From a rank that has it in the memory of its node. RuntimeError if one more failure comes."""
        manifest = _MANIFEST.decode(receive_bytes(group, source))
        numbers = self._begin(manifest)
        arrived = receive_tensors(group, source, [self._targets[number] for number in numbers])
        if arrived.here != arrived.sent:
            self._wrong = self._wrong or f"the share of rank {manifest.rank} has changed on its way"
        self._have.update(numbers)

    def _begin(self, manifest: Manifest) -> list[int]:
        """The numbers of the tensors in this share, but for those without elements."""
        if not self._manifests:
            places = self._state.places()
            self._entries = manifest.entries
            self._targets = [self._target(entry, places.get(entry.name)) for entry in manifest.entries]
        elif manifest.entries != self._entries:
            self._wrong = self._wrong or f"the share of rank {manifest.rank} has other tensors than its replicas"
        if manifest.layout != self._layout:
            self._wrong = self._wrong or "it has another layout than this script builds"
        self._manifests[manifest.replicate] = manifest
        own = [at for at, entry in enumerate(manifest.entries) if entry.owner == manifest.replicate]
        self.size_bytes += manifest.data_bytes
        return [number for number in own if manifest.entries[number].size_bytes]

    def _target(self, entry: Entry, place: torch.Tensor | None) -> torch.Tensor:
        if place is not None and list(place.shape) == entry.shape and place.dtype == DTYPES[entry.dtype]:
            return place
        if place is not None:
            is_here = f"{tuple(place.shape)} {place.dtype}"
            self._wrong = self._wrong or f"{entry.name} is {is_here} here and {entry.shape} {entry.dtype} in it"
        return empty(entry)

    # ── the state ────────────────────────────────────────────────────────────────────────────────────────

    def finish(self, replicate: int) -> bytes:
        """Be in this state, bit for bit; gives what was private to this replica."""
        if self._wrong:
            raise CheckpointError(self._wrong)
        absent = [
            entry.name for number, entry in enumerate(self._entries) if entry.size_bytes and number not in self._have
        ]
        if absent or replicate not in self._manifests:
            raise CheckpointError(f"it is not complete: nobody has saved {', '.join(absent[:4]) or 'this rank'}")
        manifest = self._manifests[replicate]
        self._state.put(manifest.values, self._targets)
        self._check(manifest.values)
        return manifest.private

    def _check(self, values: bytes) -> None:
        """The objects have what they were given. Mostly that is the same memory, and then a number stands for it."""
        _, flat = self._state.read()
        live = {tensor.data_ptr() for tensor in flat.tensors}
        marks = [
            str(number).encode() if target.data_ptr() in live else tensor_digest(target)
            for number, target in enumerate(self._targets)
        ]
        known = {target.data_ptr(): mark for target, mark in zip(self._targets, marks, strict=True)}
        check_equal((values, marks), self._state, known)


def send_share(group: dist.ProcessGroup, to: Rank, share: Content) -> None:
    """The other side of `Assembly.receive`."""
    send_bytes(group, to, msgspec.msgpack.encode(share.manifest))
    send_tensors(group, to, list(_tensors(share)))


def _tensors(share: Content) -> list[torch.Tensor]:
    return list(views(share.data, [entry for entry in share.manifest.own() if entry.size_bytes]))
