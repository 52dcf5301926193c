"""A few bytes between two ranks, over an inner group: what everstep itself says between its workers."""

from __future__ import annotations

import torch
import torch.distributed as dist

FIRST_BYTES = 16 << 10
"""The first message has this length always: the receiver cannot know it. Mostly it is the only one."""
_SIZE_BYTES = 8


def send_bytes(group: dist.ProcessGroup, to: int, data: bytes) -> None:
    """Returns when they are on their way; RuntimeError if the group is cut."""
    framed = len(data).to_bytes(_SIZE_BYTES, "little") + data
    first = torch.frombuffer(bytearray(framed[:FIRST_BYTES].ljust(FIRST_BYTES, b"\0")), dtype=torch.uint8)
    works = [group.send([first], to, 0)]
    if len(framed) > FIRST_BYTES:
        rest = torch.frombuffer(bytearray(framed[FIRST_BYTES:]), dtype=torch.uint8)
        works.append(group.send([rest], to, 0))
    for work in works:
        work.wait()


def receive_bytes(group: dist.ProcessGroup, source: int) -> bytes:
    first = torch.empty(FIRST_BYTES, dtype=torch.uint8)
    group.recv([first], source, 0).wait()
    framed = first.numpy().tobytes()
    end = _SIZE_BYTES + int.from_bytes(framed[:_SIZE_BYTES], "little")
    if end > FIRST_BYTES:
        rest = torch.empty(end - FIRST_BYTES, dtype=torch.uint8)
        group.recv([rest], source, 0).wait()
        framed += rest.numpy().tobytes()
    return framed[_SIZE_BYTES:end]


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
