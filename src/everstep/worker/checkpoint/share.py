"""How the tensors of a shard are divided among its replicas, and where each lies in the data of a share.

Pure functions of what all replicas have alike, so nobody has to ask.
"""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from everstep.checkpoint.manifest import Entry, arrange
from everstep.worker.state.tree import Flat

DTYPES = {
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
    "C64": torch.complex64,
    "F32": torch.float32,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def divide(sizes: Sequence[int], replicas: int) -> list[int]:
    """Who of so many saves each: the largest first, each to the one that has least so far."""
    load = [(0, replica) for replica in range(replicas)]
    owners = [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
        has, owners[number] = load[0]
        heapq.heapreplace(load, (has + sizes[number], owners[number]))
    return owners


def entries_of(flat: Flat, keys: Sequence[str], replicas: int) -> list[Entry]:
    """All tensors of this shard, with their owners and places."""
    sizes = [tensor.numel() * tensor.element_size() for tensor in flat.tensors]
    described = zip(flat.names, keys, flat.wholes, flat.tensors, sizes, divide(sizes, replicas), strict=True)
    return arrange(
        [
            Entry(
                name,
                key,
                _NAMES.get(tensor.dtype, str(tensor.dtype)),
                list(tensor.shape),
                _offsets(whole),
                list(whole.shape),
                owner,
                0,
                size,
                tensor.device.type,
            )
            for name, key, whole, tensor, size, owner in described
        ]
    )


def _offsets(whole: torch.Tensor) -> list[int]:
    """Where this rank's piece begins."""
    if not isinstance(whole, DTensor):
        return [0] * whole.ndim
    return list(compute_local_shape_and_global_offset(whole.shape, whole.device_mesh, whole.placements)[1])


def views(data: memoryview, entries: Iterable[Entry]) -> Iterator[torch.Tensor]:
    """These tensors of a share as they lie in its data; nothing is copied."""
    base = torch.empty(0, dtype=torch.uint8)
    if len(data):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given buffer is not writable")  # those who read do not write
            base = torch.frombuffer(data, dtype=torch.uint8)
    for entry in entries:
        yield base[entry.start : entry.start + entry.size_bytes].view(DTYPES[entry.dtype]).view(entry.shape)


def empty(entry: Entry) -> torch.Tensor:
    """A tensor for it, where it has no place yet."""
    return torch.empty(entry.shape, dtype=DTYPES[entry.dtype], device=entry.device)
