"""A few bytes between two ranks, over an inner group: what everstep itself says between its workers."""

from __future__ import annotations

import torch
import torch.distributed as dist


def send_bytes(group: dist.ProcessGroup, to: int, data: bytes) -> None:
    """Returns when they are on their way; RuntimeError if the group is cut."""
    group.send([torch.tensor([len(data)])], to, 0).wait()
    if data:
        group.send([torch.frombuffer(bytearray(data), dtype=torch.uint8)], to, 0).wait()


def receive_bytes(group: dist.ProcessGroup, source: int) -> bytes:
    size = torch.zeros(1, dtype=torch.int64)
    group.recv([size], source, 0).wait()
    data = torch.empty(int(size), dtype=torch.uint8)
    if data.numel():
        group.recv([data], source, 0).wait()
    return data.numpy().tobytes()


def broadcast_bytes(group: dist.ProcessGroup, root: int, data: bytes) -> bytes:
    """What the root has; the others' ``data`` is not looked at."""
    options = dist.BroadcastOptions()
    options.rootRank = root
    size = torch.tensor([len(data)])
    group.broadcast([size], options).wait()
    mine = group.rank() == root and data
    body = torch.frombuffer(bytearray(data), dtype=torch.uint8) if mine else torch.empty(int(size), dtype=torch.uint8)
    if body.numel():
        group.broadcast([body], options).wait()
    return body.numpy().tobytes()


def gather_bytes(group: dist.ProcessGroup, data: bytes) -> list[bytes]:
    """Of every rank, by rank. All give equally many."""
    own = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    every = [torch.empty_like(own) for _ in range(group.size())]
    group.allgather([every], [own]).wait()
    return [part.numpy().tobytes() for part in every]
