"""Restoration: the state of a donor goes to a newcomer over the groups that were just made.

    header    plain values, and for each tensor its name, type and shape
    data      small tensors in parcels; then large ones as they are, from live memory into live memory
    trailer   a digest for each tensor, taken by the donor while it sends

The newcomer takes the same digests over its live objects after they were loaded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import torch
import torch.distributed as dist

from everstep.errors import StateError
from everstep.types import Step
from everstep.worker.groups.exchange import receive_bytes, send_bytes
from everstep.worker.groups.local import LocalWork
from everstep.worker.state.protected import Protected, as_bytes, check_equal, tensor_digest
from everstep.worker.state.tree import Flat

ALONE_BYTES = 64 << 10
"""From here on a message of its own costs less than copying it into a parcel and out of it."""
PARCEL_BYTES = 4 << 20
WINDOW = 8
"""Parcels under way at a time."""


class Spec(msgspec.Struct, frozen=True, array_like=True):
    name: str
    dtype: str
    shape: list[int]
    device: str

    def empty(self) -> torch.Tensor:
        return torch.empty(self.shape, dtype=getattr(torch, self.dtype), device=self.device)

    def fits(self, tensor: torch.Tensor) -> bool:
        return list(tensor.shape) == self.shape and str(tensor.dtype).removeprefix("torch.") == self.dtype


class Header(msgspec.Struct, frozen=True, array_like=True):
    version: int
    values: bytes
    specs: list[Spec]
    error: str = ""


_HEADER = msgspec.msgpack.Decoder(Header)


def send(group: dist.ProcessGroup, to: int, version: Step, protected: Protected) -> tuple[list[bytes], bytes, Flat]:
    """Give the state to the rank ``to``. A digest of each tensor, and the state that was read."""
    try:
        values, flat = protected.read()
    except Exception as error:  # whoever waits for it must hear of it
        send_bytes(group, to, msgspec.msgpack.encode(Header(version, b"", [], f"{type(error).__name__}: {error}")))
        raise
    specs = [
        Spec(name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), tensor.device.type)
        for name, tensor in zip(flat.names, flat.tensors, strict=True)
    ]
    send_bytes(group, to, msgspec.msgpack.encode(Header(version, values, specs)))
    return send_tensors(group, to, flat.tensors), values, flat


def send_tensors(group: dist.ProcessGroup, to: int, tensors: Sequence[torch.Tensor]) -> list[bytes]:
    """Data and trailer, from where the tensors are; gives the digests in the trailer."""
    digests = [b""] * len(tensors)
    under_way: deque[tuple[dist.Work, torch.Tensor]] = deque()
    for parcel in _parcels([_size(tensor) for tensor in tensors]):
        members = [tensors[index] for index in parcel]
        data = as_bytes(members[0]) if len(members) == 1 else torch.cat([as_bytes(tensor) for tensor in members])
        if data.numel():
            under_way.append((group.send([data], to, 0), data))
        for index in parcel:
            digests[index] = tensor_digest(tensors[index])
        if len(under_way) > WINDOW:
            under_way.popleft()[0].wait()
    for work, _ in under_way:
        work.wait()
    send_bytes(group, to, b"".join(digests))
    return digests


def receive(group: dist.ProcessGroup, source: int, version: Step, protected: Protected) -> tuple[Arrived, bytes, Flat]:
    """Be in the state of the rank ``source``, and prove it. What came, and the state that is the same."""
    header = _HEADER.decode(receive_bytes(group, source))
    if header.error:
        raise StateError(f"rank {source} could not give its state: {header.error}")
    if header.version != version:
        raise StateError(f"rank {source} gives version {header.version} instead of {version}")
    places = protected.places()
    tensors = [_place(spec, places.get(spec.name)) for spec in header.specs]
    came = receive_tensors(group, source, tensors)
    protected.put(header.values, tensors)
    known = {tensor.data_ptr(): digest for tensor, digest in zip(tensors, came.here, strict=True)}
    flat = check_equal((header.values, came.sent), protected, known)
    return came, header.values, flat


@dataclass(frozen=True, slots=True)
class Arrived:
    size_bytes: int
    here: list[bytes]
    """A digest of each tensor, taken where it is now."""
    sent: list[bytes]
    """The same, taken by the sender."""


def receive_tensors(group: dist.ProcessGroup, source: int, tensors: Sequence[torch.Tensor]) -> Arrived:
    """What `send_tensors` sends, into these."""
    received = 0
    here = [b""] * len(tensors)
    with torch.no_grad():
        for parcel, data in _arriving(group, source, list(_parcels([_size(tensor) for tensor in tensors])), tensors):
            received += data.numel()
            _unpack(data, [tensors[index] for index in parcel])
            for index in parcel:
                here[index] = tensor_digest(tensors[index])
    trailer = receive_bytes(group, source)
    return Arrived(received, here, [trailer[at : at + 16] for at in range(0, len(trailer), 16)])


def _arriving(
    group: dist.ProcessGroup, source: int, parcels: list[list[int]], tensors: Sequence[torch.Tensor]
) -> Iterator[tuple[list[int], torch.Tensor]]:
    """Each parcel when it is there, with the next ones under way."""
    waiting: deque[tuple[dist.Work, list[int], torch.Tensor]] = deque()
    for parcel in parcels:
        own = _in_place(tensors[parcel[0]]) if len(parcel) == 1 else None
        data = own if own is not None else torch.empty(sum(_size(tensors[i]) for i in parcel), dtype=torch.uint8)
        waiting.append((group.recv([data], source, 0) if data.numel() else LocalWork([]), parcel, data))
        if len(waiting) > WINDOW:
            work, ready, data = waiting.popleft()
            work.wait()
            yield ready, data
    for work, ready, data in waiting:
        work.wait()
        yield ready, data


def _unpack(data: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    at = 0
    for tensor in tensors:
        size = _size(tensor)
        own = _in_place(tensor)
        if own is None or own.data_ptr() != data.data_ptr():
            flat = data[at : at + size].clone().view(tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype)
            real = flat.view(*tensor.shape, 2) if tensor.is_complex() else flat.view(tensor.shape)
            tensor.copy_(torch.view_as_complex(real) if tensor.is_complex() else real)
        at += size


def _in_place(tensor: torch.Tensor) -> torch.Tensor | None:
    """Its own memory, if bytes can be received right into it."""
    if tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.numel() and not tensor.is_complex():
        return tensor.view(-1).view(torch.uint8)
    return None


def _place(spec: Spec, place: torch.Tensor | None) -> torch.Tensor:
    if place is None:
        return spec.empty()
    if not spec.fits(place):
        raise StateError(
            f"{spec.name} is {tuple(place.shape)} {place.dtype} here and {spec.shape} {spec.dtype} in the job"
        )
    return place


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _parcels(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Which tensors travel together. The same on both sides, because the sizes are."""
    parcel: list[int] = []
    total = 0
    for index, size in enumerate(sizes):
        if size >= ALONE_BYTES:
            continue
        if total + size > PARCEL_BYTES:
            yield parcel
            parcel, total = [], 0
        parcel.append(index)
        total += size
    if parcel:
        yield parcel
    for index, size in enumerate(sizes):
        if size >= ALONE_BYTES:
            yield [index]
