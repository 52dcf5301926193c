"""Every collective of torch.distributed, on the group of all and on a smaller one, in each of some steps.

What comes out is known, so each rank checks it. The processes also keep connections of their own, which a recovery must
not touch, and results of collectives from before protect(), which a replacement must be given.
"""

import os
import socket

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import everstep

RANKS = 3
job = everstep.init()
rank = job.rank
mesh = init_device_mesh("cpu", (1, RANKS), mesh_dim_names=("one", "all"))
pair = dist.new_group([0, 2])

told = torch.tensor([os.getpid() if rank == 0 else 0])
dist.broadcast(told, 0)
dist.broadcast_object_list([f"{os.getpid()}"])
names: list[object] = [None] * RANKS
dist.all_gather_object(names, f"rank {rank} of process {told.item()}")

listener = socket.create_server(("127.0.0.1", 0))
mine = socket.create_connection(listener.getsockname())
theirs, _ = listener.accept()

model = nn.Linear(2, 2)
with torch.no_grad():
    model.weight.fill_(1.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
job.protect(model=model, optimizer=optimizer)


def ones(value: float, *shape: int) -> torch.Tensor:
    return torch.full(shape or (2,), float(value))


def same(found: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    assert torch.equal(found, wanted), f"{what}: {found} instead of {wanted}"


def check(group: dist.ProcessGroup, members: list[int]) -> None:
    """Each rank has its own number plus one."""
    size, place = len(members), members.index(rank)
    every = [ones(member + 1) for member in members]
    total = torch.stack(every).sum(0)
    first, own = members[0], ones(rank + 1)

    x = own.clone()
    dist.all_reduce(x, group=group)
    same(x, total, "all_reduce")
    x = own.clone()
    work = dist.all_reduce(x, dist.ReduceOp.MAX, group=group, async_op=True)
    assert work is not None
    work.wait()
    same(x, ones(max(members) + 1), "all_reduce of the largest")
    x = own.clone()
    dist.broadcast(x, first, group=group)
    same(x, ones(first + 1), "broadcast")
    x = own.clone()
    dist.reduce(x, first, group=group)
    if rank == first:
        same(x, total, "reduce")
    gathered = [torch.empty(2) for _ in members]
    dist.all_gather(gathered, own, group=group)
    same(torch.stack(gathered), torch.stack(every), "all_gather")
    flat = torch.empty(size * 2)
    dist.all_gather_into_tensor(flat, own, group=group)
    same(flat, torch.cat(every), "all_gather_into_tensor")
    gathered = [torch.empty(2) for _ in members]
    dist.gather(own, gathered if rank == first else None, dst=first, group=group)
    if rank == first:
        same(torch.stack(gathered), torch.stack(every), "gather")
    x = torch.empty(2)
    dist.scatter(x, [ones(member * 7) for member in members] if rank == first else None, src=first, group=group)
    same(x, ones(rank * 7), "scatter")
    x = torch.empty(2)
    dist.reduce_scatter(x, [own * (index + 1) for index in range(size)], group=group)
    same(x, total * (place + 1), "reduce_scatter")
    x = torch.empty(2)
    dist.reduce_scatter_tensor(x, torch.cat([own * (index + 1) for index in range(size)]), group=group)
    same(x, total * (place + 1), "reduce_scatter_tensor")
    x = torch.empty(size)
    dist.all_to_all_single(x, ones(rank, size), group=group)
    same(x, torch.tensor([float(member) for member in members]), "all_to_all_single")
    parts = [torch.empty(1) for _ in members]
    dist.all_to_all(parts, [ones(rank, 1) for _ in members], group=group)
    same(torch.cat(parts), torch.tensor([float(member) for member in members]), "all_to_all")
    objects: list[object] = [None] * size
    dist.all_gather_object(objects, {"rank": rank}, group=group)
    assert objects == [{"rank": member} for member in members], objects
    after, before = members[(place + 1) % size], members[place - 1]
    x = torch.empty(2)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, own, after, group=group), dist.P2POp(dist.irecv, x, before, group=group)]
    )
    for each in works:
        each.wait()
    same(x, ones(before + 1), "batch_isend_irecv")
    if place == 0:
        dist.send(own, members[1], group=group)
    elif place == 1:
        dist.recv(x, first, group=group)
        same(x, ones(first + 1), "recv")
    if place == 1:
        dist.send(own, first, group=group)
    elif place == 0:
        assert dist.recv(x, group=group) == members[1], "recv from anybody"
        same(x, ones(members[1] + 1), "recv from anybody")
    dist.barrier(group=group)


world = dist.group.WORLD
assert world is not None
for step in job.steps(6):
    with step:
        check(world, list(range(RANKS)))
        everybody: list[object] = [None] * RANKS
        dist.all_gather_object(everybody, (told.item(), names))
        assert everybody == [everybody[0]] * RANKS, "a replacement was told something else before protect()"
        check(mesh["all"].get_group(), list(range(RANKS)))
        if rank != 1:
            check(pair, [0, 2])
        model(torch.ones(1, 2)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
mine.sendall(b"alive")
assert theirs.recv(5) == b"alive"
dist.barrier()  # after the loop they are ordinary again
print(f"rank {rank}: all as it should be")
